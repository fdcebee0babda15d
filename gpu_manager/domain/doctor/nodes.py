"""Checks of nodes, cards and the agent's pods, as the API server shows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    DRA_DRIVER,
    FRONT_LABEL,
    MODEL_LABEL,
    MODEL_LABEL_GAIA,
    decode_assignment,
    model_labels,
)
from gpu_manager.domain.doctor.facts import (
    AgentPods,
    CheckGroup,
    ClusterFacts,
    DoctorNode,
    Unseen,
    counted,
    nodes_of,
    pods_of,
)
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import printable
from gpu_manager.domain.kube.constraints import meets, shown_terms
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.domain.other_plugins import OTHER_PLUGIN
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes

_FIRST_CONTAINERD_WITH_CDI: Final = (1, 7)
# Labels that others write to nodes on which they hold programs to shares; with None any value does.
_SHARERS: Final = (
    ("gpu-fractioning.kai.scheduler/nvidia-driver-version.major", None, "gpu-fractioning (mpsd)"),
    ("nvidia.com/gpu.sharing-strategy", "mps", "NVIDIA's plugin, with MPS"),
    ("nvidia.com/gpu.sharing-strategy", "time-slicing", "NVIDIA's plugin, with time-slicing"),
)
_VERSION: Final = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})", re.ASCII)


NODES: Final = CheckGroup("cluster")


def _absent(cluster: ClusterFacts) -> dict[str, int]:
    """Nodes that the API lacks, with the number of pods that run there and ask for a share."""
    there = {node.name for node in nodes_of(cluster)}
    on = Counter(f.pod.node for f in cluster.pods or () if f.pod.node and not f.pod.terminal)
    return {name: count for name, count in sorted(on.items()) if name not in there}


@NODES.trouble(
    "no-gpu-node",
    "No node offers cards.",
    "Install the chart; the agent publishes a node's cards within seconds. `gpu-manager doctor` on a node "
    "with cards says what is in the way.",
)
def _no_node(cluster: ClusterFacts, _: float) -> Iterator[str]:
    nodes = nodes_of(cluster)
    if not any(node.inventory for node in nodes) and not _absent(cluster):
        yield f"of {counted(len(nodes), 'node')} none publishes an inventory of cards"


@NODES.trouble(
    "node-gone",
    "The Node object was deleted: what runs there keeps its card and limits, and nothing new is placed "
    "there.",
    "Restart the node's kubelet, which makes the object again, and give it the labels back that were set by "
    "hand. Where the machine is gone for good, delete its pods.",
)
def _node_gone(cluster: ClusterFacts, _: float) -> Iterator[str]:
    pods_of(cluster)  # says why, where they cannot be seen
    yield from (
        f"node {printable(name)}, on which {counted(count, 'pod')} with {CORE} run, is gone from the API"
        for name, count in _absent(cluster).items()
    )


@NODES.trouble(
    "inventory-unreadable",
    "A node's inventory is of an unknown version, or was overwritten.",
    "Bring both to one version; the agent writes the annotation anew when it starts.",
)
def _unreadable(cluster: ClusterFacts, _: float) -> Iterator[str]:
    names = [printable(n.name) for n in nodes_of(cluster) if n.inventory_unreadable]
    yield from (f"node {name}: this version cannot read its inventory" for name in names)


@NODES.trouble(
    "node-offers-nothing",
    "The agent sees cards but is not registered with the kubelet, or all its cards are unhealthy.",
    "`gpu-manager doctor` on the node: plugin-not-registered says what is missing.",
)
def _not_offered(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for node in nodes_of(cluster):
        there = node.inventory.cards if node.inventory else ()
        cards = [s for s in there if not s.card.mig and s.held != DRA_DRIVER]
        if cards and not node.core and not _gives_by_claims(node):
            offers = f"no {CORE}" if node.core is None else f"0 {CORE}"
            yield f"node {printable(node.name)} has {counted(len(cards), 'card')} and offers {offers}"


def _gives_by_claims(node: DoctorNode) -> bool:
    return node.labels.get(FRONT_LABEL) == Front.DRA.value


@NODES.trouble(
    "claims-old-runtime",
    "The runtime of a node knows no CDI, by which alone devices of claims reach a container: its pods stay "
    "at ContainerCreating.",
    "Upgrade the node to containerd 2, or drain it and go back to `--front plugin`.",
)
def _runtime_before_cdi(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for node in nodes_of(cluster):
        if FRONT_LABEL not in node.labels or not node.runtime:
            continue
        name, _slashes, version = node.runtime.partition("://")
        found = _VERSION.match(version)
        old = name == "containerd" and found and (int(found[1]), int(found[2])) < _FIRST_CONTAINERD_WITH_CDI
        if old or name == "docker":
            what = f"{name} {version}".rstrip()
            yield f"node {printable(node.name)} gives cards by claims and runs {printable(what)}"


def _agents(cluster: ClusterFacts) -> AgentPods:
    if cluster.agents is not None:
        return cluster.agents
    if cluster.agents_known:
        raise Unseen("there is no DaemonSet of the agent")
    raise Unseen(cluster.refused.get("daemonsets", "the API server did not show daemonsets"))


@NODES.trouble(
    "agent-absent",
    "The agent does not run on all its nodes.",
    "`kubectl describe pod` and its log; `helm status` if there is no DaemonSet.",
)
def _no_agent(cluster: ClusterFacts, _: float) -> Iterator[str]:
    if cluster.agents is None and cluster.agents_known:
        yield "no DaemonSet gpu-manager-daemonset in any namespace"
        return
    silent = [node for node, ready in sorted(_agents(cluster).ready.items()) if not ready]
    yield from (f"the agent's pod on node {printable(node)} is not ready" for node in silent)


@NODES.warning(
    "agent-gone",
    "No agent serves this node any more; running containers keep their limits.",
    "Give the node back the label that the DaemonSet selects, or remove the annotation "
    "tencent.com/vcuda-inventory.",
)
def _gone_agent(cluster: ClusterFacts, _: float) -> Iterator[str]:
    agents = _agents(cluster)
    names = [printable(n.name) for n in nodes_of(cluster) if n.inventory and n.name not in agents.ready]
    yield from (f"node {name} publishes cards, but no agent's pod runs there" for name in names)


@NODES.warning(
    "agent-not-serving",
    "This node's inventory says that its agent does not serve: pods that ask for cards wait.",
    "Nothing while the agent or the kubelet is replaced: that takes some seconds. Else `kubectl describe "
    "pod` and its log, and `gpu-manager doctor` on the node: plugin-not-registered says what is missing.",
)
def _not_serving(cluster: ClusterFacts, _: float) -> Iterator[str]:
    names = [printable(n.name) for n in nodes_of(cluster) if n.inventory and not n.inventory.serving]
    yield from (f"node {name}: its agent is starting, or has left" for name in names)


@NODES.warning(
    "node-label-missing",
    "Nodes have cards, but the agent runs on none of them.",
    "`kubectl label node NODE KEY=VALUE` as the text names it, or widen the chart's agent.affinity and "
    "agent.nodeSelector.",
)
def _labels(cluster: ClusterFacts, _: float) -> Iterator[str]:
    agents = _agents(cluster)
    if agents.ready:
        return  # nodes are opted in, and those without the label were meant to stay out
    for node in nodes_of(cluster):
        missing = [f"{k}={v}" for k, v in agents.selector.items() if node.labels.get(k) != v]
        if agents.affinity and not any(meets(node.labels, terms) for terms in agents.affinity):
            missing.append(" or ".join(map(shown_terms, agents.affinity)))
        if missing and node.hinted:
            yield (
                f"node {printable(node.name)} has cards ({node.hinted}), but not the label "
                f"{', '.join(map(printable, missing))} that the agent asks for"
            )


@NODES.warning(
    "model-label-missing",
    "Node selectors by card model do not match the node.",
    "The agent writes it when it starts: give its service account the right to patch its node.",
)
def _model_label(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for node in nodes_of(cluster):
        models = {s.card.model for s in node.inventory.cards} if node.inventory else set()
        if len(models) == 1 and not (node.labels.get(MODEL_LABEL) or node.labels.get(MODEL_LABEL_GAIA)):
            yield f"node {printable(node.name)}: neither {MODEL_LABEL} nor {MODEL_LABEL_GAIA} is set"


@NODES.trouble(
    "model-label-wrong",
    "A pod that selects a model of card by this label lands on another.",
    "The agent corrects or removes the label while it runs: see why it does not. A label that you set "
    "yourself (agent.nodeLabels) is yours to correct.",
)
def _model_label_wrong(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for node in nodes_of(cluster):
        cards = node.inventory.cards if node.inventory else ()
        models = ", ".join(sorted({printable(s.card.model) for s in cards}))
        for key, value in model_labels(cards).items():
            there = node.labels.get(key)
            if there and there != value:
                yield f"node {printable(node.name)}: {key}={printable(there)}, its cards are {models}"


@NODES.trouble(
    "units-differ",
    "The extender refuses nodes with another unit of memory than its own.",
    "Set one unit in the chart's values; a node adopts it when its agent restarts.",
)
def _units(cluster: ClusterFacts, _: float) -> Iterator[str]:
    units = Counter(n.inventory.unit for n in nodes_of(cluster) if n.inventory)
    if len(units) > 1:
        counts = (f"{count} in {format_bytes(unit)}" for unit, count in units.most_common())
        yield f"nodes count memory in different units: {', '.join(counts)}"


@NODES.trouble(
    "two-plugins-on-node",
    "Two device plugins offer the same cards.",
    "Take nvidia-device-plugin off this node (with the GPU operator: label the node "
    "`nvidia.com/gpu.deploy.device-plugin=false`; docs/gpu-operator.md says what becomes of its validator).",
)
def _two_plugins(cluster: ClusterFacts, _: float) -> Iterator[str]:
    lends = cluster.agents is not None and cluster.agents.lends
    both = [] if lends else [n for n in nodes_of(cluster) if n.gpu and n.core and not _left_over_on(n)]
    yield from (
        f"node {printable(n.name)} offers {n.gpu} nvidia.com/gpu beside {n.core} {CORE}" for n in both
    )


@NODES.warning(
    "shared-elsewhere",
    "Another system holds programs to shares of cards on a node of this agent's, or has given a pod there a "
    "part of one: neither knows what the other has given.",
    "Keep one of them on a node: take the label of the agent's nodes away (`nvidia-device-enable`), or keep "
    "the other system off by its node selector. `kubectl label node NODE KEY-` takes a label off that an "
    "uninstalled system left. docs/which.md says when which.",
)
def _shared_elsewhere(cluster: ClusterFacts, _: float) -> Iterator[str]:
    for node in (n for n in nodes_of(cluster) if n.inventory):
        for label, value, who in _SHARERS:
            if (found := node.labels.get(label)) is not None and value in (None, found):
                yield f"node {printable(node.name)} has the label {label}={printable(found)} of {who}"
        pods = cluster.given_elsewhere.get(node.name, ())
        yield from [f"node {printable(node.name)}: pod {printable(pod)}" for pod in pods]


@NODES.trouble(
    "left-over-capacity",
    "A kubelet that lost its checkpoint carries the number of a device plugin that has gone in its node's "
    "status: a pod that asks for it is bound there, and runs without a card.",
    "`kubectl patch node NODE --subresource=status --type=json -p "
    '\'[{"op":"remove","path":"/status/capacity/nvidia.com~1gpu"},{"op":"remove","path":"/status/allocatable'
    "/nvidia.com~1gpu\"}]'`; so too the other names of a plugin that has gone. Then delete the pods that "
    "were bound meanwhile.",
)
def _left_over(cluster: ClusterFacts, _: float) -> Iterator[str]:
    lends = cluster.agents is not None and cluster.agents.lends
    nodes = [] if lends else [n for n in nodes_of(cluster) if n.gpu and _left_over_on(n)]
    yield from (
        f"node {printable(n.name)} shows {n.gpu} nvidia.com/gpu, and no plugin offers them" for n in nodes
    )


def _left_over_on(node: DoctorNode) -> bool:
    """True if the agent, which asks the kubelet twice a second what other plugins offer, is told of nothing,
    though the node's status counts ``nvidia.com/gpu``.
    """
    if node.inventory is None or not node.inventory.serving or not node.inventory.cards:
        return False
    return not any(s.reason.startswith(OTHER_PLUGIN) for s in node.inventory.cards)


@NODES.warning(
    "card-unhealthy",
    "The card takes no new shares.",
    "`gpu-manager status` on the node has the reason; it opens again once it is healthy.",
)
def _unhealthy(cluster: ClusterFacts, _: float) -> Iterator[str]:
    ill = [
        (n.name, s.card) for n in nodes_of(cluster) if n.inventory for s in n.inventory.cards if not s.healthy
    ]
    yield from (f"node {printable(name)}: card {card.index} ({printable(card.uuid)})" for name, card in ill)


@NODES.trouble(
    "card-over-committed",
    "The annotations of a node's pods add up to more than a card.",
    "Please report it with the annotations; delete the youngest of the pods.",
)
def _over(cluster: ClusterFacts, _: float) -> Iterator[str]:
    known = {n.name for n in nodes_of(cluster) if n.inventory}
    held: Counter[tuple[str, str]] = Counter()
    for pod in (fact.pod for fact in pods_of(cluster)):
        said = decode_assignment(pod.annotations.get(ALLOCATION))
        if said is None or said.pod != pod.uid or said.node != pod.node or pod.terminal:
            continue
        init = {c.name for c in pod.containers if c.kind is ContainerKind.INIT}  # these run before the rest
        for name, shares in said.containers.items():
            for uuid, amount in shares if name not in init else ():
                held[said.node, uuid] += amount.cores
    yield from (
        f"node {printable(node)}: {cores} of {CORES_PER_CARD} cores of card {printable(uuid)} are handed out"
        for (node, uuid), cores in sorted(held.items())
        if node in known and cores > CORES_PER_CARD
    )
