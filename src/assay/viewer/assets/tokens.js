// Values per token as shading of the text: how much each token was pushed, and how far the policy that was trained is
// from the one that sampled. `least`: the size that has the full colour at the least, so that noise does not look like much.

const STREAMS = {
  advantages: { label: "advantage", low: "pushed down", high: "pushed up", least: 0 },
  log_ratios: { label: "log-ratio", low: "less likely than when sampled", high: "more likely", least: 0.1 },
  logprobs: { label: "log-probability", low: "unlikely when sampled", high: "", least: 1 },
};

const streamsOf = (body) => Object.keys(STREAMS).filter((name) => body.rollouts.some((r) => r.turns.some((t) =>
  t.tokens && (t.tokens[name] || []).some((v) => v !== null))));

// The largest size of a stream's values in a group, so that its answers can be compared by their shades.
function scaleOf(body, stream) {
  let most = STREAMS[stream].least;
  for (const r of body.rollouts) for (const t of r.turns) for (const v of (t.tokens && t.tokens[stream]) || []) {
    if (v !== null) most = Math.max(most, Math.abs(v));
  }
  return most;
}

function shade(node, value, most) {
  if (value === null || value === undefined || !most) return;
  const part = Math.min(1, Math.abs(value) / most);
  if (part < 0.02) return;
  node.classList.add(value > 0 ? "up" : "down");
  node.style.setProperty("--by", `${Math.round(7 + part * 50)}%`);
}

// Thousands of tokens are filled in when they come into sight.
const inSight = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) if (isIntersecting) { inSight.unobserve(target); target.fill(); }
}, { rootMargin: "400px" });

function shadedText(tokens, stream, most, query) {
  const node = el("pre", { class: "text tokens", dir: "auto" }, marked(tokens.pieces.join(""), query));
  node.fill = () => node.replaceChildren(...tokens.pieces.map((piece, i) => {
    const token = el("span", { "data-i": i }, visible(piece));
    shade(token, (tokens[stream] || [])[i], most);
    return token;
  }));
  node.addEventListener("mouseover", (event) => {
    const at = event.target.dataset && event.target.dataset.i;
    if (at !== undefined) showTip(event.target, tokens, Number(at));
  });
  node.addEventListener("mouseleave", hideTip);
  inSight.observe(node);
  return node;
}

function showTip(target, tokens, i) {
  const tip = byId("tip"), logprob = (tokens.logprobs || [])[i];
  const rows = Object.entries(STREAMS).filter(([name]) => tokens[name] && tokens[name][i] !== undefined && tokens[name][i] !== null)
    .map(([name, { label }]) => [label, name === "logprobs" ? num(tokens[name][i]) : signed(tokens[name][i])]);
  if (logprob !== undefined && logprob !== null) rows.push(["probability", num(Math.exp(logprob))]);
  tip.replaceChildren(el("code", null, visible(JSON.stringify(tokens.pieces[i]))),
    el("dl", null, rows.map(([k, v]) => [el("dt", null, k), el("dd", null, v)])));
  tip.hidden = false;
  const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(box.left, innerWidth - size.width - 10))}px`;
  tip.style.top = `${box.bottom + size.height + 12 > innerHeight ? box.top - size.height - 6 : box.bottom + 6}px`;
}

function hideTip() { byId("tip").hidden = true; }

function legendOf(stream, most) {
  const { low, high } = STREAMS[stream];
  return el("span", { class: "scale" }, low, el("span", { class: "number" }, num(-most)), el("i", { class: "ramp" }),
    el("span", { class: "number" }, high ? `+${num(most)}` : "0"), high);
}
