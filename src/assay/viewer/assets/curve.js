// Reward over steps: mean and middle half of the rollouts, evaluations as dots, alarms, and the step that is open.

const CURVE = { height: 104, left: 46, right: 18, top: 10, bottom: 20, most: 500 };

function thinned(points, most = CURVE.most) {
  if (points.length <= most) return points;
  const bins = [];
  for (let i = 0; i < most; i++) {
    const part = points.slice(Math.floor((i * points.length) / most), Math.floor(((i + 1) * points.length) / most));
    bins.push(part[0].map((_, k) => mean(part.map((p) => p[k]))));
  }
  return bins;
}

function seriesOf(run) {
  const c = run.curve;
  const rows = (...names) => c.step.map((s, i) => [s, ...names.map((n) => c[n][i])]).filter((row) => row.every((v) => v !== null));
  const known = { line: rows("reward/mean"), band: rows("reward_25pct", "reward_75pct"), dots: rows("eval/reward/mean") };
  if (known.line.length || known.dots.length) return known;
  const bySplit = (train) => { // a run without metrics: from its rollouts
    const found = new Map();
    for (const g of run.groups) if ((g.split === "train") === train && g.mean !== null) {
      if (!found.has(g.step)) found.set(g.step, []);
      found.get(g.step).push(g.mean);
    }
    return [...found].map(([step, means]) => [step, mean(means)]);
  };
  return { line: bySplit(true), band: [], dots: bySplit(false) };
}

function niceTicks(low, high, wanted) {
  if (high <= low) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const gap = [1, 2, 5, 10].map((f) => f * power).find((g) => g >= rough * 0.999);
  const ticks = [];
  for (let i = Math.floor(low / gap + 0.1); i <= Math.ceil(high / gap - 0.1); i++) ticks.push(i * gap);
  return ticks;
}

let allSteps = [];
const curve = { frame: null, series: [], node: null };

function prepareCurve() {
  allSteps = [...new Set(entries.map((e) => anyOf(e).step))].sort((a, b) => a - b);
  curve.series = runs.map(seriesOf);
}

function frameOf(width) {
  const steps = [...allSteps, ...curve.series.flatMap((s) => [...s.line, ...s.dots].map((p) => p[0]))];
  const values = curve.series.flatMap((s) => [...s.line.map((p) => p[1]), ...s.dots.map((p) => p[1]), ...s.band.flatMap((p) => [p[1], p[2]])]);
  let low = steps.reduce((a, b) => Math.min(a, b), Infinity), high = steps.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low === high) { low -= 1; high += 1; }
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const ticks = values.length ? niceTicks(least, most, 3) : [0, 1];
  const bottom = ticks[0], top = ticks[ticks.length - 1];
  const x = (s) => CURVE.left + ((s - low) / (high - low)) * (width - CURVE.left - CURVE.right);
  const y = (v) => CURVE.height - CURVE.bottom - ((v - bottom) / (top - bottom || 1)) * (CURVE.height - CURVE.top - CURVE.bottom);
  return { width, low, high, ticks, x, y };
}

function drawCurve() {
  const width = Math.max(320, curve.node.clientWidth);
  const f = (curve.frame = frameOf(width));
  const path = (points) => points.map(([s, v]) => `${f.x(s).toFixed(1)},${f.y(v).toFixed(1)}`).join(" ");
  const grid = f.ticks.map((v) => [
    svg("line", { class: "grid", x1: CURVE.left, x2: width - CURVE.right, y1: f.y(v), y2: f.y(v) }),
    svg("text", { x: CURVE.left - 8, y: f.y(v) + 3.5, "text-anchor": "end" }, num(Number(v.toPrecision(6)))),
  ]);
  const labels = niceTicks(f.low, f.high, Math.max(3, Math.min(10, width / 110)))
    .filter((s) => s >= f.low && s <= f.high && Number.isInteger(s))
    .map((s) => svg("text", { x: f.x(s), y: CURVE.height - 5, "text-anchor": "middle" }, num(s)));
  const drawn = curve.series.map((s, i) => {
    const band = thinned(s.band);
    const around = [...band.map((p) => [p[0], p[2]]), ...band.map((p) => [p[0], p[1]]).reverse()];
    return [
      band.length > 1 && svg("polygon", { class: `band c${i}`, points: path(around) }),
      svg("polyline", { class: `line c${i}`, points: path(thinned(s.line)) }),
      s.dots.map(([at, v]) => svg("circle", { class: `dot c${i}`, cx: f.x(at), cy: f.y(v), r: 3.2 },
        svg("title", null, `${runs[i].name}: evaluation after step ${at}: ${num(v)}`))),
    ];
  });
  const alarms = runs.flatMap((run) => run.events.filter((e) => e.step !== null && isAlarm(e)).slice(0, 300).map((e) => {
    const x = f.x(e.step), y = CURVE.height - CURVE.bottom;
    return svg("path", { class: "alarm", d: `M${x - 4},${y} L${x + 4},${y} L${x},${y - 7} Z` },
      svg("title", null, visible(`Step ${e.step}, ${e.level}: ${e.message}`.slice(0, 600))));
  }));
  const here = svg("line", { class: "here", id: "here", x1: 0, x2: 0, y1: CURVE.top - 4, y2: CURVE.height - CURVE.bottom });
  curve.node.replaceChildren(svg("svg", {
    viewBox: `0 0 ${width} ${CURVE.height}`, width, height: CURVE.height, role: "img", "aria-label": "Mean reward over steps",
    onclick: (event) => toStep(stepAt(event)),
  }, grid, labels, drawn, alarms, here));
  const slider = byId("slider");
  slider.min = f.low;
  slider.max = f.high;
  showStep();
}

function stepAt(event) {
  const f = curve.frame, box = curve.node.getBoundingClientRect();
  return f.low + ((event.clientX - box.left - CURVE.left) / (f.width - CURVE.left - CURVE.right)) * (f.high - f.low);
}

function nearestStep(wanted) {
  return allSteps.reduce((best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best), allSteps[0]);
}

function showStep() {
  if (!curve.frame || state.step === null) return;
  const x = curve.frame.x(state.step);
  for (const end of ["x1", "x2"]) byId("here").setAttribute(end, x);
  byId("slider").value = state.step;
  byId("slider").setAttribute("aria-valuetext", `step ${state.step}`);
}

const isAlarm = (event) => event.level !== "info";

function alarmsPanel() {
  const all = runs.flatMap((run, i) => run.events.map((e) => ({ ...e, run, i })));
  if (!all.length) return null;
  const more = runs.reduce((n, run) => n + run.more_events, 0);
  const alarms = all.filter(isAlarm).length, notes = all.length - alarms;
  return el("details", { id: "alarms", class: alarms ? "bad" : null },
    el("summary", null, [alarms && count(alarms, "alarm"), notes && count(notes, "note"), more && `${more} more`].filter(Boolean).join(", ")),
    el("ul", null, all.slice(0, 300).map((e) => el("li", null,
      button(`step ${e.step}`, () => toStep(e.step), { class: `link c${e.i}` }),
      el("span", { class: `level ${isAlarm(e) ? "bad" : ""}` }, visible(e.level)),
      el("span", { class: "said", dir: "auto" }, visible(e.message))))),
    all.length + more > 300 && el("p", { class: "note" }, "More are in events.jsonl."));
}
