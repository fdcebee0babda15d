// Pods by the cores that they booked and left idle: of the last hour by Prometheus, else of the minutes that agents told.
import { Asked, asked } from "./asked.js";
import { Bar, Table, html, link, percent } from "./parts.js";
import { t } from "./words.js";

const EVERY = 15; // seconds

export function Waste({ source }) {
  return html`<h1 tabindex="-1">${t("Who wastes most")}</h1>
    <${Asked} source=${source} path=${asked("ui/waste", source)} every=${EVERY}>${list}<//>`;
}

function list(answer, trouble) {
  if (trouble) return html`<p class="bad">${t("No list: {0}", trouble)}</p>`;
  if (!answer) return html`<p class="none">${t("Loading …")}</p>`;
  return html`<p>${answer.source === "prometheus" ? t("Cores booked and not used in the last hour, from the sums that the agents keep for bills.")
    : t("Cores booked and not used in the last hour, as the agents remember it.")}</p>
    ${answer.pods.length ? html`<${Table} label=${t("Who wastes most")} titles=${[t("Pod"), t("Not used (card-hours)"), t("Booked (card-hours)"), t("Used of what was booked")]} rows=${answer.pods.map(cells)} />`
      : html`<p class="none">${t("No pod left booked cores idle, as far as use is known.")}</p>`}
    ${answer.left_out ? html`<p class="none">${t("and {0} more", answer.left_out)}</p>` : null}`;
}

const hours = (seconds) => (seconds === null ? "–" : seconds > 0 && seconds < 3600 ? "< 0.01" : `${+(seconds / 360000).toFixed(2)}`);

function cells(row) {
  const ratio = row.used === null || !row.booked ? null : row.used / row.booked;
  return {
    key: `${row.namespace}/${row.pod}`,
    cells: [
      html`<a href=${link(["pod", row.namespace, row.pod])}>${row.namespace}/${row.pod}</a>`,
      hours(row.wasted),
      hours(row.booked),
      html`${ratio === null ? null : html`<${Bar} thin parts=${[{ share: 1, used: ratio, hue: "var(--l4)" }]} />`}${percent(ratio)}`,
    ],
  };
}
