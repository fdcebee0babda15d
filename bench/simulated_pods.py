"""``simulate_same_count`` and ``simulate_same_node``: what the admission service says of pods to come, and
what its extender then does with the same pods on the same cluster.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from admission.config import ClusterTerms
from admission.explain.drafts import simulate
from admission.extender.fragmentation_score import LeastFragmentation
from bench.rows import Row
from tests.fakes.extender import Obj, World, node, pod

CLUSTERS: Final = 200


class Agreement(NamedTuple):
    """Pods in all, and how many of them went where the service had said; clusters where as many fitted."""

    pods: int
    same_node: int
    same_count: int


def rows() -> Iterator[Row]:
    """The rows."""
    found = agreement(range(CLUSTERS))
    note = (
        f"{CLUSTERS} clusters of 3 to 12 nodes of two models with pods that came and went, {found.pods} pods"
    )
    count, same = 100 * found.same_count / CLUSTERS, 100 * found.same_node / found.pods
    yield Row("simulate_same_count", count, "%", "≥ 100", None, full=True, note=note)
    yield Row("simulate_same_node", same, "%", "≥ 99", None, full=True, note=note)


def agreement(seeds: Sequence[int]) -> Agreement:
    """Ask about pods, then schedule them."""
    pods = same_node = same_count = 0
    for seed in seeds:
        dice = random.Random(seed)
        world = _cluster(dice)
        coming = [_pod(dice, f"new-{n}") for n in range(dice.randint(5, 40))]
        said = _simulated(world, coming)
        done = {obj["metadata"]["name"]: _scheduled(world, obj) for obj in coming}
        pods += len(done)
        same_node += sum(said[name] == where for name, where in done.items())
        same_count += sum(map(bool, said.values())) == sum(map(bool, done.values()))
    return Agreement(pods, same_node, same_count)


class _Policied(World):
    """A cluster whose extender chooses as the deployed one does; its mix is refreshed at once."""

    def __init__(self, nodes: Sequence[Obj]) -> None:
        super().__init__(nodes)
        self.policy = LeastFragmentation(self.cluster, aside=lambda job: job())
        self.extender._choice._policy = self.policy  # noqa: SLF001 - the fake is made with its books


def _cluster(dice: random.Random) -> _Policied:
    kinds = [("A100", 40), ("T4", 16)]
    nodes = []
    for n in range(dice.randint(3, 12)):
        model, gib = dice.choice(kinds)
        nodes.append(node(f"n{n}", dice.choice((1, 2, 4, 8)), model=model, memory=gib << 30))
    world = _Policied(nodes)
    running = []
    for n in range(dice.randint(5, 60)):
        obj = _pod(dice, f"old-{n}")
        if _scheduled(world, obj):
            running.append(obj)
        if running and dice.random() < 0.3:
            world.delete(running.pop(dice.randrange(len(running))))
    return world


def _pod(dice: random.Random, name: str) -> Obj:
    cores = dice.choice((10, 20, 25, 30, 50, 70, 100, 100, 200, 400))
    annotations = {"tencent.com/gpu-model": "A100"} if dice.random() < 0.2 else {}
    memory = None if cores >= 100 else dice.choice((4, 8, 16, 32))
    return pod(name, cores, memory, annotations=annotations)


def _scheduled(world: World, obj: Obj) -> str:
    """The node on which the pod comes to lie, as kube-scheduler asks; empty if none takes it."""
    world.create(obj)
    return world.schedule(obj)


def _simulated(world: _Policied, coming: Sequence[Obj]) -> dict[str, str]:
    """The node of each pod by the service; empty if none takes it."""
    groups = [
        {"manifest": obj, "names": [obj["metadata"]["name"]], "nodes": world.nodes, "host": [0, 0, 1]}
        for obj in coming
    ]
    answer = simulate(json.dumps({"pods": groups}).encode(), world.policy, world.quota, ClusterTerms())
    said = {row["pod"]: row["node"] for row in answer["placements"]}
    return {obj["metadata"]["name"]: said.get(f"default/{obj['metadata']['name']}", "") for obj in coming}
