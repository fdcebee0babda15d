// Nodes × cards as a heat map, totals, what needs a person first, which node to drain, who wastes most.
import { Asked, asked } from "./asked.js";
import { Capacity, Namespaces } from "./capacity.js";
import { Component, Copy, Pairs, Spark, gib, html, link, percent } from "./parts.js";
import { History } from "./history.js";
import { by_claims, figures, totals, troubles, wasters } from "./model.js";
import { local } from "./sentences.js";
import { t } from "./words.js";

const MEASURES = {
  booked: ["Cores booked", (card) => figures(card).booked],
  used: ["Cores used", (card) => figures(card).used],
  memory: ["Memory booked", (card) => figures(card).memory],
  memory_used: ["Memory used", (card) => figures(card).memory_used],
  health: ["Health", (card) => (figures(card).closed ? 1 : 0)],
  fragmentation: ["Fragmentation", (card) => figures(card).stranded],
};
const ORDERS = { name: "Name", fullest: "Fullest first", emptiest: "Emptiest first" };
const MARKS = { unhealthy: "✕", cordoned: "‖", mig: "M", closed: "–", lent: "=" };
const SHOWN = 6;

export function Overview({ model, params, source }) {
  const by = MEASURES[params.get("by")] ? params.get("by") : "booked";
  const order = ORDERS[params.get("order")] ? params.get("order") : "name";
  const nodes = model.sorted;
  if (order !== "name") nodes.sort((a, b) => (order === "fullest" ? -1 : 1) * (load(a) - load(b)));
  return html`<h1 tabindex="-1">${t("Overview")}</h1>
    <${Capacity} model=${model} source=${source} />
    <${Asked} source=${source} path=${asked("ui/trends", source)} every=${30} lacks=${(answer) => !Object.keys(answer.cards).length}>${(answer) => html`<${Attention} model=${model} waiting=${answer?.waiting || []} />
    <section aria-labelledby="heat-title"><h2 id="heat-title">${t("Cards")}</h2>
      <div class="switches"><${Switch} name="by" label=${t("Colour by")} choices=${Object.entries(MEASURES).map(([key, [text]]) => [key, text])} chosen=${by} others=${{ order }} />
        <${Switch} name="order" label=${t("Order")} choices=${Object.entries(ORDERS)} chosen=${order} others=${{ by }} /></div>
      <${Legend} by=${by} />
      ${nodes.length ? html`<ul class="heat" onKeyDown=${steer} onFocusIn=${rove}>
        ${nodes.map((node, at) => html`<${HeatRow} key=${node.node} node=${node} by=${by} first=${at === 0} words=${t("Cards")} trends=${answer?.cards} />`)}</ul>`
        : html`<p class="none">${t("No node publishes cards.")}</p>`}
    </section>`}<//>
    <${Totals} model=${model} nodes=${nodes} />
    <${Namespaces} model=${model} />
    <div class="lists"><${Drain} nodes=${nodes} /><${Waste} model=${model} /></div>
    <${History} ...${{ model, source, params }} subject="cluster" names=${() => [null, t("Total")]} />`;
}

const load = (node) => totals(node).booked / Math.max(1, totals(node).cards);

function Totals({ model, nodes }) {
  const all = nodes.map(totals);
  const add = (name) => all.reduce((total, one) => total + one[name], 0);
  const hidden = model.rest.left_out || { nodes: 0, waiting: 0 };
  const rows = [
    [t("Nodes"), hidden.nodes ? t("{0}, the fullest of {1}", nodes.length, nodes.length + hidden.nodes) : nodes.length],
    [t("Cards"), add("cards")],
    [t("Not usable"), add("closed")],
    [t("Cores booked"), add("cards") ? percent(add("booked") / (100 * add("cards"))) : "–"],
    [t("Memory booked"), t("{0} of {1}", gib(add("memory_booked")), gib(add("memory")))],
    [t("Booked cores in use"), add("measured") ? percent(add("used") / add("measured")) : "–"],
    [t("Fragmentation"), add("free") ? percent(add("stranded") / add("free")) : "–"],
    [t("Containers"), add("containers")],
  ];
  return html`<section aria-label=${t("Total")}><${Pairs} rows=${rows} /></section>`;
}

const TROUBLES = {
  unhealthy: "Card {0} of {1} is unhealthy",
  stuck: "Pod {0} holds cards and does not run: container {1}, {2}",
  node: "Node {0} takes no pods",
  waits: "Container {1} of pod {0} waited for its share {2} of the last minute",
  gone: "A deleted pod's processes still run on card {0} of {1}",
  never: "Pod {0} can never run as it is",
  emptied: "Card {0} of {1} is cordoned and empty: it can be serviced",
};

const CURES = {
  unhealthy: ([, uuid]) => `kubectl vcuda cordon ${uuid}`,
  stuck: ([, namespace, pod]) => `kubectl -n ${namespace} describe pod ${pod}`,
  waits: ([, namespace, pod]) => `kubectl vcuda advise ${pod} -n ${namespace}`,
  never: ([, namespace, pod]) => `kubectl vcuda explain ${pod} -n ${namespace}`,
  emptied: ([, uuid]) => `kubectl vcuda uncordon ${uuid}`,
};

// The pods that their limit holds back come last: that may be what somebody wanted.
function Attention({ model, waiting }) {
  const held = waiting.map((one) => ["waits", ["pod", one.namespace, one.pod], [`${one.namespace}/${one.pod}`, one.container, percent(Math.min(1, one.waited))], ""]);
  const found = [...troubles(model), ...held];
  return html`<section aria-labelledby="first-title"><h2 id="first-title">${t("Needs attention")}</h2>
    ${found.length ? html`<ul class="troubles">${found.slice(0, SHOWN).map(([kind, where, name, text]) => html`<li key=${kind + name.join(" ")} class=${kind}>
      <a href=${link(where)}>${t(TROUBLES[kind], ...name)}</a>${text ? html`<span>${local(text)}</span>` : null}${CURES[kind] ? html`<span class="cure"><code>${CURES[kind](where, name)}</code><${Copy} text=${CURES[kind](where, name)} /></span>` : null}</li>`)}</ul>
      ${found.length > SHOWN ? html`<p class="none">${t("and {0} more", found.length - SHOWN)}</p>` : null}`
      : html`<p class="none">${t("Nothing: all cards are usable, and no pod is stuck.")}</p>`}</section>`;
}

function Switch({ name, label, choices, chosen, others }) {
  return html`<p class="switch"><span>${label}</span>${choices.map(([key, text]) => html`<a key=${key}
    href=${link(["overview"], { ...others, [name]: key })} aria-current=${key === chosen ? "true" : null}>${t(text)}</a>`)}</p>`;
}

function Legend({ by }) {
  if (by === "health") return html`<p class="legend">${[["unhealthy", "unhealthy"], ["cordoned", "cordoned"], ["mig", "in MIG mode"], ["closed", "takes no pods"], ["lent", "given away whole"]].map(([kind, text]) =>
    html`<span key=${kind}><b class="cell ${kind}">${MARKS[kind]}</b> ${t(text)}</span>`)}</p>`;
  return html`<p class="legend">${[0, 1, 2, 3, 4, 5].map((level) => html`<b key=${level} class="cell l${level}">${level * 20}</b>`)}<span>%</span>
    <span><b class="cell blank"></b> ${t("not known")}</span><span><b class="cell unhealthy">✕</b> ${t("not usable")}</span></p>`;
}

class HeatRow extends Component {
  shouldComponentUpdate(next) {
    const now = this.props;
    return next.node !== now.node || next.by !== now.by || next.first !== now.first || next.words !== now.words || next.node.cards.some(({ uuid }) => `${next.trends?.[uuid]}` !== `${now.trends?.[uuid]}`);
  }

  render({ node, by, first, trends }) {
    const [text, measure] = MEASURES[by];
    return html`<li><a class="name" href=${link(["node", node.node])} title=${node.node}>${node.node}</a><span class="cells">${node.cards.map((card, at) => {
      const value = measure(card);
      const state = figures(card).closed;
      const level = value === null ? "blank" : `l${Math.min(5, Math.ceil(value * 5 - 1e-9))}`;
      const shown = by === "health" ? MARKS[state] || "" : value === null ? "" : Math.round(value * 100);
      const said = by === "health" ? "" : `, ${t(text)} ${percent(value)}`;
      const away = state ? `, ${t(WORDS[state])}` : by_claims(card) ? `, ${t("given by ResourceClaims")}` : "";
      const label = `${t("card {0} of {1}", card.index, node.node)}, ${card.model}${said}${away}`;
      return html`<a key=${card.uuid} class=${`cell ${by === "health" ? state || "l0" : level}${state ? ` shut ${state}` : ""}`} href=${link(["card", card.uuid])}
        tabindex=${first && at === 0 ? "0" : "-1"} aria-label=${label} title=${label}>${state && by !== "health" ? `${MARKS[state]}` : shown}<${Spark} values=${trends?.[card.uuid]} /></a>`;
    })}</span></li>`;
  }
}

export const WORDS = { unhealthy: "unhealthy", cordoned: "cordoned", mig: "in MIG mode", closed: "takes no pods", lent: "given away whole" };

// One stop for the Tab key in the whole map; arrows go on from there.
function rove(event) {
  if (!event.target.classList.contains("cell")) return;
  for (const cell of event.currentTarget.querySelectorAll('.cell[tabindex="0"]')) cell.tabIndex = -1;
  event.target.tabIndex = 0;
}

function steer(event) {
  const cell = event.target.closest(".cell");
  if (!cell) return;
  const row = cell.parentElement;
  const at = [...row.children].indexOf(cell);
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const line = { ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[event.key];
  const cells = step ? row.children : row.parentElement[line]?.querySelector(".cells").children;
  if (!step && !line) return;
  event.preventDefault();
  cells?.[Math.min(cells.length - 1, step ? at + step : at)]?.focus();
}

function Drain({ nodes }) {
  const rows = nodes.filter((node) => totals(node).containers).sort((a, b) => totals(a).booked - totals(b).booked || totals(a).containers - totals(b).containers).slice(0, 5);
  if (rows.length < 2) return null;
  return html`<section aria-labelledby="drain-title"><h2 id="drain-title">${t("Easiest to drain")}</h2><ol>${rows.map((node) => html`<li key=${node.node}>
    <a href=${link(["node", node.node])}>${node.node}</a> <span>${t("{0} pods, {1} cores", totals(node).pods ?? "–", totals(node).booked)}</span></li>`)}</ol></section>`;
}

function Waste({ model }) {
  const rows = wasters(model);
  if (!rows.length) return null;
  return html`<section aria-labelledby="waste-title"><h2 id="waste-title">${t("Most cores booked and idle now")}</h2><ol>${rows.map(([pod, idle, booked]) => html`<li key=${pod}>
    <a href=${link(["pod", ...pod.split("/")])}>${pod}</a> <span>${t("{0} of {1} cores idle", Math.round(idle), booked)}</span></li>`)}</ol>
    ${model.rest.waiting ? html`<p><a href=${link(["waste"])}>${t("Who wastes most")}</a></p>` : null}</section>`;
}
