// The list of groups. Only the rows in sight are in the page, so that a long run scrolls as a short one does.

const ROW = 62, SPARE = 6;
const list = { shown: [], from: -1, to: -1, range: [0, 1] };

function prepareList() {
  const all = entries.flatMap((e) => sidesOf(e).flatMap((g) => g.rewards.filter((r) => r !== null)));
  const low = all.reduce((a, b) => Math.min(a, b), 0), high = all.reduce((a, b) => Math.max(a, b), 0);
  list.range = [low, high > low ? high : low + 1];
  byId("list").addEventListener("scroll", () => requestAnimationFrame(() => drawRows(false)), { passive: true });
}

// One bar per rollout from the zero line; what could not be scored is a mark on it, and what does not pass is faint.
function strip(group, passes, colour, { width = 108, height = 22 } = {}) {
  const [low, high] = list.range, n = group.size, gap = n > 40 ? 0 : 1;
  const wide = Math.max(0.8, Math.min(9, width / n - gap)), y = (v) => height - ((v - low) / (high - low)) * height;
  const bars = group.rewards.map((reward, i) => {
    const x = i * (wide + gap), faint = passes && !passes[i] ? " faint" : "";
    if (reward === null) return svg("rect", { class: `errored${faint}`, x, width: wide, y: y(0) - 3, height: 6 });
    const top = Math.min(y(reward), y(0)), kind = group.statuses[i] === 1 ? "invalid" : "scored";
    return svg("rect", { class: `${kind} c${colour}${faint}`, x, width: wide, y: Math.min(top, height - 1.5), height: Math.max(1.5, Math.abs(y(reward) - y(0))) });
  });
  const used = Math.min(width, n * (wide + gap));
  return svg("svg", { class: "strip", viewBox: `0 0 ${used} ${height}`, width: used, height, "aria-hidden": "true" },
    svg("line", { class: "zero", x1: 0, x2: used, y1: y(0), y2: y(0) }), bars);
}

function flagsOf(group) {
  const flags = [["errored", group.statuses.filter((s) => s === 2).length], ["invalid", group.statuses.filter((s) => s === 1).length],
    ["truncated", group.truncated.filter(Boolean).length]];
  return flags.filter(([, n]) => n).map(([name, n]) => el("span", { class: `flag ${name}`, title: `${n} of ${group.size} ${name}` }, `${n} ${name}`));
}

function row(entry, place) {
  const group = anyOf(entry), open = isOpen(entry);
  const sides = runs.length > 1 ? [entry.a, entry.b] : [entry.a];
  return el("li", {
    class: open ? "row open" : "row", role: "option", id: `row-${group.uid}`, "aria-selected": String(open),
    style: { transform: `translateY(${place * ROW}px)` }, onclick: () => openEntry(entry),
  },
  el("div", { class: "what" },
    el("span", { class: "where" }, `${group.step}`, el("i", null, "/"), `${group.group}`, group.split !== "train" && el("b", null, visible(group.split))),
    el("span", { class: "snippet", dir: "auto" }, visible(group.snippet || group.task || group.key))),
  el("div", { class: "how" },
    sides.map((side, i) => (side
      ? el("span", { class: "side" }, el("span", { class: `mean c${runs.length > 1 ? i : "x"}` }, num(side.mean)),
        strip(side, entry.passes[i ? "b" : "a"], i, { width: runs.length > 1 ? 84 : 128 }))
      : el("span", { class: "side none" }, "not in this run"))),
    runs.length === 1 && el("span", { class: "flags" }, flagsOf(group))));
}

function drawRows(anew) {
  const box = byId("list");
  const from = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
  const to = Math.min(list.shown.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
  if (!anew && from === list.from && to === list.to) return;
  Object.assign(list, { from, to });
  byId("rows").style.height = `${list.shown.length * ROW}px`;
  byId("rows").replaceChildren(...list.shown.slice(from, to).map((entry, i) => row(entry, from + i)));
}

function drawList() {
  list.shown = filtered();
  const kept = list.shown.reduce((n, e) => n + ["a", "b"].reduce((m, s) => m + (e.passes[s] ? e.passes[s].filter(Boolean).length : 0), 0), 0);
  const busy = search.done < search.total && !search.failure ? `, searching: ${Math.floor((100 * search.done) / search.total)} %` : "";
  byId("found").textContent = search.failure ? `The search stopped: ${search.failure}` :
    `${count(list.shown.length, "group")}, ${count(kept, "rollout")}${busy}`;
  byId("found").dataset.done = String(!busy);
  drawRows(true);
}

// Bring the open row into sight; only as far as is needed.
function scrollToOpen() {
  const place = list.shown.findIndex(isOpen), box = byId("list");
  if (place < 0) return;
  const top = place * ROW, bottom = top + ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
  drawRows(true);
}
