// Search over everything that is shown: nodes, cards, pods that hold or wait, namespaces.
import { html, link } from "./parts.js";
import { t } from "./words.js";

const SHOWN = 50;

// [kind, address, text] of everything that has all of the words.
export function matches(model, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const fits = (line) => words.every((word) => line.toLowerCase().includes(word));
  const found = [];
  const add = (kind, path, line) => fits(line) && found.push([kind, path, line]);
  for (const node of model.sorted) add("Nodes", ["node", node.node], node.node);
  for (const pod of model.pods.keys()) add("Pods", ["pod", ...pod.split("/")], pod);
  for (const row of model.rest.waiting || []) add("Waiting", ["pod", ...row.pod.split("/")], row.pod);
  for (const row of model.rest.quota || []) add("Quota", ["quota"], `${row.namespace} ${row.model}`);
  for (const node of model.sorted)
    for (const card of node.cards) add("Cards", ["card", card.uuid], `${node.node} ${card.index} ${card.model} ${card.uuid}`);
  return found;
}

export function Find({ model, params }) {
  const text = params.get("q") || "";
  const found = matches(model, text);
  const kinds = [...new Set(found.map(([kind]) => kind))];
  return html`<h1 tabindex="-1">${t("Search: {0}", text)}</h1>
    ${found.length ? null : html`<p class="none">${t("Nothing that is shown here has these words.")}</p>`}
    ${kinds.map((kind) => {
      const mine = found.filter((one) => one[0] === kind);
      return html`<section key=${kind} aria-label=${t(kind)}><h2>${t(kind)} (${mine.length})</h2><ul class="found">
        ${mine.slice(0, SHOWN).map(([, path, line]) => html`<li key=${line}><a href=${link(path)}>${line}</a></li>`)}</ul>
        ${mine.length > SHOWN ? html`<p class="none">${t("and {0} more", mine.length - SHOWN)}</p>` : null}</section>`;
    })}`;
}
