// The cluster at a glance: how full it is by model of card, with the trend of the last hour, and who holds it by namespace.
import { Asked, asked } from "./asked.js";
import { Spark, Table, gib, html, percent } from "./parts.js";
import { by_model, by_namespace } from "./model.js";
import { t } from "./words.js";

const SHOWN = 6; // models; NAMESPACES of the table
const NAMESPACES = 12;

export function Capacity({ model, source }) {
  const rows = by_model(model);
  if (!rows.length) return null;
  const range = (model.rest.ranges || []).includes("1h") ? "1h" : (model.rest.ranges || [])[0];
  const all = rows.reduce((sum, one) => sum + one.cards, 0);
  const most = rows[0].cards;
  return html`<section class="capacity" aria-label=${t("How full it is")}>
    ${rows.slice(0, SHOWN).map((one) => html`<${Model} key=${one.model} row=${one} most=${most} />`)}
    ${rows.length > SHOWN ? html`<p class="none">${t("and {0} more", rows.length - SHOWN)}</p>` : null}
    <p class="legend"><span><b class="key in-use"></b> ${t("used now")}</span><span><b class="key held"></b> ${t("booked")}</span><span><b class="key free"></b> ${t("free")}</span><span><b class="key shut-off"></b> ${t("not usable")}</span>
      ${range ? html`<${Asked} source=${source} path=${asked("ui/history", source, { subject: "cluster", name: "", span: range })} every=${60} lacks=${(answer) => !answer.series.length}>${(answer) => trend(answer, all)}<//>` : null}</p></section>`;
}

// Booked, of which so much is used, free, and what cannot be used, of all cards of a model.
function Model({ row, most }) {
  const whole = 100 * row.cards;
  const part = (cores) => ({ width: `${(100 * cores) / whole}%` });
  const used = Math.min(row.used, row.booked);
  const text = t("{0} of {1} cards booked, {2} in use", number(row.booked), row.cards, row.measured ? number(row.used) : "–");
  return html`<div class="gauge"><p><strong>${row.model}</strong> <span>${gib(row.memory)}</span> <em>${text}</em></p>
    <div class="bar" role="img" aria-label=${`${row.model}: ${text}`} style=${{ maxWidth: `${Math.max(20, (100 * row.cards) / most)}%` }}>
      <div class="in-use" style=${part(used)}></div><div class="held" style=${part(row.booked - used)}></div>
      <div class="open" style=${part(Math.max(0, whole - row.booked - row.closed))}></div><div class="shut-off" style=${part(Math.min(row.closed, whole - row.booked))}></div></div></div>`;
}

function trend(answer, cards) {
  const [series] = answer?.series || [];
  if (!series) return null;
  const values = series.cores.map((value) => (value === null ? null : (100 * value) / cards));
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  return html`<span class="trend"><${Spark} values=${values} most=${Math.max(10, ...known)} /> ${t("cores used over the last {0} min, at most {1}", Math.round((answer.step * (values.length - 1)) / 60), percent(Math.max(...known) / 100))}</span>`;
}

export function Namespaces({ model }) {
  const rows = by_namespace(model);
  if (rows.length < 2) return null;
  const most = Math.max(...rows.map((one) => one.cores));
  return html`<section aria-labelledby="names-title"><h2 id="names-title">${t("By namespace")}</h2>
    <${Table} label=${t("By namespace")} titles=${[t("Namespace"), t("Cards booked"), t("Cards in use"), t("Idle of what is booked"), t("Memory booked"), t("Pods")]} rows=${rows.slice(0, NAMESPACES).map((one) => ({
      key: one.namespace,
      cells: [one.namespace, html`<span class="meter" style=${{ width: `${(6 * one.cores) / most}rem` }}></span>${number(one.cores)}`, one.measured ? number(one.used) : "–",
        one.measured ? percent(Math.max(0, 1 - one.used / one.measured)) : "–", gib(one.memory), one.pods.size],
    }))} />
    ${rows.length > NAMESPACES ? html`<p class="none">${t("and {0} more", rows.length - NAMESPACES)}</p>` : null}</section>`;
}

const number = (cores) => `${+(cores / 100).toFixed(cores < 1000 ? 1 : 0)}`;
