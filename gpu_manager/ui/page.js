"use strict";
// Draws what `ui/data` says. Everything in it was written by others, so nothing of it ever becomes markup.

const PERIOD = 2000; // ms between two readings; the agent samples once a second
const DEADLINE = 5000; // ms that an answer may take: a stopped agent accepts connections and says nothing
const OLD = 10; // seconds from which on figures are not called live, however fresh the answer
const GIB = 2 ** 30;
const $ = (id) => document.getElementById(id);
let last = null;
let paused = false;
let reading = false;
let trouble = ""; // why the last reading failed
let readAt = 0; // ms of performance.now() at the last reading that did not

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name === "hue" || name === "width") element.style.setProperty(name === "hue" ? "--hue" : name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const gib = (bytes) => `${+(bytes / GIB).toFixed(bytes < GIB ? 2 : 1)} GiB`;
const percent = (ratio) => `${Math.round(ratio * 100)} %`;
const named = (holder) =>
  typeof holder.gone === "string"
    ? `gone, its processes still run (pod ${holder.gone || "unknown"})`
    : `${holder.namespace}/${holder.pod} ${holder.container}`;

// A pod keeps its colour from one reading to the next: it follows from its name. Lightness is fixed for contrast.
function hue(text) {
  let hash = 2166136261;
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return `hsl(${(hash >>> 0) % 360} 48% 45%)`;
}

function part(holder, share, used) {
  const inner = make("i", { width: used === null ? "0" : `${Math.min(100, used * 100)}%` });
  const kind = holder.planned ? "part planned" : "part";
  return make("div", { class: kind, hue: hue(named(holder)), width: `${share * 100}%`, title: told(holder) }, inner);
}

// An init container that has ended holds its pod's share on: it is named, and drawn in no bar.
const when = (holder, before, after = "") =>
  holder.planned ? `${before}not started yet${after}` : holder.ended ? `${before}ended${after}` : "";

function told(holder) {
  const time = holder.core_used === null ? "" : `, uses ${percent(holder.core_used)} of the card`;
  const memory = holder.memory_used === null ? "" : `, ${gib(holder.memory_used)}`;
  return `${named(holder)}: ${holder.cores} cores, ${gib(holder.memory)} booked${time}${memory}${when(holder, ", ")}`;
}

function line(holder) {
  const core = holder.core_used === null ? "–" : Math.round(holder.core_used * 100);
  const memory = holder.memory_used === null ? "–" : +(holder.memory_used / GIB).toFixed(1);
  return make("li", { hue: hue(named(holder)) }, make("b", { "aria-hidden": "true" }),
    make("span", { text: named(holder) + when(holder, " (", ")") }),
    make("em", { text: `${core} of ${holder.cores} cores, ${memory} of ${gib(holder.memory)}` }));
}

function state(card) {
  if (!card.healthy) return ["state", `unhealthy: ${card.reason || "no reason given"}`];
  if (card.mig) return ["state closed", "in MIG mode: left alone"];
  if (card.cordoned) return ["state closed", "cordoned: nothing new is placed here"];
  return null;
}

function drawn(card) {
  const cores = 100 - card.cores_free;
  const booked = card.memory - card.memory_free;
  const condition = state(card);
  const time = make("div", { class: "bar", "aria-hidden": "true" });
  const memory = make("div", { class: "bar thin", "aria-hidden": "true" });
  for (const holder of card.holders.filter((one) => !one.ended)) {
    time.append(part(holder, holder.cores / 100, holder.core_used === null ? null : holder.core_used * 100 / holder.cores));
    memory.append(part(holder, card.memory ? holder.memory / card.memory : 0, holder.memory_used === null || !holder.memory ? null : holder.memory_used / holder.memory));
  }
  const label = `card ${card.index}, ${card.model}: ${cores} of 100 cores and ${gib(booked)} of ${gib(card.memory)} booked`;
  const box = make("article", { class: condition ? "card dim" : "card", tabindex: "0", "aria-label": label },
    make("h4", { text: `Card ${card.index}` }),
    make("p", { class: "facts", text: `${card.model}, ${card.uuid}` }));
  if (condition) box.append(make("p", { class: condition[0], text: condition[1] }));
  box.append(
    make("div", { class: "label" }, make("span", { text: "cores" }), make("span", { text: `${cores} of 100 booked` })), time,
    make("div", { class: "label" }, make("span", { text: "memory" }), make("span", { text: `${gib(booked)} of ${gib(card.memory)} booked` })), memory,
    card.holders.length ? make("ul", {}, ...card.holders.map(line)) : make("p", { class: "facts none", text: "idle" }));
  return box;
}

function wanted(node, card, words) {
  if ($("idle").checked && !card.holders.length) return false;
  const text = [node.node, card.model, card.uuid, ...card.holders.map(named)].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function sums(nodes) {
  const cards = nodes.flatMap((node) => node.cards);
  const holders = cards.flatMap((card) => card.holders).filter((holder) => !holder.ended);
  const total = (list, value) => list.reduce((sum, one) => sum + value(one), 0);
  const seen = holders.filter((holder) => holder.core_used !== null);
  return [
    ["cards", `${cards.length}`],
    ["not usable", `${cards.filter((card) => state(card)).length}`],
    ["cores booked", cards.length ? percent(total(cards, (card) => 100 - card.cores_free) / (100 * cards.length)) : "–"],
    ["memory booked", `${gib(total(cards, (card) => card.memory - card.memory_free))} of ${gib(total(cards, (card) => card.memory))}`],
    ["booked cores in use", seen.length ? percent(total(seen, (h) => h.core_used) * 100 / total(seen, (h) => h.cores)) : "–"],
    ["containers", `${holders.length}`],
  ];
}

// Text that somebody has selected, to copy a UUID, must not vanish under the mouse: the cards wait for it.
function selecting() {
  const selection = getSelection();
  return !selection.isCollapsed && $("cards").contains(selection.anchorNode);
}

function draw(data) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const hidden = data.left_out || { nodes: 0, waiting: 0 };
  const more = hidden.nodes ? ` (the fullest; ${hidden.nodes} more are not shown)` : "";
  $("scope").textContent = data.nodes.length === 1 ? data.nodes[0].node : `${data.nodes.length} nodes${more}`;
  $("sum").replaceChildren(...sums(data.nodes).map(([term, value]) =>
    make("div", {}, make("dt", { text: term }), make("dd", { text: value }))));
  $("waiting-section").hidden = data.waiting === null;
  const rows = (data.waiting || []).map((one) => make("tr", {},
    make("td", { text: one.pod }), make("td", { text: one.asks }), make("td", { text: one.why })));
  if (hidden.waiting) rows.push(make("tr", {}, make("td", { class: "none", colspan: "3", text: `and ${hidden.waiting} more` })));
  $("waiting").tBodies[0].replaceChildren(...(rows.length ? rows :
    [make("tr", {}, make("td", { class: "none", colspan: "3", text: "No pod is waiting." }))]));
  if (selecting()) return;
  const blocks = [];
  for (const node of data.nodes) {
    const cards = node.cards.filter((card) => wanted(node, card, words));
    if (!cards.length) continue;
    if (data.nodes.length > 1) blocks.push(make("h3", { text: node.node }));
    blocks.push(make("div", { class: "node" }, ...cards.map(drawn)));
  }
  const at = focused();
  $("cards").replaceChildren(...(blocks.length ? blocks : [make("p", { class: "none", text: "No card matches." })]));
  if (at >= 0) $("cards").querySelectorAll(".card")[at]?.focus();
}

function focused() { // a redraw must not take the keyboard's place away
  return [...$("cards").querySelectorAll(".card")].indexOf(document.activeElement);
}

function say(text, bad = false) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = bad ? "bad" : "";
}

function sentence(text) { // the agent says it bare, admission as {"error": …}
  try {
    return String(JSON.parse(text).error).slice(0, 300);
  } catch {
    return text.trim().slice(0, 300);
  }
}

// What is said of the figures: how old they are, by the agent's word and by the time since it answered.
function judge() {
  if (!last) return;
  const age = Math.round((last.age || 0) + (performance.now() - readAt) / 1000);
  $("age").textContent = `Figures of ${age} s ago${selecting() ? "; the cards are held while text is selected" : ""}.`;
  if (trouble) say(`Not live, these figures are out of date: ${trouble}`, true);
  else if (paused) say("Paused.");
  else if (age > OLD) say("Not live: the agent answers, but does not sample.", true);
  else say("Live, refreshed every 2 seconds.");
}

async function read() {
  if (paused || reading || document.hidden) return;
  reading = true;
  try {
    const token = sessionStorage.getItem("token");
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch("ui/data", { headers, signal: AbortSignal.timeout(DEADLINE) });
    $("login").hidden = answer.status !== 401 && answer.status !== 403;
    if (!answer.ok) throw new Error(sentence(await answer.text()) || `the server answered ${answer.status}`);
    last = await answer.json();
    readAt = performance.now();
    trouble = "";
    draw(last);
  } catch (error) {
    trouble = error.name === "TimeoutError" ? `no answer within ${DEADLINE / 1000} seconds` : error.message;
    if (!last) say(`Nothing to show: ${trouble}`, true);
  } finally {
    reading = false;
    judge();
  }
}

$("controls").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", () => last && draw(last));
$("idle").addEventListener("change", () => last && draw(last));
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", `${paused}`);
  $("pause").textContent = paused ? "Resume" : "Pause";
  if (paused) judge();
  else read();
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  read();
});
document.addEventListener("visibilitychange", read);
setInterval(judge, 1000);
setInterval(read, PERIOD);
read();
