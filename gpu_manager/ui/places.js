// One node, one card, one pod.
import { Asked, asked } from "./asked.js";
import { Bar, Component, Copy, DAY, Pairs, PodLink, State as Runs, Swatch, Table, age, colours, cores, gib, html, link, named, percent, priority_of, resize, state_of, time } from "./parts.js";
import { by_claims, figures, instances, running, totals } from "./model.js";
import { History } from "./history.js";
import { WORDS } from "./overview.js";
import { local } from "./sentences.js";
import { t } from "./words.js";

export function Node({ model, args, source, params }) {
  const node = model.nodes.get(args[0]);
  if (!node) return html`<${Missing} what=${t("Node {0}", args[0] || "")} />`;
  const sum = totals(node);
  return html`<h1 tabindex="-1">${t("Node {0}", node.node)}</h1>
    <${Pairs} rows=${[
      [t("Cards"), sum.cards],
      [t("Not usable"), sum.closed],
      [t("Cores booked"), t("{0} of {1}", sum.booked, 100 * sum.cards)],
      [t("Memory booked"), t("{0} of {1}", gib(sum.memory_booked), gib(sum.memory))],
      [t("Booked cores in use"), sum.measured ? percent(sum.used / sum.measured) : "–"],
      [t("Fragmentation"), percent(sum.fragmentation)],
      [t("Containers"), sum.containers],
      [t("Pods"), sum.pods === null ? "–" : sum.pods],
    ]} />
    <${Kept} kept=${node.kept} />
    <p class="legend"><span><b class="key used"></b> ${t("used now")}</span><span><b class="key booked"></b> ${t("booked")}</span><span><b class="key free"></b> ${t("free")}</span></p>
    <div class="cards">${node.cards.map((card) => html`<${CardBox} key=${card.uuid} card=${card} node=${node} words=${t("Cards")} />`)}</div>
    <${History} ...${{ model, source, params }} subject="node" name=${node.node} most=${1} names=${(one) => cardName(node.cards, one.uuid)} />
    <${Links} node=${node} />`;
}

// For whom the node is closed to smaller pods, and until when.
function Kept({ kept }) {
  if (!kept) return null;
  const who = kept.pod ? html`<a href=${link(["pod", ...kept.pod.split("/")])}>${kept.pod}</a>` : t("a pod of another namespace");
  return html`<p class="state closed">${t("Closed to pods that ask for fewer than {0} cards and have no higher priority, for", kept.cards)} ${who}.
    <small>${kept.seconds === undefined
      ? t("It has waited for {0}. The node is open again when it has its place, or when {1} more pods with cards have left their nodes.", age(kept.since), kept.left)
      : t("It has waited for {0}. The node is open again when it has its place, or when its cards have been free for {1} minutes.", age(kept.since), Math.max(1, Math.round(kept.seconds / 60)))}</small></p>`;
}

// Address and name of one of these cards; a card that is not among them any more has its UUID alone.
function cardName(cards, uuid) {
  const card = cards.find((one) => one.uuid === uuid);
  return card ? [["card", uuid], t("Card {0}", card.index)] : [null, uuid];
}

// How the node's cards are joined, in the words of nvidia-smi topo -m.
function Links({ node }) {
  if (node.cards.length < 2 || !node.links) return null;
  const rows = node.links.map((row, at) => ({ key: at, cells: [html`<strong>${at}</strong>`, ...row.map((word, to) => (at === to ? "X" : word))] }));
  return html`<details><summary>${t("How the cards are joined")}</summary>
    <div class="wide" tabindex="0" role="group" aria-label=${t("How the cards are joined")}><table class="matrix"><thead><tr><td></td>${node.cards.map((card) => html`<th scope="col" key=${card.index}>${card.index}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}>${row.cells.map((cell, at) => (at ? html`<td key=${at}>${cell}</td>` : html`<th scope="row" key=${at}>${cell}</th>`))}</tr>`)}</tbody></table></div></details>`;
}

class CardBox extends Component {
  shouldComponentUpdate(next) {
    return next.card !== this.props.card || next.words !== this.props.words;
  }

  render({ card, node }) {
    const hues = colours(card.holders);
    const label = card.mig ? `${t("Card {0}", card.index)}, ${card.model}` : t("card {0}, {1}: {2} of 100 cores and {3} of {4} booked", card.index, card.model, 100 - card.cores_free, gib(card.memory - card.memory_free), gib(card.memory));
    return html`<article class=${figures(card).closed ? "card dim" : "card"} aria-label=${label}>
      <h2><a href=${link(["card", card.uuid])}>${t("Card {0}", card.index)}</a></h2>
      <p class="facts">${card.model} <code>${card.uuid}</code><${Copy} text=${card.uuid} /></p>
      <${State} card=${card} node=${node} /><${Bars} card=${card} />
      ${card.holders.length ? html`<ul>${card.holders.map((holder, at) => html`<li key=${at + named(holder)} style=${{ "--hue": hues.get(holder) }}><b aria-hidden="true"></b>
        <span><${PodLink} holder=${holder} />${[priority_of(holder), state_of(holder)].filter(Boolean).map((word) => ` (${word})`)}</span>
        <em>${t("{0} of {1} cores, {2} of {3}", cores(holder.core_used), holder.cores, memory(holder), gib(holder.memory))}</em></li>`)}</ul>`
        : card.mig ? null : html`<p class="none">${t("idle")}</p>`}</article>`;
  }
}

const refusals = (holder) => (typeof holder.refusals === "number" ? t("{0} times", holder.refusals) : "–");
const memory = (holder) => (holder.memory_used === null ? "–" : gib(holder.memory_used));

// The instances of a divided card, each with its link.
function Divided({ node, card }) {
  const found = instances(node, card);
  if (!found.length) return t("in MIG mode: no share of the card itself, and its instances are not given here");
  return html`${t("divided into MIG instances, no share of the card itself:")} ${found.map((one) => html`<a key=${one.uuid} href=${link(["card", one.uuid])}>${one.index}</a> `)}`;
}

function State({ card, node }) {
  const { closed } = figures(card);
  if (!closed) return by_claims(card) ? html`<p class="facts">${t("given by ResourceClaims")}</p>` : null;
  const text = { lent: t("given away whole as {0}", card.held), unhealthy: t("unhealthy: {0}", local(card.reason) || t("no reason given")), mig: html`<${Divided} node=${node} card=${card} />`, cordoned: t("cordoned: nothing new is placed here"), closed: local(card.reason) || t(WORDS.closed) };
  return html`<p class=${closed === "unhealthy" ? "state" : "state closed"}>${text[closed]}</p>`;
}

function Bars({ card }) {
  if (card.mig) return null;
  const holders = running(card);
  const hues = colours(card.holders);
  const part = (holder, share, used) => ({ share, used, hue: hues.get(holder), planned: holder.planned, title: named(holder) });
  return html`<div class="label"><span>${t("cores")}</span><span>${t("{0} of {1} booked", 100 - card.cores_free, 100)}</span></div>
    <${Bar} parts=${holders.map((holder) => part(holder, holder.cores / 100, holder.core_used === null || !holder.cores ? null : (100 * holder.core_used) / holder.cores))} />
    <div class="label"><span>${t("memory")}</span><span>${t("{0} of {1} booked", gib(card.memory - card.memory_free), gib(card.memory))}</span></div>
    <${Bar} thin parts=${holders.map((holder) => part(holder, card.memory ? holder.memory / card.memory : 0, holder.memory_used === null || !holder.memory ? null : holder.memory_used / holder.memory))} />`;
}

export function Card({ model, args, source, params }) {
  const found = model.card(args[0]);
  if (!found) return html`<${Missing} what=${t("Card {0}", args[0] || "")} />`;
  const { node, card } = found;
  const now = figures(card);
  const hues = colours(card.holders);
  return html`<h1 tabindex="-1">${t("Card {0}", card.index)} <small><a href=${link(["node", node.node])}>${node.node}</a></small></h1>
    <${State} card=${card} node=${node} />
    <${Pairs} rows=${[
      [t("Model"), card.model],
      ...(card.parent ? [[t("MIG instance of"), html`<a href=${link(["card", card.parent])}>${cardName(node.cards, card.parent)[1]}</a>`]] : []),
      ["UUID", html`<code>${card.uuid}</code><${Copy} text=${card.uuid} />`],
      ...(card.mig ? [] : [
        [t("Cores booked"), percent(now.booked)],
        [t("Cores used"), percent(now.used)],
        [t("Memory booked"), t("{0} of {1}", gib(card.memory - card.memory_free), gib(card.memory))],
        [t("Memory used"), percent(now.memory_used)],
      ]),
    ]} />
    <${Bars} card=${card} />
    <h2>${t("Health events")}</h2>
    <${Asked} source=${source} path=${asked("ui/health", source, { card: card.uuid })} every=${10}>${health}<//>
    <h2>${t("Who holds it")}</h2>
    ${card.holders.length ? html`<${Table} label=${t("Who holds it")} titles=${[t("Pod"), t("Cores booked"), t("Cores used"), t("Memory booked"), t("Memory used"), t("State")]}
      rows=${card.holders.map((holder, at) => ({ key: at + named(holder), cells: [html`<${Swatch} hue=${hues.get(holder)} /><${PodLink} holder=${holder} />`, holder.cores, cores(holder.core_used), gib(holder.memory), memory(holder), html`<${Runs} holder=${holder} />${priority_of(holder) ? `, ${priority_of(holder)}` : ""}${resize(holder) ? html` <small>${resize(holder)}</small>` : null}`] }))} />`
      : html`<p class="none">${t("idle")}</p>`}
    <${History} ...${{ model, source, params }} subject="card" name=${card.uuid} most=${1}
      names=${(one) => (one.pod ? [["pod", one.namespace, one.pod], `${one.namespace}/${one.pod} ${one.container}`] : [null, one.pod === "" ? t("name not shown") : t("all containers")])} />`;
}

const EVENTS = {
  card_found: "found",
  card_closed: "closed: {0}",
  card_opened: "open again; it was closed: {0}",
  card_cordoned: "cordoned",
  card_uncordoned: "no longer cordoned",
  xid: "XID {0}, of a program: the card stays open",
  closing_xid: "XID {0}: the card is closed for it",
};

// What happened to a card since its agent's start, the newest first.
function health(answer, trouble) {
  if (trouble) return html`<p class="none">${t("Not known: {0}", trouble)}</p>`;
  if (!answer) return html`<p class="none">${t("Loading …")}</p>`;
  const since = html`<p class="none">${t("Known since {0}, when the agent started.", moment(answer.since))}</p>`;
  if (!answer.events.length) return since;
  return html`<${Table} label=${t("Health events")} titles=${[t("Last"), t("First"), t("Times"), t("Event")]} rows=${answer.events.map((one) => ({
    key: `${one.event} ${one.text}`,
    cells: [html`${moment(one.last)} <small>${one.last === null ? "" : t("{0} ago", age(1000 * one.last))}</small>`, moment(one.first), one.count, EVENTS[one.event] ? t(EVENTS[one.event], local(one.text)) : `${one.event} ${one.text}`],
  }))} />${since}`;
}

const moment = (seconds) => (seconds === null ? "–" : time(1000 * seconds, { ...DAY, hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" }));

export class Pod extends Component {
  constructor(props) {
    super(props);
    this.state = { said: null, trouble: "" };
  }

  componentDidMount() {
    this.explain();
  }

  componentDidUpdate(before) {
    if (before.args.join("/") !== this.props.args.join("/") || before.model.generation !== this.props.model.generation) this.explain();
  }

  // The same words as kubectl vcuda explain; an agent has none.
  async explain() {
    const { args, model, source } = this.props;
    const key = args.join("/");
    if (!model.rest.waiting || this.asked === `${key} ${this.row?.why}`) return;
    this.asked = `${key} ${this.row?.why}`;
    try {
      const said = await source.ask(`explain/${args.map(encodeURIComponent).join("/")}?o=json`);
      if (key === this.props.args.join("/")) this.setState({ said, trouble: "" });
    } catch (error) {
      if (key === this.props.args.join("/")) this.setState({ said: null, trouble: error.message });
    }
  }

  get row() {
    return (this.props.model.rest.waiting || []).find((row) => row.pod === this.props.args.join("/"));
  }

  render({ model, args, source, params }, { said, trouble }) {
    const key = args.slice(0, 2).join("/");
    const parts = model.pods.get(key) || [];
    if (!parts.length && !this.row && !said && !model.rest.waiting) return html`<${Missing} what=${t("Pod {0}", key)} />`;
    return html`<h1 tabindex="-1">${t("Pod {0}", key)}</h1>
      ${said ? html`<p class="line">${local(said.line)}</p>${said.change ? html`<p><strong>${t("Smallest change that helps")}:</strong> ${local(said.change)}</p>` : null}` : null}
      ${trouble ? html`<p class="none">${t("No explanation: {0}", trouble)}</p>` : null}
      ${parts.length ? html`<${Table} label=${t("What it holds")} titles=${[t("Container"), t("Node"), t("Card"), t("Cores booked"), t("Cores used"), t("Memory booked"), t("Memory used"), t("Memory refused"), t("State")]}
        rows=${parts.map(({ node, card, holder }) => ({ key: `${holder.container} ${card.uuid}`, cells: [holder.container, html`<a href=${link(["node", node.node])}>${node.node}</a>`,
          html`<a href=${link(["card", card.uuid])}>${card.index}</a>`, holder.cores, cores(holder.core_used), gib(holder.memory), memory(holder), refusals(holder), html`<${Runs} holder=${holder} />${priority_of(holder) ? `, ${priority_of(holder)}` : ""}${resize(holder) ? html` <small>${resize(holder)}</small>` : null}`] }))} />` : null}
      <${History} ...${{ model, source, params }} subject="pod" name=${key} most=${Math.max(0, ...parts.map(({ holder }) => holder.cores / 100))}
        names=${(one) => [...cardName(parts.map(({ card }) => card), one.uuid)].map((part, at) => (at ? `${one.container}, ${part}` : part))} />
      ${parts.length ? html`<h2>${t("Advised size")}</h2>
        <${Asked} source=${source} path=${asked("ui/advice", source, { name: key })} every=${30}>${advice}<//>` : null}
      ${model.rest.waiting ? html`<h2>${t("Events")}</h2>
        <${Asked} source=${source} path=${asked("ui/events", source, { name: key })} every=${15}>${events}<//>` : null}
      <${Outcomes} said=${said} />`;
  }
}

// What Kubernetes keeps of a pod's Events, the newest first; an agent may not read them.
function events(answer, trouble) {
  if (trouble) return html`<p class="none">${t("Not known: {0}", trouble)}</p>`;
  if (!answer) return html`<p class="none">${t("Loading …")}</p>`;
  const older = answer.more ? t("and older ones") : answer.left_out ? t("and {0} more", answer.left_out) : "";
  if (!answer.events.length) return html`<p class="none">${t("None: Kubernetes keeps them for an hour.")}</p>`;
  return html`<${Table} label=${t("Events")} titles=${[t("Last"), t("Times"), t("Event"), t("From")]} rows=${answer.events.map((one, at) => ({
    key: `${one.reason} ${one.message} ${at}`,
    cells: [html`${moment(one.last)} <small>${one.last === null ? "" : t("{0} ago", age(1000 * one.last))}</small>`, one.count,
      html`<span class=${one.kind === "Normal" ? "" : "bad"}>${one.reason}:</span> ${one.message}`, one.source],
  }))} />${older ? html`<p class="none">${older}</p>` : null}`;
}

// What its containers should have, by the agent of its node.
function advice(answer, trouble) {
  if (trouble) return html`<p class="none">${t("Not known: {0}", trouble)}</p>`;
  if (!answer) return html`<p class="none">${t("Loading …")}</p>`;
  if (!answer.containers.length) return html`<p class="none">${t("None: only a container that holds a part of one card is advised.")}</p>`;
  const advised = (figure, text) => html`${figure.value === null ? "–" : text(figure.value)} <small>${local(figure.reason)}</small>`;
  const given = (value, text) => (value === null ? "–" : text(value));
  return html`<${Table} label=${t("Advised size")} titles=${[t("Container"), t("Cores booked"), t("Cores advised"), t("Memory booked"), t("Memory advised")]} rows=${answer.containers.map((one) => ({
    key: one.container,
    cells: [one.container, given(one.given.cores, String), advised(one.cores, String), given(one.given.memory, gib), advised(one.memory, gib)],
  }))} />`;
}

// Node by node, what an explanation found.
export function Outcomes({ said }) {
  if (!said || !said.nodes.length) return null;
  return html`<h2>${t("Node by node")}</h2>${said.quota.map((line) => html`<p key=${line}>${t("Quota")}: ${local(line)}</p>`)}
    <ul class="outcomes">${said.nodes.map((node) => html`<li key=${node.node} class=${node.outcome}><strong>${node.node}</strong> <span>${local(node.line)}</span>
      ${node.victims.length ? html`<small>${t("would have room without: {0}", node.victims.join(", "))}</small>` : null}</li>`)}</ul>`;
}

function Missing({ what }) {
  return html`<h1 tabindex="-1">${what}</h1><p class="none">${t("It is not among what is shown here: it may be gone, or another namespace's.")}</p>`;
}
