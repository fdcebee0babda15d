// An answer of the server that one view alone shows: asked for when the view opens, and again every so many seconds.
import { Component } from "./parts.js";

// A path with its parameters, and the namespace that is looked at.
export function asked(path, source, params = {}) {
  const query = new URLSearchParams(params);
  if (source.namespace) query.set("namespace", source.namespace);
  return query.size ? `${path}?${query}` : path;
}

const SOON = 2; // seconds after which it is asked again where agents are being asked what they remember

// `path`: what is asked for, "" for nothing; `every`: seconds, fewer while `lacks(answer)`; `children`: (answer or null, why there is none) → what is shown.
export class Asked extends Component {
  constructor(props) {
    super(props);
    this.state = { answer: null, trouble: "" };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate() {
    this.read();
  }

  // Views are drawn again with each answer of the server: often enough to ask from here.
  async read() {
    const { path, every, source, lacks } = this.props;
    if (!path || source.paused || (path === this.path && performance.now() < this.next)) return;
    if (path !== this.path && this.state.answer) this.setState({ answer: null, trouble: "" });
    this.path = path;
    this.next = performance.now() + every * 1000;
    try {
      const answer = await source.ask(path);
      if (path !== this.path) return;
      if (lacks?.(answer)) this.next = performance.now() + SOON * 1000;
      this.setState({ answer, trouble: "" });
    } catch (error) {
      if (path === this.path) this.setState({ answer: null, trouble: error.message });
    }
  }

  render({ children }, { answer, trouble }) {
    return children(answer, trouble);
  }
}
