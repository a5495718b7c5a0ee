// The group that is open: its prompt, and its answers side by side.

const CLAMP = 900; // characters of a text from which it is cut until it is asked for

const REMOVED = {
  errored: "not trained on: it could not be scored", constant: "not trained on: the rewards of its group do not differ",
  truncated: "not trained on: it was cut off", skipped: "not trained on: no optimizer step was taken",
  failed: "not trained on: the training step failed",
};

function messageBox({ role, content }, query, kind = "") {
  const box = el("div", { class: `message ${kind}` }, el("span", { class: "role" }, visible(role)), verbatim(content, query));
  return content.length > CLAMP * 2 ? clamped(box) : box;
}

// A long text under a fold that one click opens.
function clamped(node) {
  const fold = el("div", { class: "fold" }, node);
  fold.append(button("Show all", (event) => { fold.classList.add("all"); event.target.remove(); }, { class: "more" }));
  return fold;
}

function partBars(parts, scales) {
  const names = Object.keys(parts);
  if (!names.length) return null;
  return el("div", { class: "parts" }, names.map((name) => {
    const value = parts[name] ?? 0, { low, high } = scales[name] || { low: 0, high: 1 };
    const zero = ((0 - low) / (high - low)) * 100, at = ((value - low) / (high - low)) * 100;
    return [el("span", { class: "name" }, words(name)),
      el("span", { class: "bar", title: `${words(name)}: ${num(value, 4)}` },
        el("i", { class: value < 0 ? "less" : "", style: { left: `${Math.min(zero, at)}%`, width: `${Math.abs(at - zero)}%` } }),
        low < 0 && el("b", { style: { left: `${zero}%` } })),
      el("span", { class: "number" }, num(value))];
  }));
}

// Of each part the range that bars are drawn on: at least 0 to 1, wider where answers of the group go beyond it.
function scalesOf(bodies) {
  const scales = {};
  const see = (parts) => {
    for (const [name, value] of Object.entries(parts || {})) {
      const known = (scales[name] = scales[name] || { low: 0, high: 1 });
      known.low = Math.min(known.low, value);
      known.high = Math.max(known.high, value);
    }
  };
  for (const body of bodies) for (const r of body.rollouts) { see(r.parts); for (const t of r.turns) see(t.score && t.score.parts); }
  return scales;
}

function turnText(turn, view) {
  if (turn.text === undefined) return el("p", { class: "soft" }, "It ended before its first answer.");
  const stream = view.stream && turn.tokens && turn.tokens[view.stream] ? view.stream : null;
  const node = stream ? shadedText(turn.tokens, stream, view.most, view.query) : verbatim(turn.text || "(empty)", view.query, turn.text ? "" : "soft");
  const long = turn.text.length > CLAMP || turn.text.split("\n").length > 22;
  const hidden = view.query && turn.text.toLowerCase().indexOf(view.query) > CLAMP; // what was searched for
  return long && !hidden ? clamped(node) : node;
}

function turnBox(turn, place, rollout, view) {
  const many = rollout.turns.length > 1, score = turn.score || {};
  const told = [...(turn.messages || []), ...(turn.observation ? [{ role: "told", content: turn.observation }] : [])];
  const details = evidenceOf(turn, view.query);
  return el("section", { class: many ? "turn many" : "turn" },
    turn.messages && el("p", { class: "note" }, place > 0 ? "The conversation began anew:" : "This answer had a prompt of its own:"),
    told.map((message) => messageBox(message, view.query, "told")),
    many && el("h4", null, `Turn ${place + 1}`, el("span", { class: "number" }, num(score.value)),
      score.status && score.status !== "scored" && el("span", { class: `flag ${score.status}` }, visible(score.status))),
    turn.thought && messageBox({ role: "thought", content: turn.thought }, view.query, "told"),
    turnText(turn, view),
    complaints(score, view.query),
    many && partBars(score.parts || {}, view.scales),
    details.length > 0 && el("details", { class: "evidence", open: state.evidence === "1" }, el("summary", null, "Evidence"), details));
}

function card(group, body, i, view) {
  const rollout = body.rollouts[i], reward = group.rewards[i], advantage = group.advantages[i];
  const status = STATUS[group.statuses[i]];
  const removed = reasonsOf(rollout).map((why) => REMOVED[why] || why);
  const passes = !view.passes || view.passes[i];
  const many = rollout.turns.length > 1;
  return el("article", {
    class: `card ${status}${passes ? "" : " faint"}${state.sample === rollout.sample ? " chosen" : ""}`,
    id: `sample-${group.run}-${rollout.sample}`, "data-passes": String(passes),
  },
  el("header", null,
    el("span", { class: "reward", title: "reward" }, status === "errored" ? "errored" : num(reward)),
    advantage !== null && el("span", { class: `advantage ${advantage < 0 ? "down" : "up"}`, title: "advantage" }, signed(advantage)),
    status === "invalid" && el("span", { class: "flag invalid" }, "invalid"),
    group.truncated[i] && el("span", { class: "flag truncated" }, "truncated"),
    el("button", { type: "button", class: "which", title: `Link to this answer (seed ${rollout.seed})`, onclick: () => { state.sample = rollout.sample; writeHash(); markSample(); } },
      `#${rollout.sample}`, el("small", null, `${many ? `${count(rollout.turns.length, "turn")}, ` : ""}${count(group.lengths[i], "token")}`))),
  !many && partBars(rollout.parts, view.scales),
  removed.length > 0 && !view.shared && el("p", { class: "note" }, `${removed.join("; ")}.`),
  rollout.turns.map((turn, place) => turnBox(turn, place, rollout, view)));
}

const CARD_SORTS = {
  sample: ["as sampled", () => 0],
  "-reward": ["best first", (g) => (x, y) => (g.rewards[y] ?? -Infinity) - (g.rewards[x] ?? -Infinity)],
  reward: ["worst first", (g) => (x, y) => (g.rewards[x] ?? Infinity) - (g.rewards[y] ?? Infinity)],
  "-length": ["longest first", (g) => (x, y) => g.lengths[y] - g.lengths[x]],
};

const reasonsOf = (rollout) => [...new Set(rollout.turns.map((t) => t.removed).filter(Boolean))];

// Why nothing of a group was trained on, where that has one reason: it is said once.
function sharedReason(body) {
  const all = new Set(body.rollouts.map((r) => (r.turns.every((t) => t.removed) ? reasonsOf(r).join(" ") : "")));
  return all.size === 1 ? [...all][0] : "";
}

function answersOf(group, body, passes, view) {
  const order = body.rollouts.map((_, i) => i);
  const sort = state.cards in CARD_SORTS && state.cards !== "sample" ? CARD_SORTS[state.cards][1](group) : (x, y) => x - y;
  order.sort((x, y) => (passes ? passes[y] - passes[x] : 0) || sort(x, y) || x - y);
  return el("div", { class: "cards" }, order.map((i) => card(group, body, i, { ...view, passes, shared: sharedReason(body) })));
}

function groupHead(group, body) {
  const flags = flagsOf(group), shared = sharedReason(body);
  return el("div", { class: "stats" },
    strip(group, null, runs.length > 1 ? group.run : 0, { width: 168, height: 30 }),
    el("span", null, el("b", null, num(group.mean)), " mean reward of ", count(group.size, "answer")),
    !group.committed && el("span", { class: "flag invalid", title: "The step is under way, or failed, and will be done again" }, "step not committed"),
    flags, shared && el("span", { class: "flag" }, REMOVED[shared] || shared));
}

function promptOf(body, query) {
  return el("div", { class: "prompt", id: "prompt" }, body.messages.map((m) => messageBox(m, query)));
}

function titleOf(entry) {
  const group = anyOf(entry);
  const batch = group.split === "train" ? `RL batch ${group.index + 1}` : "evaluation";
  return el("div", { class: "title" },
    el("h2", null, `${group.phase === "start" ? "Before training" : `Step ${group.step}`}, ${group.split === "train" ? "group" : "held-out task"} ${group.group}`),
    el("span", { class: "soft" }, batch),
    el("span", { class: "chip", title: `task key ${visible(group.key)}` }, visible(group.env), group.task && ` · ${visible(group.task)}`),
    group.tags.map((tag) => button(visible(tag), () => setFilter({ tag }), { class: "chip link", title: "Only groups with this tag" })));
}

// Draws the open group when its texts are there, if they are `shown` still; whether it did.
async function drawGroup(entry, shown) {
  const main = byId("group");
  if (!entry) {
    main.replaceChildren(el("p", { class: "empty" }, search.done < search.total ? "Searching." : "No group passes these filters.", " ",
      button("Clear filters", () => setFilter(Object.fromEntries(FILTERS.map((k) => [k, ""]))), { class: "link" })));
    return false;
  }
  const sides = runs.length > 1 ? ["a", "b"] : ["a"];
  let bodies;
  try {
    bodies = await Promise.all(sides.map((s) => (entry[s] ? bodyOf(entry[s]) : null)));
  } catch (error) {
    main.replaceChildren(el("p", { class: "empty bad" }, visible(error.message)));
    return false;
  }
  if (!shown()) return false;
  const known = bodies.filter(Boolean), query = state.q.trim().toLowerCase();
  const offered = [...new Set(known.flatMap(streamsOf))];
  const stream = offered.includes(state.shade) ? state.shade : null;
  const most = stream ? Math.max(...known.map((b) => scaleOf(b, stream))) : 0;
  const view = { query, stream, most, scales: scalesOf(known) };
  main.replaceChildren(
    titleOf(entry), promptOf(known[0], query), toolsOf(offered, stream, most),
    el("div", { class: sides.length > 1 ? "versus" : "" }, sides.map((s, i) => el("section", { class: "run", "data-run": String(i) },
      sides.length > 1 && el("h3", { class: `c${i}` }, visible(runs[i].name)),
      entry[s] ? [groupHead(entry[s], bodies[i]), answersOf(entry[s], bodies[i], entry.passes[s], view)]
        : el("p", { class: "empty" }, "This task is not in this run at this step.")))));
  main.dataset.uid = anyOf(entry).uid;
  markSample();
  return true;
}

function toolsOf(offered, stream, most) {
  return el("div", { class: "tools" },
    el("label", null, "Order ", select("cards", Object.entries(CARD_SORTS).map(([k, [label]]) => [k, label]))),
    offered.length > 0 && el("label", null, "Shade tokens by ", select("shade", [["", "nothing"], ...offered.map((s) => [s, STREAMS[s].label])])),
    stream && legendOf(stream, most),
    button(state.evidence === "1" ? "Hide evidence" : "Show evidence", toggleEvidence, { class: "link", "aria-pressed": String(state.evidence === "1") }));
}

function markSample() {
  for (const node of document.querySelectorAll(".card.chosen")) node.classList.remove("chosen");
  const found = state.sample === null ? [] : runs.map((_, i) => byId(`sample-${i}-${state.sample}`)).filter(Boolean);
  for (const node of found) node.classList.add("chosen");
  if (found.length) found[0].scrollIntoView({ block: "nearest" });
}
