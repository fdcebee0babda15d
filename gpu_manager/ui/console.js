// The console: reads the address, draws the view it names, and draws again when figures or the address change.
// Everything that is shown was written by others, so nothing of it ever becomes markup: the templates make text.
import { render } from "./preact.mjs";
import { Component, Copy, address, html, link } from "./parts.js";
import { Find, matches } from "./find.js";
import { Card, Node, Pod } from "./places.js";
import { Model } from "./model.js";
import { Overview } from "./overview.js";
import { Quota } from "./quota.js";
import { Source } from "./source.js";
import { Waiting } from "./waiting.js";
import { Waste } from "./waste.js";
import { WhatIf } from "./what_if.js";
import { language, speak, t } from "./words.js";

const VIEWS = { overview: Overview, waiting: Waiting, quota: Quota, node: Node, card: Card, pod: Pod, find: Find, "what-if": WhatIf, waste: Waste };
const MENU = [["overview", "Overview"], ["waiting", "Waiting"], ["quota", "Quota"], ["what-if", "What if"], ["waste", "Waste"]]; // digits 1, 2, … open them

const model = new Model();
const source = new Source(model, draw);
const root = document.createElement("div");
document.body.append(root);

const NODES = ["overview", "waste"]; // what an agent shows of its node, to whom it may name pods
const menu = () => MENU.filter(([name]) => model.rest?.waiting || (NODES.includes(name) && (name === "overview" || model.rest?.named)));

function Header({ view, params }) {
  const one = model.nodes.size === 1 ? model.nodes.keys().next().value : "";
  const namespace = params.get("namespace");
  return html`<header><a class="skip" href="#main" onClick=${skip}>${t("Skip to the content")}</a>
    <p class="title"><a href=${link(["overview"])}>gpu-manager</a> <span>${one || (model.rest ? t("{0} nodes", model.nodes.size) : "")}${namespace ? `, ${t("namespace {0}", namespace)}` : ""}</span></p>
    <nav aria-label=${t("Views")}>${menu().map(([name, text]) => html`<a key=${name} href=${link([name])} aria-current=${name === view ? "page" : null}>${t(text)}${name === "waiting" ? ` (${model.rest.waiting.length + (model.rest.left_out?.waiting || 0)})` : ""}</a>`)}</nav>
    <form role="search" onSubmit=${first}><label><span class="unseen">${t("Search")}</span><input id="search" type="search" autocomplete="off" spellcheck=${false}
      placeholder=${t("Search nodes, cards, pods ( / )")} value=${view === "find" ? params.get("q") || "" : ""} onInput=${search} /></label></form>
    <button type="button" aria-pressed=${source.paused ? "true" : "false"} onClick=${() => source.pause()}>${source.paused ? t("Resume") : t("Pause")}</button>
    <button type="button" lang=${language() === "zh" ? "en" : "zh"} onClick=${() => { speak(language() === "zh" ? "en" : "zh"); draw(); }}>${language() === "zh" ? "English" : "中文"}</button>
  </header>`;
}

function Login({ params }) {
  return html`<form class="login" onSubmit=${login}>
    <label>${t("Token")} <input name="token" type="password" autocomplete="off" autofocus /></label>
    <label>${t("Namespace")} <input name="namespace" autocomplete="off" spellcheck=${false} defaultValue=${params.get("namespace") || ""} placeholder=${t("all")} /></label>
    <button>${t("Show")}</button>
    ${model.rest?.named === false ? html`<p>${t("Names of pods are shown to callers with the right to get pods.")}</p>` : null}
    <p>${t("With the right to get pods in a namespace you see that namespace; with that right in all, everything. The token stays in this tab. To get one:")} <code>kubectl create token ACCOUNT -n NAMESPACE</code><${Copy} text="kubectl create token ACCOUNT -n NAMESPACE" />
      ${t("Without any token, with the login that kubectl has:")} <code>kubectl vcuda ui</code><${Copy} text="kubectl vcuda ui" /></p></form>`;
}

// A view is drawn again when figures, address or language change, not with every tick of the clock above it.
class Drawn extends Component {
  shouldComponentUpdate(next) {
    return next.stamp !== this.props.stamp;
  }

  render({ View, ...rest }) {
    return html`<${View} ...${rest} />`;
  }
}

function Console({ view, args, params }) {
  const View = VIEWS[view] || Overview;
  const [text, bad] = source.status;
  return html`<${Header} view=${view} params=${params} />
    <main id="main" tabindex="-1">${source.refused || model.rest?.named === false ? html`<${Login} params=${params} />` : null}
    <div class="live"><p id="status" role="status" class=${bad ? "bad" : ""}>${text}</p>
    ${model.rest ? html`<p class="facts">${t("Figures of {0} s ago.", source.age)}${usage(model.rest)}</p>` : null}</div>
    ${model.rest ? html`<div class="view"><${Drawn} View=${View} stamp=${`${source.at} ${location.hash} ${language()}`} model=${model} source=${source} args=${args} params=${params} /></div>` : null}</main>`;
}

// How old the agents' figures are in a cluster, and which agents do not answer.
function usage({ silent, usage_age: oldest }) {
  if (!silent) return "";
  const names = `${silent.slice(0, 3).join(", ")}${silent.length > 3 ? ` ${t("and {0} more", silent.length - 3)}` : ""}`;
  return `${silent.length < model.nodes.size ? ` ${t("Usage at most {0} s older.", Math.round(oldest))}` : ""}${silent.length ? ` ${t("No usage from {0}.", names)}` : ""}`;
}

function draw() {
  const where = address();
  render(html`<${Console} ...${where} />`, root);
  document.title = ["gpu-manager", ...(where.view === "overview" ? [] : [where.view, ...where.args])].join(" · ");
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function search(event) {
  const text = event.target.value;
  history.replaceState(null, "", text ? link(["find"], { q: text }) : link(["overview"]));
  draw();
}

// Enter opens the first match.
function first(event) {
  event.preventDefault();
  const field = document.getElementById("search");
  const [best] = model.rest ? matches(model, field.value) : [];
  if (!best) return;
  field.blur(); // left, so that the heading of what it opens gets the focus
  location.hash = link(best[1]);
}

function login(event) {
  event.preventDefault();
  const { token, namespace } = event.target.elements;
  if (token.value) sessionStorage.setItem("token", token.value.trim());
  token.value = "";
  const { view, args, params } = address();
  params.delete("namespace");
  if (namespace.value.trim()) params.set("namespace", namespace.value.trim());
  history.replaceState(null, "", `#/${[view, ...args].map(encodeURIComponent).join("/")}${params.size ? `?${params}` : ""}`);
  go();
  source.read();
}

function go() {
  source.see(address().params.get("namespace") || "");
  draw();
}

// The browser tells of a new address after keys that were pressed meanwhile: a field that has the focus by then keeps
// it, or what is written into it would be lost.
addEventListener("hashchange", () => {
  go();
  if (!document.activeElement.matches("input, textarea")) document.querySelector("main h1")?.focus();
  scrollTo(0, 0);
});
addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const chosen = menu()[Number(event.key) - 1];
  if (event.key === "/") document.getElementById("search").focus();
  else if (chosen) location.hash = link([chosen[0]]);
  else return;
  event.preventDefault();
});
source.namespace = address().params.get("namespace") || "";
draw();
source.start();
