// Asks whoever served this page for its data, every two seconds while somebody looks.
import { local } from "./sentences.js";
import { t } from "./words.js";

const PERIOD = 2000; // ms between two answers; an agent samples once a second
const DEADLINE = 5000; // ms that an answer may take: a stopped agent accepts connections and says nothing
const OLD = 10; // seconds from which on figures are not called live, however fresh the answer

export class Source {
  constructor(model, changed) {
    this.model = model;
    this.changed = changed;
    this.paused = false;
    this.reading = false;
    this.refused = false; // no token, or one without the right
    this.trouble = ""; // why the last reading failed
    this.at = 0; // ms of performance.now() at the last reading that did not
    this.namespace = "";
  }

  start() {
    document.addEventListener("visibilitychange", () => this.read());
    setInterval(() => this.read(), PERIOD);
    setInterval(() => this.changed(), 1000);
    this.read();
  }

  pause() {
    this.paused = !this.paused;
    if (!this.paused) this.read();
    this.changed();
  }

  // Another namespace is another view of everything.
  see(namespace) {
    if (namespace === this.namespace) return;
    this.namespace = namespace;
    this.model.clear();
    this.read();
  }

  async ask(path, options = {}) {
    const token = sessionStorage.getItem("token");
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(DEADLINE) });
    if (!answer.ok) throw Object.assign(new Error(local(sentence(await answer.text())) || t("the server answered {0}", answer.status)), { refused: answer.status === 401 || answer.status === 403 ? answer.status : 0 });
    return answer.json();
  }

  async read() {
    if (this.paused || this.reading || document.hidden) return;
    this.reading = true;
    const { namespace } = this;
    try {
      const query = new URLSearchParams();
      if (namespace) query.set("namespace", namespace);
      if (this.model.generation) query.set("since", this.model.generation);
      const answer = await this.ask(`ui/data${query.size ? `?${query}` : ""}`);
      if (namespace !== this.namespace) return;
      this.model.take(answer);
      this.refused = false;
      this.at = performance.now();
      this.trouble = "";
    } catch (error) {
      this.refused = error.refused || false;
      this.trouble = error.name === "TimeoutError" ? t("no answer within {0} seconds", DEADLINE / 1000) : error.message;
    } finally {
      this.reading = false;
      this.changed();
    }
    if (namespace !== this.namespace) this.read();
  }

  // Seconds that the figures are old: by the server's word, and by the time since it answered.
  get age() {
    return Math.round((this.model.rest.age || 0) + (performance.now() - this.at) / 1000);
  }

  // What is said of the figures, and whether it is bad news.
  get status() {
    if (!this.model.rest && this.refused && !sessionStorage.getItem("token")) return [t("Nothing is shown to strangers: a token says who you are."), false];
    if (!this.model.rest && this.refused === 401) return [t("This token is not accepted: it may have ended, or be another cluster's."), true];
    if (!this.model.rest) return this.trouble ? [t("Nothing to show: {0}", this.trouble), true] : [t("Loading …"), false];
    if (this.trouble) return [t("Not live, these figures are out of date: {0}", this.trouble), true];
    if (this.paused) return [t("Paused."), false];
    if (this.age > OLD && this.model.rest.silent) return [t("Not live: the API server does not answer the admission service."), true];
    if (this.age > OLD) return [t("Not live: the agent answers, but does not sample."), true];
    return [t("Live, refreshed every 2 seconds."), false];
  }
}

function sentence(text) { // the agent says it bare, admission as {"error": …}
  try {
    return String(JSON.parse(text).error).slice(0, 300);
  } catch {
    return text.trim().slice(0, 300);
  }
}
