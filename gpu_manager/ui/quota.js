// What each namespace may hold of each model of card, and what it holds.
import { Bar, Table, gib, html } from "./parts.js";
import { t } from "./words.js";

export function Quota({ model }) {
  const rows = model.rest.quota;
  return html`<h1 tabindex="-1">${t("Quota")}</h1>
    ${rows === null ? html`<p class="none">${t("The quota cannot be read now.")}</p>`
      : rows.length ? html`<${Table} label=${t("Quota")} titles=${[t("Namespace"), t("Model"), t("Cards"), t("Memory"), ...(granted(rows) ? [t("Protected shares")] : [])]} rows=${rows.map((row) => cells(row, granted(rows)))} />`
        : html`<p class="none">${t("No namespace has a quota.")}</p>`}`;
}

const number = (value) => `${+(value / 100).toFixed(2)}`;
const granted = (rows) => rows.some((row) => typeof row.protected === "number");
const cells = (row, all) => ({
  key: `${row.namespace} ${row.model}`,
  cells: [row.namespace, row.model === "*" ? t("all models") : row.model, meter(row.cores_used, row.cores, number), meter(row.memory_used, row.memory, gib),
    ...(all ? [typeof row.protected === "number" ? meter(row.protected_used, row.protected, number) : t("none granted")] : [])],
});

function meter(used, limit, text) {
  if (limit === null) return html`${text(used)} <small>${t("no limit")}</small>`;
  const over = used > limit;
  return html`<${Bar} thin parts=${[{ share: 1, used: limit ? used / limit : used ? 1 : 0, hue: "var(--l4)" }]} />
    <span class=${over ? "bad" : ""}>${t("{0} of {1}", text(used), text(limit))}${over ? ` ${t("over the quota")}` : ""}</span>`;
}
