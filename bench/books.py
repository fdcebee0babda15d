"""Do ``kubectl vcuda`` and the scheduler extender account for a cluster alike? Random clusters, both asked.

``books_disagreements`` counts clusters in which they differ: in what is free on a card, in who holds what, or
in what counts for a quota. The extender takes the objects as its watch brings them, cut down and in any
order; kubectl reads the whole lists once. The clusters are small and odd: annotations spoilt after the pod
was placed, forged, or lost; pods bound by hand, pods that no node could take, nodes without an inventory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.cluster.trim import slim_node, slim_pod
from bench.rows import Row
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_books import NodeBooks, Used
from gpu_manager.domain.cluster.node_json import read_node, usual_unit
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CORDON,
    CORE,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    INVENTORY,
    MEMORY,
    MODEL_LABEL,
    NVIDIA,
    PLACEMENT,
    Assignment,
    Inventory,
    TerminatingShare,
    encode_assignment,
    encode_inventory,
)
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.topology import Link, Topology

Obj = dict[str, Any]
CLUSTERS = 10_000
_MODELS = ("Tesla-T4", "Tesla-V100-SXM2-32GB")
_AMOUNTS = (("30", "4"), ("60", "20"), ("60", "8"), ("100", None), ("200", None), ("10", "1"), ("0", None))
_ILLEGAL = (("150", None), ("30", None), (None, "4"), ("0.5", "4"))
_ODD = ((CORE_LIMIT, "150"), (CORE_LIMIT, "80"), (PLACEMENT, "foo"), (PLACEMENT, "spread"), (GPU_MODEL, "T4"))


def rows(clusters: int = CLUSTERS) -> Iterator[Row]:
    """The row."""
    different = sum(
        bool(disagreement(*random_cluster(random.Random(seed)), order=seed)) for seed in range(clusters)
    )
    note = f"{clusters} random clusters, kubectl's accounting against the extender's"
    yield Row("books_disagreements", different, "count", "= 0", note=note)


def disagreement(nodes: Sequence[Obj], pods: Sequence[Obj], order: int = 0) -> str:
    """What kubectl and the extender say differently of these objects; empty if nothing. ``order``: a seed."""
    cluster = cluster_of(nodes, pods)
    seen = ClusterState(usual_unit(map(read_node, nodes)))  # kubectl cannot know how the extender is set up
    events = [(NODES, slim_node(obj)) for obj in nodes]
    events += [(PODS, slim) for obj in pods if (slim := slim_pod(obj)) is not None]
    random.Random(order).shuffle(events)
    for kind, obj in events:
        seen.apply(kind, "ADDED", obj)
        seen.snapshot()
    snapshot = seen.snapshot()
    told = {books.name: _told(books) for books in cluster.with_cards}
    judged = {name: _told(view) for name, view in snapshot.nodes.items() if view.node.published}
    for name in sorted({*told, *judged}):
        if told.get(name) != judged.get(name):
            return f"node {name}: kubectl {told.get(name)}, extender {judged.get(name)}"
    if _plain(cluster.used) != _plain(snapshot.used):
        return f"used: kubectl {_plain(cluster.used)}, extender {_plain(snapshot.used)}"
    return ""


def _told(books: NodeBooks) -> object:
    """What is free on each card, and who holds what."""
    free = [books.ledger.free(state.card.uuid) for state in books.node.cards]
    return free, sorted((a.pod, a.container, a.order, repr(a.shares)) for a in books.ledger)


def _plain(used: Used) -> dict[str, dict[str, Amount]]:
    return {
        namespace: held
        for namespace, models in used.items()
        if (held := {model: amount for model, amount in models.items() if amount != Amount(0, 0)})
    }


def random_cluster(dice: random.Random) -> tuple[list[Obj], list[Obj]]:
    """Nodes and pods as the API server lists them."""
    nodes = [_node(dice, f"n{n}") for n in range(dice.randint(1, 3))]
    names = [*(obj["metadata"]["name"] for obj in nodes), "n-unknown", ""]
    return nodes, [_pod(dice, f"p{n}", dice.choice(names)) for n in range(dice.randint(1, 8))]


def uuid(node: str, index: int) -> CardUuid:
    """The card's UUID."""
    return CardUuid(f"GPU-{node}-{index}")


def _node(dice: random.Random, name: str) -> Obj:
    states = tuple(
        CardState(Card(i, uuid(name, i), dice.choice(_MODELS), 16 * GIB), healthy=dice.random() < 0.9)
        for i in range(dice.randint(0 if dice.random() < 0.1 else 1, 3))
    )
    left = tuple(
        TerminatingShare(dice.choice(("uid-p0", "uid-gone", "")), state.card.uuid, Amount(20, GIB))
        for state in states
        if dice.random() < 0.1
    )
    topology = Topology.uniform(len(states), Link.parse("SYS"))
    inventory = Inventory(DEFAULT_UNIT * (1 if dice.random() < 0.9 else 4), states, topology, lingering=left)
    annotations = {INVENTORY: encode_inventory(inventory)} if dice.random() < 0.9 else {}
    if dice.random() < 0.1:
        annotations[CORDON] = uuid(name, 0)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": annotations, "labels": {MODEL_LABEL: _MODELS[0]}},
        "status": {"capacity": {NVIDIA: "2"} if dice.random() < 0.3 else {}},
    }


def _pod(dice: random.Random, name: str, node: str) -> Obj:
    containers = [_container(dice, f"c{n}") for n in range(dice.choice((1, 1, 1, 2)))]
    init = [_container(dice, "first")] if dice.random() < 0.15 else []
    if init and dice.random() < 0.5:
        init[0]["restartPolicy"] = "Always"
    annotations = dict(dice.sample(_ODD, 2)) if dice.random() < 0.3 else {}
    if dice.random() < 0.1:
        annotations[GPU_UUID] = dice.choice(("all of them", f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"))
    if node and dice.random() < 0.6:
        annotations[ALLOCATION] = _allocation(dice, name, node, [*init, *containers])
        annotations[ASSIGNED] = dice.choice(("true", "false"))
    meta: Obj = {
        "name": name,
        "namespace": dice.choice(("a", "b")),
        "uid": f"uid-{name}",
        "creationTimestamp": f"2026-01-01T00:00:0{dice.randrange(10)}Z",
        "annotations": annotations,
    }
    if dice.random() < 0.1:
        meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    phase = dice.choice(("Pending", "Running", "Running", "Succeeded") if node else ("Pending",))
    status = {"phase": phase, "startTime": f"2026-01-01T00:01:0{dice.randrange(10)}Z"}
    spec: Obj = {"containers": containers, "initContainers": init}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _container(dice: random.Random, name: str) -> Obj:
    kind = dice.random()
    if kind < 0.1:
        limits = {NVIDIA: dice.choice(("1", "2"))}
    else:
        core, memory = dice.choice(_ILLEGAL if kind < 0.15 else _AMOUNTS)
        limits = {key: value for key, value in ((CORE, core), (MEMORY, memory)) if value is not None}
    return {"name": name, "image": "image", "resources": {"limits": limits}}


def _allocation(dice: random.Random, name: str, node: str, containers: Sequence[Obj]) -> str:
    """What the extender or the agent wrote; or another's, or a forgery."""
    kind = dice.random()
    if kind < 0.05:
        return "{"
    about = "uid-of-another" if kind < 0.1 else f"uid-{name}"
    shares = {}
    for container in containers:
        limits = container["resources"]["limits"]
        cores = int(limits.get(CORE, "0").partition(".")[0]) or 100 * int(limits.get(NVIDIA, "0"))
        cards = dice.sample(range(3), min(3, max(1, cores // 100)))
        said = Amount(dice.choice((min(cores, 100), 1, 900)), dice.choice((GIB, 5 * GIB)))
        shares[container["name"]] = tuple((uuid(node, card), said) for card in cards)
    return encode_assignment(Assignment(node if kind < 0.95 else "n-other", about, shares))
