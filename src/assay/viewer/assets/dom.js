// Elements, numbers and text. All text goes in as text nodes: nothing of a run is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(create, name, attributes, children) {
  const node = create(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (name, attributes, ...children) => make((n) => document.createElement(n), name, attributes, children);
const svg = (name, attributes, ...children) => make((n) => document.createElementNS(SVG, n), name, attributes, children);
const byId = (id) => document.getElementById(id);

// A number for people: three significant digits, a true minus sign.
function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e9) text = value.toLocaleString("en-US");
  else if (size >= 1e-3 && size < 1e5) text = size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
  else text = value.toExponential(1);
  return text.replaceAll("-", "−");
}
const signed = (value) => (value > 0 ? "+" : "") + num(value);
const count = (n, word, many) => `${n.toLocaleString("en-US")} ${n === 1 ? word : many || word + "s"}`;
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

// Characters that a reader would not see, or that change how others are shown, as visible marks.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const NAMED = { 0: "NUL", 7: "BEL", 8: "BS", 27: "ESC", 127: "DEL" };
function shownCharacter(character) {
  const code = character.charCodeAt(0);
  if (code === 13) return "";
  if (code in NAMED) return `⟨${NAMED[code]}⟩`;
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
const visible = (text) => String(text).replace(HIDDEN, shownCharacter);

// The text as nodes, with what was searched for marked.
function marked(text, query) {
  const shown = visible(text);
  if (!query) return [shown];
  const low = shown.toLowerCase();
  if (low.length !== shown.length) return [shown]; // a few letters change length in lower case: places would be wrong
  const nodes = [];
  let from = 0;
  for (let at = low.indexOf(query); at >= 0 && nodes.length < 2000; at = low.indexOf(query, from)) {
    nodes.push(shown.slice(from, at), el("mark", null, shown.slice(at, at + query.length)));
    from = at + query.length;
  }
  nodes.push(shown.slice(from));
  return nodes;
}

const verbatim = (text, query, kind = "") => el("pre", { class: `text ${kind}`, dir: "auto" }, marked(text, query));
const button = (label, onclick, attributes) => el("button", { type: "button", onclick, ...attributes }, label);
