// What several views draw with: templates, addresses, figures as text, bars, tables.
import { h, Component } from "./preact.mjs";
import htm from "./htm.module.js";
import { pods_of } from "./model.js";
import { local } from "./sentences.js";
import { t } from "./words.js";

export { Component };
export const html = htm.bind(h);
export const GIB = 2 ** 30;

// The address is the state: #/view/argument/…?name=value. `namespace` and `range` go along with every link.
export function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...args] = path.split("/").map(unescaped);
  return { view: view || "overview", args, params: new URLSearchParams(query || "") };
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(path, params = {}) {
  const query = new URLSearchParams(params);
  const now = address().params;
  for (const name of ["namespace", "range"]) if (now.get(name)) query.set(name, now.get(name));
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const gib = (bytes) => (bytes > 0 && bytes < GIB / 10 ? `${Math.ceil(bytes / 2 ** 20)} MiB` : `${+(bytes / GIB).toFixed(bytes < GIB ? 2 : 1)} GiB`);
export const percent = (ratio) => (ratio === null ? "–" : `${Math.round(ratio * 100)} %`);
export const cores = (ratio) => (ratio === null ? "–" : `${Math.round(ratio * 100)}`);

// `created`: RFC 3339, or milliseconds since 1970.
export function age(created, now = Date.now()) {
  const seconds = Math.round((now - new Date(created)) / 1000);
  if (!Number.isFinite(seconds)) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([most]) => seconds >= most) || [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

// A moment as 2026-09-21 14:28 UTC: 24 hours, by the reader's clock, the same in all languages.
export const DAY = { year: "numeric", month: "2-digit", day: "2-digit" };
export const time = (ms, fields) => new Date(ms).toLocaleString("sv", fields);

// Colours that eyes without red or green tell apart. A name keeps the colour that it was given first on every page of
// the tab, and a new name gets the one that fewest have: the pages of one card or pod show no two alike.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a7fc7", "#a0522d"];
const MOST_NAMES = 4096;
const given = new Map();

export const colours = (holders) => {
  const found = lineColours(holders.map(named));
  return new Map(holders.map((holder, at) => [holder, found[at]]));
};

export function lineColours(names) {
  const beside = names.map((name) => given.get(name)).filter((hue) => hue !== undefined);
  return names.map((name) => {
    if (!given.has(name)) {
      if (given.size >= MOST_NAMES) given.clear();
      const counts = COLOURS.map((_, at) => [beside.filter((hue) => hue === at).length, hashed(name + at), at]);
      const [[, , best]] = counts.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      given.set(name, best);
      beside.push(best);
    }
    return COLOURS[given.get(name)];
  });
}

function hashed(text) {
  let hash = 2166136261;
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return hash >>> 0;
}

// A text that a click copies: a UUID, the command that cures.
export class Copy extends Component {
  constructor(props) {
    super(props);
    this.state = { done: false };
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.props.text);
      this.setState({ done: true });
      setTimeout(() => this.setState({ done: false }), 1500);
    } catch {
      this.base?.previousSibling && getSelection().selectAllChildren(this.base.previousSibling); // the reader presses Ctrl+C
    }
  }

  render({ text }, { done }) {
    return html`<button type="button" class="copy" aria-label=${t("Copy {0}", text)} title=${t("Copy {0}", text)} onClick=${() => this.copy()}>${done ? t("copied") : t("copy")}</button>`;
  }
}

// A line of percents without axes, as wide as what is around it; nothing where less than two are known.
export function Spark({ values, most = 100 }) {
  if (!values || values.filter((value) => value !== null).length < 2) return null;
  let path = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const begins = (values[at - 1] ?? null) === null;
    path += `${begins ? "M" : "L"}${((100 * at) / (values.length - 1)).toFixed(1)} ${(19 - (18 * Math.min(value, most)) / most).toFixed(1)}`;
  });
  return html`<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path d=${path} /></svg>`;
}

export function named(holder) {
  if (holder.hidden) return t("name not shown");
  if (typeof holder.gone === "string") return t("gone, its processes still run (pod {0})", holder.gone || "?");
  return `${holder.namespace}/${holder.pod} ${holder.container}`;
}

// A share's priority inside its card, "" for a normal one.
const PRIORITIES = { protected: "protected", "best-effort": "best-effort" };
export const priority_of = (holder) => (PRIORITIES[holder.priority] ? t(PRIORITIES[holder.priority]) : "");
export const state_of = (holder) => holder.stuck || (holder.planned ? t("not started yet") : holder.ended ? t("ended") : holder.admin ? t("admin access") : "");
export const State = ({ holder }) => (holder.stuck ? html`<span class="bad">${holder.stuck}</span>` : state_of(holder) || t("running"));

const size = ({ cores, memory }) => t("{0} cores, {1}", cores, gib(memory));
const STAGES = {
  asked: "asks for {0}, not answered yet",
  refused: "asks for {0}, refused: {2}",
  reserved: "{0} are reserved, of which it has {1}",
  done: "resized to {0}, its spec has {3}",
};

// How far a holder's resize is, in words; "" if it has the size of its spec.
export function resize(holder) {
  const found = holder.resize;
  if (!found) return "";
  return t(STAGES[found.stage] || STAGES.asked, size(found.wanted), found.held ? size(found.held) : "–", local(found.why), size(found.spec));
}

export function PodLink({ holder }) {
  if (holder.hidden || typeof holder.gone === "string") return html`<span>${named(holder)}</span>`;
  const pods = pods_of(holder);
  if (!pods.length) return html`<span>${named(holder)}</span>`;
  return html`${pods.map((pod, at) => html`${at ? ", " : ""}<a key=${pod} href=${link(["pod", ...pod.split("/")])}>${pod}</a>`)} ${holder.container}`;
}

export function Pairs({ rows }) {
  return html`<dl>${rows.map(([term, value]) => html`<div key=${term}><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// Parts of a whole, each filled as far as it is used; what it says stands beside it as text.
export function Bar({ parts, thin }) {
  return html`<div class=${thin ? "bar thin" : "bar"} aria-hidden="true">${parts.map((one, at) => html`
    <div key=${at} class=${one.planned ? "part planned" : "part"} title=${one.title}
      style=${{ width: `${100 * one.share}%`, "--hue": one.hue }}><i style=${{ width: `${100 * Math.min(1, one.used || 0)}%` }}></i></div>`)}</div>`;
}

// Rows of cells under their titles; on a narrow screen a row is a block and each cell carries its title. A column of
// figures ends at one line, so that the eye compares them. `widths`: percent, for tables that stand one above the other.
export function Table({ titles, rows, label, widths }) {
  const kinds = titles.map((_, at) => (rows.every(({ cells }) => FIGURE.test(cells[at])) ? "figure" : null));
  const width = (at) => (widths ? { width: `${widths[at]}%` } : null);
  return html`<table aria-label=${label} class=${widths ? "even" : null}><thead><tr>${titles.map((title, at) => html`<th scope="col" key=${title} class=${kinds[at]} style=${width(at)}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}>${row.cells.map((cell, at) => html`<td key=${at} class=${kinds[at]} data-title=${titles[at]}>${cell}</td>`)}</tr>`)}</tbody></table>`;
}

const FIGURE = /^(–|(< )?[\d.]+( %| [MG]iB)?)$/;

// The colour that a container has in bars and charts.
export const Swatch = ({ hue }) => html`<b class="swatch" style=${{ "--hue": hue }} aria-hidden="true"></b>`;
