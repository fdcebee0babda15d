// Pods that wait, grouped by what stands in the way, with the smallest change that would let each run.
import { Table, age, html, link } from "./parts.js";
import { local } from "./sentences.js";
import { t } from "./words.js";

const GROUPS = {
  fits: "Fits now: waits for the scheduler",
  held: "Held by something else: a gate, its workload, a volume, a scheduler, the quota",
  room: "No room now",
  refused: "Refused by a node a moment ago",
  kept: "Kept for a larger pod that waits",
  quota: "Closed by quota",
  barred: "Kept off by nodes: a cordon, a taint or a label",
  never: "Too large for every node, or not legal",
  node: "No node has cards for it",
  "": "Being worked out",
};

export function Waiting({ model }) {
  const rows = model.rest.waiting || [];
  const { waiting: hidden } = model.rest.left_out || { waiting: 0 };
  return html`<h1 tabindex="-1">${t("Waiting")}</h1>
    ${rows.length ? null : html`<p class="none">${t("No pod is waiting.")}</p>`}
    ${Object.entries(GROUPS).map(([group, title]) => {
      const mine = rows.filter((row) => row.group === group);
      return mine.length ? html`<section key=${group} aria-label=${t(title)}><h2>${t(title)} (${mine.length})</h2>
        <${Table} label=${t(title)} titles=${[t("Pod"), t("Age"), t("Priority"), t("Requests"), t("Smallest change that helps")]} widths=${[24, 8, 8, 20, 40]} rows=${mine.map(cells)} /></section>` : null;
    })}
    ${hidden ? html`<p class="none">${t("and {0} more", hidden)}</p>` : null}`;
}

const cells = (row) => ({
  key: row.pod,
  cells: [
    html`<a href=${link(["pod", ...row.pod.split("/")])}>${row.pod}</a>`,
    age(row.created),
    row.priority,
    local(row.asks),
    html`${row.change ? html`<strong>${local(row.change)}</strong>` : null}<small>${local(row.why)}</small>`,
  ],
});
