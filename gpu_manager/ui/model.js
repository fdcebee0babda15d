// What `ui/data` says, kept by name, and what follows from it. No figure is made up: what is not known is null.

export class Model {
  constructor() {
    this.clear();
  }

  clear() {
    this.nodes = new Map(); // name → node; the same object while nothing of it has changed
    this.texts = new Map(); // name → its JSON, where the server sends everything each time
    this.generation = "";
    this.rest = null; // the last answer without its nodes
  }

  // An answer is full, or holds what changed since `generation`; an agent's is always full.
  take(answer) {
    const partial = answer.generation && !answer.full;
    const shown = new Set(answer.nodes.map((node) => node.node));
    for (const name of partial ? answer.gone : [...this.nodes.keys()].filter((name) => !shown.has(name))) {
      this.nodes.delete(name);
      this.texts.delete(name);
    }
    for (const node of answer.nodes) {
      const text = answer.generation ? "" : JSON.stringify(node);
      if (text && this.texts.get(node.node) === text) continue;
      this.nodes.set(node.node, node);
      this.texts.set(node.node, text);
    }
    this.generation = answer.generation || "";
    const { nodes, ...rest } = answer;
    this.rest = rest;
    this.found = null;
  }

  get sorted() {
    if (this.names?.length !== this.nodes.size || !this.names.every((name) => this.nodes.has(name))) this.names = [...this.nodes.keys()].sort();
    return this.names.map((name) => this.nodes.get(name));
  }

  // Every holder with its node and card, by pod; worked out once an answer, where a view asks for it.
  get pods() {
    if (!this.found) {
      this.found = new Map();
      for (const node of this.nodes.values())
        for (const card of node.cards)
          for (const holder of card.holders) {
            if (holder.hidden || typeof holder.gone === "string") continue;
            for (const key of pods_of(holder)) {
              if (!this.found.has(key)) this.found.set(key, []);
              this.found.get(key).push({ node, card, holder });
            }
          }
    }
    return this.found;
  }

  card(uuid) {
    for (const node of this.nodes.values())
      for (const card of node.cards) if (card.uuid === uuid) return { node, card };
    return null;
  }
}

const CLAIMS = "vcuda.tencent.com"; // who gives a card away by ResourceClaims

export const by_claims = (card) => card.held === CLAIMS;

// The MIG instances, cards of their own, into which a card of the node is divided; none where they are not given.
export const instances = (node, card) => (card.mig ? node.cards.filter((one) => one.parent === card.uuid) : []);

// Why nothing new is placed on the card, as a word; "" if it is open, to pods or to claims.
export function closed(card) {
  if (!card.healthy) return "unhealthy";
  if (card.mig) return "mig";
  if (card.cordoned) return "cordoned";
  if (card.reason || !card.held) return card.open === false ? "closed" : "";
  return by_claims(card) ? "" : "lent";
}

// The pods that hold it, as namespace/name: one, or all that share a claim, or none while nobody has taken the claim.
export const pods_of = (holder) => (holder.claim ? holder.pods : [holder.pod]).map((pod) => `${holder.namespace}/${pod}`);

// Containers that hold time and memory of the card now: an init container that has ended holds its pod's peak on.
export const running = (card) => card.holders.filter((holder) => !holder.ended);

function sum(list, value) {
  let total = 0;
  for (const one of list) {
    const figure = value(one);
    if (figure === null || figure === undefined) return null; // part of a sum is no sum
    total += figure;
  }
  return total;
}

const facts = new WeakMap();

// Ratios of one card (`memory`, `memory_used`: of its memory), null where usage is not known.
export function figures(card) {
  let found = facts.get(card);
  if (!found) {
    const started = running(card).filter((holder) => !holder.planned);
    const booked = card.mig ? null : (100 - card.cores_free) / 100; // a card in MIG mode has no shares of its own
    const memory_used = sum(started, (holder) => holder.memory_used);
    found = {
      booked,
      used: sum(started, (holder) => holder.core_used),
      memory: card.mig ? null : card.memory ? (card.memory - card.memory_free) / card.memory : 0,
      memory_used: memory_used === null || !card.memory ? null : memory_used / card.memory,
      stranded: closed(card) || !booked ? 0 : Math.max(0, card.cores_free) / 100, // free, on a card that is in use
      closed: closed(card),
    };
    facts.set(card, found);
  }
  return found;
}

const sums = new WeakMap();

// A node's cards together. `fragmentation`: free cores on cards in use over all free cores, null if none is free.
export function totals(node) {
  let found = sums.get(node);
  if (!found) {
    const cards = node.cards.filter((card) => !instances(node, card).length); // these count instead of it
    const open = cards.filter((card) => !closed(card));
    const free = open.reduce((total, card) => total + Math.max(0, card.cores_free), 0);
    const stranded = open.reduce((total, card) => total + 100 * figures(card).stranded, 0);
    const holders = node.cards.flatMap(running);
    const measured = holders.filter((holder) => holder.core_used !== null);
    found = {
      cards: cards.length,
      closed: cards.length - open.length,
      booked: cards.reduce((total, card) => total + (card.mig ? 0 : 100 - card.cores_free), 0),
      memory: cards.reduce((total, card) => total + card.memory, 0),
      memory_booked: cards.reduce((total, card) => total + card.memory - card.memory_free, 0),
      free,
      stranded,
      fragmentation: free ? stranded / free : null,
      containers: holders.length,
      measured: measured.reduce((total, holder) => total + holder.cores, 0),
      used: measured.reduce((total, holder) => total + 100 * holder.core_used, 0),
      pods: holders.some((holder) => holder.hidden) ? null : new Set(holders.flatMap(pods_of)).size,
      troubles: troubles_of(node),
      idle: idle_pods(node),
    };
    sums.set(node, found);
  }
  return found;
}

// What of a node needs a person, by rank: [kind, address, values of its sentence, reason].
function troubles_of(node) {
  const found = [[], [], [], []];
  const stopped = node.cards.find((card) => closed(card) === "closed");
  if (stopped) found[1].push(["node", ["node", node.node], [node.node], stopped.reason || ""]);
  for (const card of node.cards) {
    const where = ["card", card.uuid];
    const name = [card.index, node.node];
    if (!card.healthy) found[0].push(["unhealthy", where, name, card.reason || ""]);
    else if (card.cordoned && card.holders.every((holder) => holder.admin)) found[3].push(["emptied", where, name, ""]);
    for (const holder of card.holders) if (holder.stuck && !holder.hidden) found[1].push(["stuck", ["pod", holder.namespace, holder.pod], [`${holder.namespace}/${holder.pod}`, holder.container, holder.stuck], ""]);
    if (card.holders.some((holder) => typeof holder.gone === "string")) found[2].push(["gone", where, name, ""]);
  }
  return found;
}

// Who needs a person first, the worst first.
export function troubles(model) {
  const found = model.sorted.map((node) => totals(node).troubles);
  const ranked = (rank) => found.flatMap((one) => one[rank]);
  const never = (model.rest.waiting || []).filter((row) => row.group === "never" || row.group === "node")
    .map((row) => ["never", ["pod", ...row.pod.split("/")], [row.pod], row.change || row.why]);
  return [...ranked(0), ...ranked(1), ...ranked(2), ...never, ...ranked(3)];
}

// The pods of a node whose booked cores are used least: [pod, cores idle, cores booked] where use is known.
function idle_pods(node) {
  const found = new Map();
  for (const card of node.cards)
    for (const holder of running(card)) {
      if (holder.core_used === null || holder.hidden || typeof holder.gone === "string") continue;
      const [key] = pods_of(holder);
      if (!key) continue;
      const [, idle, booked] = found.get(key) || [key, 0, 0];
      found.set(key, [key, idle + holder.cores - 100 * holder.core_used, booked + holder.cores]);
    }
  return [...found.values()].filter(([, idle]) => idle >= 1).sort((a, b) => b[1] - a[1]).slice(0, 5);
}

// By model of card: how many there are, of which how many are unusable, and cores booked and used; the most cards first.
export function by_model(model) {
  const found = new Map();
  for (const node of model.nodes.values())
    for (const card of node.cards) {
      if (instances(node, card).length) continue;
      if (!found.has(card.model)) found.set(card.model, { model: card.model, cards: 0, memory: card.memory, closed: 0, booked: 0, used: 0, measured: 0 });
      const one = found.get(card.model);
      one.cards += 1;
      if (figures(card).closed) one.closed += 100 - Math.min(100, 100 * (figures(card).booked || 0));
      one.booked += 100 * (figures(card).booked || 0);
      for (const holder of running(card)) if (holder.core_used !== null) { one.used += 100 * holder.core_used; one.measured += holder.cores; }
    }
  return [...found.values()].sort((a, b) => b.cards - a.cards);
}

// By namespace: who holds how much, and how much of what is measured lies idle; the most cores first.
export function by_namespace(model) {
  const found = new Map();
  for (const node of model.nodes.values())
    for (const card of node.cards)
      for (const holder of running(card)) {
        if (holder.hidden || typeof holder.gone === "string") continue;
        if (!found.has(holder.namespace)) found.set(holder.namespace, { namespace: holder.namespace, cores: 0, memory: 0, measured: 0, used: 0, pods: new Set() });
        const one = found.get(holder.namespace);
        one.cores += holder.cores;
        one.memory += holder.memory;
        for (const pod of pods_of(holder)) one.pods.add(pod);
        if (holder.core_used !== null) { one.measured += holder.cores; one.used += 100 * holder.core_used; }
      }
  return [...found.values()].sort((a, b) => b.cores - a.cores);
}

// The five pods of the cluster with most cores booked and idle.
export function wasters(model) {
  let found = [];
  for (const node of model.nodes.values())
    for (const one of totals(node).idle) {
      if (found.length === 5 && one[1] <= found[4][1]) break; // the rest of this node's are smaller still
      found = [...found, one].sort((a, b) => b[1] - a[1]).slice(0, 5);
    }
  return found;
}
