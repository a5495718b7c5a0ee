// What a verdict rests on, for people: names as words, lists as lists, replies and compiler messages as they were said.

const OUTRIGHT = ["error", "message", "problems", "failure"]; // said above the rest, without being asked for
const words = (name) => visible(name).replace(/_/g, " ");
const isPlain = (v) => v === null || ["string", "number", "boolean"].includes(typeof v);
const isLong = (v) => typeof v === "string" && (v.length > 90 || v.includes("\n"));

function plain(value, query) {
  if (value === null) return el("span", { class: "soft" }, "none");
  if (typeof value === "boolean") return el("span", null, value ? "yes" : "no");
  if (typeof value === "number") return el("span", { class: "number" }, num(value, 4));
  return isLong(value) ? verbatim(value, query, "quote") : el("span", { dir: "auto" }, marked(value, query));
}

function shownValue(value, query) {
  if (isPlain(value)) return plain(value, query);
  if (Array.isArray(value)) return shownList(value, query);
  return shownPairs(Object.entries(value), query);
}

function shownList(values, query) {
  if (!values.length) return el("span", { class: "soft" }, "none");
  if (values.every((v) => isPlain(v) && !isLong(v))) {
    return el("span", null, values.map((v, i) => [i ? ", " : "", plain(v, query)]));
  }
  if (values.length > 1 && values.every((v) => v && typeof v === "object" && !Array.isArray(v) && Object.values(v).every((x) => isPlain(x) && !isLong(x)))) {
    return shownTable(values, query);
  }
  return el("ol", { class: "values" }, values.map((v) => el("li", null, shownValue(v, query))));
}

function shownTable(rows, query) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return el("div", { class: "scroll" }, el("table", null,
    el("thead", null, el("tr", null, names.map((n) => el("th", null, words(n))))),
    el("tbody", null, rows.map((r) => el("tr", null, names.map((n) => el("td", null, n in r ? plain(r[n], query) : "")))))));
}

function shownPairs(pairs, query) {
  return el("dl", null, pairs.map(([name, value]) => {
    const below = !isPlain(value) ? !(Array.isArray(value) && value.every((v) => isPlain(v) && !isLong(v))) : isLong(value);
    return [el("dt", { class: below ? "above" : null }, marked(words(name), query)), el("dd", { class: below ? "below" : null }, shownValue(value, query))];
  }));
}

// A judge's votes with the reply that each was read from, one below the other.
function judged(evidence, query) {
  const votes = Array.isArray(evidence.votes) ? evidence.votes : [];
  const replies = Array.isArray(evidence.rationales) ? evidence.rationales : [];
  const judges = Array.isArray(evidence.judges) ? evidence.judges : [];
  return el("div", { class: "judged" },
    el("h5", null, judges.length ? `Judge: ${visible(judges.join(", "))}` : "Judge"),
    Array.from({ length: Math.max(votes.length, replies.length) }, (_, i) => el("div", { class: "reply" },
      el("span", { class: "vote" }, i < votes.length ? `vote ${isPlain(votes[i]) ? visible(typeof votes[i] === "number" ? num(votes[i]) : votes[i]) : "–"}` : "no vote"),
      i < replies.length && verbatim(isPlain(replies[i]) ? replies[i] : JSON.stringify(replies[i], null, 1), query, "quote"))));
}

function compiled(said, query) {
  const { outcome, message, kernels, ...rest } = said;
  return el("div", { class: "judged" },
    el("h5", null, `Compiler${isPlain(outcome) && outcome ? `: ${visible(outcome)}` : ""}`),
    message && verbatim(isPlain(message) ? message : JSON.stringify(message, null, 1), query, "quote"),
    Array.isArray(kernels) && kernels.length > 0 && shownList(kernels, query),
    Object.keys(rest).length > 0 && shownPairs(Object.entries(rest), query));
}

// What went wrong, in the open: errors of ours and problems of the answer.
function complaints(score, query) {
  const evidence = (score && score.evidence) || {};
  const said = OUTRIGHT.filter((name) => evidence[name] !== undefined && evidence[name] !== null && evidence[name] !== "");
  if (!said.length) return null;
  const lines = said.flatMap((name) => (Array.isArray(evidence[name]) ? evidence[name] : [evidence[name]]));
  return el("div", { class: `complaint ${score.status === "errored" ? "errored" : ""}` },
    lines.map((v) => (isPlain(v) ? el("p", { dir: "auto" }, marked(v === null ? "" : String(v), query)) : shownValue(v, query))));
}

function evidenceOf(turn, query) {
  const score = turn.score || {}, evidence = score.evidence || {};
  const known = new Set(OUTRIGHT);
  const blocks = [];
  if (evidence.votes !== undefined || evidence.rationales !== undefined) {
    blocks.push(judged(evidence, query));
    for (const name of ["votes", "rationales", "judges"]) known.add(name);
  }
  if (evidence.compiler && typeof evidence.compiler === "object" && !Array.isArray(evidence.compiler)) {
    blocks.push(compiled(evidence.compiler, query));
    known.add("compiler");
  }
  const rest = Object.entries(evidence).filter(([name]) => !known.has(name));
  if (rest.length) blocks.push(shownPairs(rest, query));
  const metrics = Object.entries(turn.metrics || {});
  if (metrics.length) blocks.push(el("div", { class: "judged" }, el("h5", null, "Measured"), shownPairs(metrics, query)));
  const about = [["verifier", score.verifier], ["policy version", turn.policy_version], ["prompt tokens", turn.prompt_tokens],
    ["answer tokens", turn.completion_tokens], ["sampling ended by", turn.stop_reason]].filter(([, v]) => v !== undefined && v !== null && v !== "");
  if (about.length) blocks.push(el("div", { class: "judged about" }, shownPairs(about, query)));
  return blocks;
}
