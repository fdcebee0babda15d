// Use over time: lines with gaps where nothing is known, and who held what from when to when.
import { Component, DAY, gib, html, lineColours, link, percent, time } from "./parts.js";
import { t } from "./words.js";

const WIDTH = 600;
const HEIGHT = 120;
const LEAST = 5000; // ms between two questions
const RANGES = { "10m": "10 minutes", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days" };

export function chosen(model, params) {
  const known = model.rest.ranges || [];
  return known.includes(params.get("range")) ? params.get("range") : known[0];
}

// `subject` and `name` say whose; `most` is the ratio of cards at the top of the chart; `names` turns a series into [path, text].
export class History extends Component {
  constructor(props) {
    super(props);
    this.state = { past: null, trouble: "" };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate() {
    this.read();
  }

  get key() {
    const { subject, name, params, model } = this.props;
    return [subject, name, params.get("namespace") || "", chosen(model, params) || ""].join("\n");
  }

  // Every view is drawn again with each answer of the server: often enough to ask from here.
  async read() {
    const { subject, name, source, model, params } = this.props;
    const range = chosen(model, params);
    const { key } = this;
    if (!range || source.paused || (key === this.asked && performance.now() < this.next)) return;
    if (key !== this.asked && this.state.past) this.setState({ past: null, trouble: "" });
    this.asked = key;
    this.next = performance.now() + LEAST;
    const query = new URLSearchParams({ subject, name: name || "", span: range });
    if (source.namespace) query.set("namespace", source.namespace);
    try {
      const past = await source.ask(`ui/history?${query}`);
      if (key !== this.asked) return;
      this.next = performance.now() + Math.max(LEAST, Math.min(60, past.step) * 1000);
      this.setState({ past, trouble: "" });
    } catch (error) {
      if (key === this.asked) this.setState({ past: null, trouble: error.message });
    }
  }

  render({ model, params, subject, most, names }, { past, trouble }) {
    const range = chosen(model, params);
    if (!range) return null;
    const series = past ? past.series : [];
    const hues = lineColours(series.map((one) => names(one)[1]));
    const waits = series.some((one) => one.waited.some((value) => value > 0));
    const shared = { past, series, hues, range: t(RANGES[range]) };
    return html`<section class="history" aria-labelledby="history-title"><h2 id="history-title">${t("History")}</h2>
      <p class="switch"><span>${t("Range")}</span>${model.rest.ranges.map((one) => html`<a key=${one} href=${here(one)} aria-current=${one === range ? "true" : null}>${t(RANGES[one])}</a>`)}</p>
      ${trouble ? html`<p class="bad">${t("No history: {0}", trouble)}</p>` : null}
      ${past && !series.length ? html`<p class="none">${t("Nothing is known of that time.")}</p>` : null}
      ${series.length ? html`<div class="charts">
        <${Chart} ...${shared} title=${subject === "cluster" ? t("Cards in use") : t("Cores used")} column="cores" top=${most} text=${subject === "cluster" ? number : percent} />
        <${Chart} ...${shared} title=${t("Memory used")} column="memory" text=${gib} />
        ${waits && subject !== "cluster" && subject !== "node" ? html`<${Chart} ...${shared} title=${t("Waiting for their share")} column="waited" text=${percent} />` : null}</div>
        ${subject === "cluster" ? null : html`<${Lines} ...${shared} names=${names} />`}` : null}
      ${past?.left_out ? html`<p class="none">${t("and {0} more", past.left_out)}</p>` : null}</section>`;
  }
}

const number = (value) => `${+value.toFixed(2)}`;

// The address of this view with another range.
function here(range) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query || "");
  params.set("range", range);
  return `#/${path || "overview"}?${params}`;
}

function Chart({ past, series, hues, title, column, top, text, range }) {
  const values = series.flatMap((one) => one[column]).filter((value) => value !== null);
  if (!values.length) return html`<figure><figcaption>${title}: ${t("not known")}</figcaption></figure>`;
  const most = Math.max(top || 0, ...values);
  const highest = Math.max(...values);
  const said = t("{0}, last {1}: at most {2}", title, range, text(highest));
  return html`<figure><figcaption>${title} <span>${t("at most {0}", text(highest))}</span></figcaption>
    <div class="plot"><span class="high">${text(most)}</span><span class="low">${text(0)}</span>
    <svg role="img" aria-label=${said} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
      ${[0, 0.5, 1].map((at) => html`<line key=${at} class="grid" x1="0" x2=${WIDTH} y1=${1 + at * (HEIGHT - 2)} y2=${1 + at * (HEIGHT - 2)} />`)}
      ${series.map((one, at) => html`<path key=${at} d=${line(one[column], most)} style=${{ stroke: hues[at] }} />`)}</svg></div>
    <p class="times"><span>${clock(past.start, past.step * one_less(series[0][column]))}</span><span>${clock(past.start + past.step * one_less(series[0][column]), past.step * one_less(series[0][column]))}</span></p></figure>`;
}

const one_less = (list) => list.length - 1;

function clock(seconds, span) {
  return time(seconds * 1000, { ...(span > 86000 ? DAY : {}), hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
}

// A line that is broken where a value is not known; one alone is a dot.
function line(values, most) {
  let text = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const x = ((at / Math.max(1, values.length - 1)) * WIDTH).toFixed(1);
    const y = (HEIGHT - 1 - (most ? value / most : 0) * (HEIGHT - 2)).toFixed(1);
    const alone = (values[at - 1] ?? null) === null;
    text += `${alone ? "M" : "L"}${x} ${y}${alone ? "h0" : ""}`;
  });
  return text;
}

// What each line is: from when to when something of it is known, and its figures.
function Lines({ past, series, hues, names }) {
  const span = past.step * one_less(series[0].cores);
  return html`<ul class="lines">${series.map((one, at) => {
    const known = one.cores.map((value, i) => (value !== null || one.memory[i] !== null ? i : -1)).filter((i) => i >= 0);
    const [path, text] = names(one);
    const used = one.cores.filter((value) => value !== null);
    const waited = one.waited.filter((value) => value !== null);
    const mean = (list) => list.reduce((total, value) => total + value, 0) / list.length;
    return html`<li key=${text} style=${{ "--hue": hues[at] }}><b aria-hidden="true"></b><span>${path ? html`<a href=${link(path)}>${text}</a>` : text}</span>
      <em>${t("{0} to {1}", clock(past.start + past.step * known[0], span), clock(past.start + past.step * known.at(-1), span))}${used.length ? `, ${t("cores {0} on average, at most {1}", percent(mean(used)), percent(Math.max(...used)))}` : ""}${waited.length ? `, ${t("waited {0} of the time", percent(mean(waited)))}` : ""}</em></li>`;
  })}</ul>`;
}
