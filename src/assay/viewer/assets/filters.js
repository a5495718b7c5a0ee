// What is looked for: the state of the page, kept in the address, and which groups and rollouts it lets through.

const state = {
  step: null, group: null, split: null, sample: null, // the group that is open
  q: "", steps: "", reward: "", splits: "", tag: "", status: "", only: "", // filters
  sort: "step", cards: "sample", shade: "", evidence: "", // how it is shown
};
const FILTERS = ["q", "steps", "reward", "splits", "tag", "status", "only"];

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(state)) {
    const value = given.get(key);
    const isNumber = ["step", "group", "sample"].includes(key);
    if (isNumber) state[key] = value !== null && /^-?\d+$/.test(value) ? Number(value) : null;
    else state[key] = value !== null ? value.slice(0, 500) : { split: null, sort: "step", cards: "sample" }[key] ?? "";
  }
}

function writeHash() {
  const given = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    const usual = { sort: "step", cards: "sample" }[key];
    if (value !== null && value !== "" && value !== usual) given.set(key, value);
  }
  const hash = "#" + given.toString();
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

// "3-9", "3-", "-9", "5"; rewards as "0..0.5". Null where it is not a range.
function rangeOf(text, separator) {
  const trimmed = text.trim();
  if (!trimmed) return [-Infinity, Infinity];
  const at = trimmed.indexOf(separator, separator === "-" ? 0 : undefined);
  const parts = at < 0 ? [trimmed, trimmed] : [trimmed.slice(0, at), trimmed.slice(at + separator.length)];
  const low = parts[0].trim() === "" ? -Infinity : Number(parts[0]);
  const high = parts[1].trim() === "" ? Infinity : Number(parts[1]);
  return Number.isNaN(low) || Number.isNaN(high) ? null : [low, high];
}

const search = { query: "", hits: new Map(), done: 0, total: 0, failure: "" }; // hits: uid -> samples, or "all"

// Of a group: whether each of its rollouts passes; null where the group as a whole does not.
function passing(group, filter) {
  if (group.step < filter.steps[0] || group.step > filter.steps[1]) return null;
  if (filter.splits && group.split !== filter.splits) return null;
  if (filter.tag && !group.tags.includes(filter.tag)) return null;
  const hits = filter.q ? search.hits.get(group.uid) : "all";
  if (!hits) return null;
  let any = false;
  const found = group.rewards.map((reward, i) => {
    const named = [STATUS[group.statuses[i]], group.truncated[i] ? "truncated" : ""];
    const passes = (!filter.status.length || filter.status.some((s) => named.includes(s))) &&
      (!filter.bounded || (reward !== null && reward >= filter.reward[0] && reward <= filter.reward[1])) &&
      (hits === "all" || hits.has(i));
    any = any || passes;
    return passes;
  });
  return any ? found : null;
}

function currentFilter() {
  const reward = rangeOf(state.reward, "..") || [-Infinity, Infinity];
  return {
    q: state.q.trim().toLowerCase(), steps: rangeOf(state.steps, "-") || [-Infinity, Infinity], reward,
    bounded: Number.isFinite(reward[0]) || Number.isFinite(reward[1]), splits: state.splits, tag: state.tag,
    status: state.status ? state.status.split(",") : [],
  };
}

const spreadOf = (entry) => Math.max(...sidesOf(entry).map((g) => g.spread));
const gapOf = (entry) => (entry.a && entry.b && entry.a.mean !== null && entry.b.mean !== null ? entry.b.mean - entry.a.mean : null);
const longestOf = (entry) => Math.max(...sidesOf(entry).flatMap((g) => g.lengths));
const ascending = (of) => (x, y) => {
  const p = of(x), q = of(y);
  return (p === null) - (q === null) || p - q || x.order - y.order; // what is not known comes last
};
const negated = (of) => (x) => (of(x) === null ? null : -of(x));
const SORTS = {
  step: ["step", (x, y) => x.order - y.order],
  reward: ["reward, lowest first", ascending((e) => anyOf(e).mean)],
  "-reward": ["reward, highest first", ascending(negated((e) => anyOf(e).mean))],
  "-spread": ["spread of reward", ascending((e) => -spreadOf(e))],
  "-length": ["longest answer", ascending((e) => -longestOf(e))],
  gap: ["loss against the first run", ascending(gapOf)],
  "-gap": ["gain over the first run", ascending(negated(gapOf))],
};

function filtered() {
  const filter = currentFilter();
  const kept = [];
  for (const entry of entries) {
    if (state.only === "both" && !(entry.a && entry.b)) continue;
    const a = entry.a && passing(entry.a, filter), b = entry.b && passing(entry.b, filter);
    const none = (group) => group && group.rewards.map(() => false);
    if (a || b) kept.push({ ...entry, passes: { a: a || none(entry.a), b: b || none(entry.b) } });
  }
  return kept.sort((SORTS[state.sort] || SORTS.step)[1]);
}

function textsOf(value, found) {
  if (typeof value === "string") found.push(value);
  else if (Array.isArray(value)) for (const item of value) textsOf(item, found);
  else if (value && typeof value === "object") for (const [k, v] of Object.entries(value)) { found.push(k); textsOf(v, found); }
  return found;
}

const says = (value, query) => textsOf(value, []).some((text) => text.toLowerCase().includes(query));

function hitsIn(body, group, query) {
  if (says([body.messages, group.task, group.key, group.tags], query)) return "all";
  const samples = new Set();
  body.rollouts.forEach((rollout, i) => {
    const said = rollout.turns.map((t) => [t.text, t.thought, t.observation, t.messages, t.score && t.score.evidence]);
    if (says(said, query)) samples.add(i);
  });
  return samples.size ? samples : null;
}

// Every chunk is read once; whoever listens hears of it now and then. A newer search ends an older one.
async function runSearch(query, heard) {
  Object.assign(search, { query, hits: new Map(), done: 0, total: 0, failure: "" });
  if (!query) return heard();
  const work = runs.flatMap((run, r) => [...new Set(run.groups.map((g) => g.chunk))].map((c) => [r, c]));
  search.total = work.length;
  const inChunk = new Map();
  for (const run of runs) for (const g of run.groups) {
    const name = `${g.run}-${g.chunk}`;
    if (!inChunk.has(name)) inChunk.set(name, []);
    inChunk.get(name).push(g);
  }
  let told = performance.now();
  for (const [place, [r, c]] of work.entries()) {
    let bodies;
    if (place + 1 < work.length) chunk(...work[place + 1]); // on its way while this one is read
    try { bodies = await chunk(r, c); } catch (error) { search.failure = error.message; break; }
    if (search.query !== query) return;
    for (const group of inChunk.get(`${r}-${c}`)) {
      const hits = bodies[group.place] && hitsIn(bodies[group.place], group, query);
      if (hits) search.hits.set(group.uid, hits);
    }
    search.done += 1;
    if (performance.now() - told > 150) { heard(); await new Promise((go) => setTimeout(go)); told = performance.now(); }
    if (search.query !== query) return;
  }
  heard();
}
