// What would become of a manifest: legal or not, where its pods would go, who stands in the way.
import { Component, html } from "./parts.js";
import { Outcomes } from "./places.js";
import { local } from "./sentences.js";
import { t } from "./words.js";

export class WhatIf extends Component {
  constructor(props) {
    super(props);
    this.state = { text: "", found: null, trouble: "" };
  }

  async judge() {
    const { source } = this.props;
    const query = source.namespace ? `?${new URLSearchParams({ namespace: source.namespace })}` : "";
    try {
      const headers = { "Content-Type": "application/yaml" };
      const { workloads } = await source.ask(`ui/what-if${query}`, { method: "POST", headers, body: this.state.text });
      this.setState({ found: workloads, trouble: "" });
    } catch (error) {
      this.setState({ found: null, trouble: error.message });
    }
  }

  async drop(event) {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (!file) return;
    this.setState({ text: await file.text() });
    this.judge();
  }

  render(_, { text, found, trouble }) {
    return html`<h1 tabindex="-1">${t("What if this were applied?")}</h1>
      <form class="what-if" onSubmit=${(event) => { event.preventDefault(); this.judge(); }} onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => this.drop(event)}>
        <label for="manifest">${t("Manifests in YAML or JSON: paste them, or drop a file here")}</label>
        <textarea id="manifest" rows="12" spellcheck=${false} value=${text} onInput=${(event) => this.setState({ text: event.target.value })}></textarea>
        <button disabled=${!text.trim()}>${t("Check")}</button></form>
      <p class="none">${t("Nothing is created. Each workload is judged alone, against the cluster as it is now; its copies come one after the other.")}</p>
      <div role="status">${trouble ? html`<p class="bad">${trouble}</p>` : null}
      ${found && !found.length ? html`<p class="none">${t("No object of these runs pods.")}</p>` : null}
      ${(found || []).map((one, at) => html`<section key=${at} class="workload"><h2>${one.kind} ${one.name}${one.copies > 1 ? ` (${t("{0} copies", one.copies)}${one.fit === undefined ? "" : `, ${t("{0} fit", one.fit)}`})` : ""}</h2>
        ${one.error ? html`<p class="bad">${local(one.error)}</p>` : html`<p class="line">${local(one.said.line)}</p>
          ${one.said.change ? html`<p><strong>${t("Smallest change that helps")}:</strong> ${local(one.said.change)}</p>` : null}<${Outcomes} said=${one.said} />`}</section>`)}</div>`;
  }
}
