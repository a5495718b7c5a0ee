// The run's data: the index at once, texts in chunks when they are needed.

const STATUS = ["scored", "invalid", "errored"];
const served = document.documentElement.hasAttribute("data-served");
const runs = [];
const KEPT_CHUNKS = 48;
const chunks = new Map(); // "run-chunk" -> promise of its groups, least recently used first

function decoded(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Texts follow the script in the file: they may not have arrived yet.
async function embedded(id) {
  if (!byId(id) && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  const node = byId(id);
  if (!node) throw new Error(`The page is not whole: ${id} is missing. Write it again with assay view.`);
  return decoded(node.textContent);
}

async function fetched(path) {
  const reply = await fetch(path);
  if (!reply.ok) throw new Error(`assay view did not give ${path} (${reply.status}): ${await reply.text()}`);
  return new Uint8Array(await reply.arrayBuffer());
}

function chunk(run, number) {
  const name = `${run}-${number}`;
  let found = chunks.get(name);
  if (found) chunks.delete(name);
  else {
    found = (served ? fetched(`chunk/${run}/${number}`) : embedded(`chunk-${name}`)).then(unpacked);
    found.catch(() => chunks.delete(name));
  }
  chunks.set(name, found);
  if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
  return found;
}

async function bodyOf(group) {
  const body = (await chunk(group.run, group.chunk))[group.place];
  if (!body) throw new Error("The run has changed since this page was loaded. Reload it.");
  return body;
}

// A group of the index with its rollouts as columns; `uid` tells it from every other one of the page.
function groupsOf(data, run) {
  const columns = data.groups, all = data.rollouts;
  let first = 0;
  return columns.step.map((step, i) => {
    const cut = (values) => values.slice(first, first + columns.count[i]);
    const group = {
      uid: `${run}:${i}`, run, step, committed: data.committed !== null && step <= data.committed, phase: columns.phase[i], index: columns.index[i], split: columns.split[i],
      group: columns.group[i], env: columns.env[i], task: columns.task[i], key: columns.key[i],
      snippet: columns.snippet[i], tags: columns.tags[i].map((t) => data.tags[t]), chunk: columns.chunk[i],
      place: columns.place[i], tokens: Boolean(columns.tokens[i]), size: columns.count[i],
      rewards: cut(all.reward), advantages: cut(all.advantage), statuses: cut(all.status),
      truncated: cut(all.truncated).map(Boolean), turns: cut(all.turns), lengths: cut(all.length),
    };
    const known = group.rewards.filter((r) => r !== null);
    group.mean = mean(known);
    group.spread = known.length ? Math.max(...known) - Math.min(...known) : 0;
    first += columns.count[i];
    return group;
  });
}

// Two runs: the same task at the same step of the same split, in the order in which it comes there.
function paired(first, second) {
  const waiting = new Map();
  const nameOf = (group) => JSON.stringify([group.step, group.split, group.key]);
  for (const group of second) {
    if (!waiting.has(nameOf(group))) waiting.set(nameOf(group), []);
    waiting.get(nameOf(group)).push(group);
  }
  const entries = first.map((group) => ({ a: group, b: (waiting.get(nameOf(group)) || []).shift() || null }));
  for (const rest of waiting.values()) for (const group of rest) entries.push({ a: null, b: group });
  const splits = (group) => (group.split === "train" ? 0 : 1);
  return entries.sort((x, y) => {
    const p = x.a || x.b, q = y.a || y.b;
    return p.step - q.step || splits(p) - splits(q) || p.group - q.group;
  });
}

let entries = []; // what the list shows: {a, b}, one of which may be null; b always is with one run
const anyOf = (entry) => entry.a || entry.b;
const sidesOf = (entry) => [entry.a, entry.b].filter(Boolean);

// How far the second run's steps are moved so that RL batches of one number meet: it may have had more supervised steps.
let shift = 0;
function align([first, second]) {
  const before = (run) => { const g = run.groups.find((one) => one.phase === "rl"); return g ? g.step - g.index : null; };
  if (!second || before(first) === null || before(second) === null) return;
  shift = before(first) - before(second);
  for (const item of [...second.groups, ...second.events]) if (item.step !== null) item.step += shift;
  second.curve.step = second.curve.step.map((step) => step + shift);
}

async function loadIndex() {
  const index = await unpacked(decoded(byId("index").textContent));
  index.runs.forEach((data, i) => runs.push({ ...data, groups: groupsOf(data, i), rollouts: null }));
  align(runs);
  entries = runs.length > 1 ? paired(runs[0].groups, runs[1].groups) : runs[0].groups.map((a) => ({ a, b: null }));
  entries.forEach((entry, i) => { entry.order = i; });
}
