// The page as a whole: layout, what opens which group, the keyboard, the address.

const isOpen = (entry) => sidesOf(entry).some((g) => g.step === state.step && g.group === state.group && g.split === state.split);

function select(key, options) {
  return el("select", { "data-key": key, onchange: (event) => setView({ [key]: event.target.value }) },
    options.map(([value, label]) => el("option", { value, selected: state[key] === value }, label)));
}

function setView(changes) {
  Object.assign(state, changes);
  const scroll = byId("main").scrollTop;
  redraw(false).then(() => { byId("main").scrollTop = scroll; });
}

const FILTER_INPUTS = () => document.querySelectorAll("#filters [data-filter]");

function setFilter(changes) {
  Object.assign(state, changes);
  for (const input of FILTER_INPUTS()) input.value = state[input.dataset.filter];
  for (const chip of document.querySelectorAll("#filters [data-status]")) chip.setAttribute("aria-pressed", String(state.status.split(",").includes(chip.dataset.status)));
  byId("steps").classList.toggle("bad", !rangeOf(state.steps, "-"));
  byId("reward").classList.toggle("bad", !rangeOf(state.reward, ".."));
  const query = state.q.trim().toLowerCase();
  if (query !== search.query) runSearch(query, () => redraw(true));
  else redraw(true);
}

function toggleStatus(name) {
  const chosen = new Set(state.status.split(",").filter(Boolean));
  if (!chosen.delete(name)) chosen.add(name);
  setFilter({ status: [...chosen].join(",") });
}

function toggleEvidence() { setView({ evidence: state.evidence === "1" ? "" : "1" }); }

let latest = 0, drawn = null;
// The list, and the open group; while a search runs a group that is open stays so.
async function redraw(move) {
  drawList();
  let entry = list.shown.find(isOpen);
  if (!entry && list.shown.length) {
    entry = list.shown.reduce((best, e) => (state.step !== null && Math.abs(anyOf(e).step - state.step) < Math.abs(anyOf(best).step - state.step) ? e : best), list.shown[0]);
    take(entry);
  }
  if (move) scrollToOpen(); else drawRows(true);
  writeHash();
  showStep();
  const now = entry && JSON.stringify([anyOf(entry).uid, entry.passes, state.q, state.cards, state.shade, state.evidence]);
  if (entry && now === drawn) return; // a search goes on, and the group that is open is as it was
  const mine = (latest += 1);
  drawn = null;
  if (await drawGroup(entry, () => mine === latest)) drawn = now;
}

function take(entry) {
  const { step, group, split } = anyOf(entry);
  Object.assign(state, { step, group, split });
}

function openEntry(entry) {
  if (!entry) return;
  take(entry);
  state.sample = null;
  byId("main").scrollTop = 0;
  redraw(true);
}

function toStep(wanted) {
  const step = nearestStep(wanted);
  const found = list.shown.filter((e) => anyOf(e).step === step);
  if (found.length) openEntry(found.find((e) => anyOf(e).split === state.split) || found[0]);
  else if (list.shown.length) openEntry(list.shown.reduce((best, e) => (Math.abs(anyOf(e).step - step) < Math.abs(anyOf(best).step - step) ? e : best)));
}

function move(by) {
  const place = list.shown.findIndex(isOpen);
  openEntry(list.shown[Math.max(0, Math.min(list.shown.length - 1, place + by))]);
}

function moveStep(by) {
  const place = allSteps.indexOf(nearestStep(state.step));
  toStep(allSteps[Math.max(0, Math.min(allSteps.length - 1, place + by))]);
}

const KEYS = {
  ArrowDown: ["next group", () => move(1)], ArrowUp: ["previous group", () => move(-1)],
  ArrowRight: ["next step", () => moveStep(1)], ArrowLeft: ["previous step", () => moveStep(-1)],
  "/": ["search", () => byId("q").focus()], e: ["show or hide evidence", toggleEvidence],
  t: ["shade tokens", nextShade], "?": ["keys", () => { byId("keys").hidden = !byId("keys").hidden; }],
};

function nextShade() {
  const box = document.querySelector('[data-key="shade"]');
  if (!box) return;
  setView({ shade: box.options[(box.selectedIndex + 1) % box.options.length].value });
}

function onKey(event) {
  if (event.key === "Escape") { document.activeElement.blur(); byId("keys").hidden = true; return; }
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.id !== "slider";
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key][1]();
}

function field(id, label, attributes) {
  let waiting;
  return el("label", { class: "field" }, el("span", null, label), el("input", {
    id, "data-filter": id, autocomplete: "off", spellcheck: "false", maxlength: 500, ...attributes,
    oninput: (event) => { clearTimeout(waiting); waiting = setTimeout(() => setFilter({ [id]: event.target.value }), 180); },
  }));
}

function choice(id, label, options) {
  if (options.length < 2) return null;
  return el("label", { class: "field" }, el("span", null, label),
    el("select", { "data-filter": id, onchange: (event) => setFilter({ [id]: event.target.value }) },
      [["", "all"], ...options].map(([value, text]) => el("option", { value }, text))));
}

function filtersPanel() {
  const groups = entries.flatMap(sidesOf);
  const tags = [...new Set(groups.flatMap((g) => g.tags))].sort();
  const splits = [...new Set(groups.map((g) => g.split))];
  const flagged = { errored: 0, invalid: 0, truncated: 0 };
  for (const g of groups) g.statuses.forEach((s, i) => { if (s) flagged[STATUS[s]] += 1; if (g.truncated[i]) flagged.truncated += 1; });
  return el("div", { id: "filters" },
    field("q", "Search", { type: "search", placeholder: "prompts, answers, evidence", class: "wide" }),
    el("div", { class: "chips" }, Object.entries(flagged).map(([name, n]) => button([name, el("small", null, n.toLocaleString("en-US"))], () => toggleStatus(name),
      { class: `chip ${name}`, "data-status": name, "aria-pressed": "false", disabled: n === 0 }))),
    el("div", { class: "fields" },
      field("steps", "Steps", { placeholder: `${allSteps[0]}-${allSteps[allSteps.length - 1]}`, title: "A step, or a range such as 3-9, 3- or -9" }),
      field("reward", "Reward", { placeholder: "0..0.5", title: "A reward, or a range such as 0..0.5, ..0 or 1.." }),
      choice("splits", "Split", splits.map((s) => [s, visible(s === "eval" ? "held out" : s)])),
      choice("tag", "Tag", tags.map((t) => [t, visible(t)])),
      runs.length > 1 && choice("only", "Runs", [["both", "in both"], ["any", "in either"]]),
      el("label", { class: "field" }, el("span", null, "Sort"), select("sort",
        Object.entries(SORTS).filter(([k]) => runs.length > 1 || !k.includes("gap")).map(([k, [label]]) => [k, label])))),
    el("p", { id: "found", role: "status" }));
}

function build() {
  const total = runs.reduce((n, run) => n + run.groups.reduce((m, g) => m + g.size, 0), 0);
  byId("app").append(
    el("header", { id: "top" },
      el("div", { id: "who" }, el("p", { class: "kicker" }, "Assay"),
        el("h1", null, runs.map((run, i) => [i ? el("span", { class: "soft" }, " against ") : null, el("span", { class: runs.length > 1 ? `c${i}` : null }, visible(run.name))])),
        el("p", { class: "soft" }, `${count(allSteps.length, "step")} with ${count(total, "rollout")} in ${count(entries.length, "group")}`),
        shift !== 0 && el("p", { class: "soft" }, `Steps of ${visible(runs[1].name)} are moved by ${signed(shift)}, so that RL batches meet`),
        alarmsPanel()),
      el("div", { id: "steps-panel" },
        el("p", { class: "legend" }, el("span", { class: "key line c0" }, "mean reward"), el("span", { class: "key area c0" }, "middle half"),
          el("span", { class: "key point c0" }, "held out"), runs.some((r) => r.events.some(isAlarm)) && el("span", { class: "key alarm" }, "alarm"),
          button("keys", KEYS["?"][1], { class: "link", id: "show-keys" })),
        el("div", { id: "curve" }),
        el("input", { type: "range", id: "slider", step: 1, "aria-label": "Step", oninput: (event) => toStep(Number(event.target.value)) }))),
    el("aside", { id: "side" }, filtersPanel(), el("div", { id: "list", role: "listbox", tabindex: "0", "aria-label": "Groups" }, el("ul", { id: "rows" }))),
    el("main", { id: "main", tabindex: "-1" }, el("div", { id: "group" })),
    el("div", { id: "tip", hidden: true }),
    el("div", { id: "keys", hidden: true }, el("dl", null, Object.entries(KEYS).map(([key, [label]]) => [el("dt", null, el("kbd", null, key.replace("Arrow", ""))), el("dd", null, label)]))));
  byId("app").classList.toggle("two", runs.length > 1);
  curve.node = byId("curve");
}

const ARROWS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]);

async function start() {
  const root = document.documentElement;
  try {
    await loadIndex();
  } catch (error) {
    byId("app").append(el("p", { class: "empty bad" }, `This page cannot be shown: ${visible(error.message)}`));
    root.dataset.failed = error.message;
    return;
  }
  readHash();
  prepareCurve();
  build();
  prepareList();
  addEventListener("keydown", onKey);
  byId("slider").addEventListener("keydown", (event) => { if (ARROWS.has(event.key)) event.preventDefault(); });
  addEventListener("hashchange", () => { readHash(); setFilter({}); });
  new ResizeObserver(() => { drawCurve(); drawRows(true); }).observe(curve.node);
  drawCurve();
  setFilter({});
  // For measurements and tests: milliseconds from the start of loading to a list that answers, and to the first texts.
  requestAnimationFrame(() => setTimeout(() => { root.dataset.listed = performance.now().toFixed(0); }));
  const waiting = setInterval(() => {
    if (byId("group").dataset.uid === undefined && !document.querySelector("#group .empty")) return;
    if (search.done < search.total && !search.failure) return;
    clearInterval(waiting);
    root.dataset.ready = performance.now().toFixed(0);
  }, 10);
}

start();
