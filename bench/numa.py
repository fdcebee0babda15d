"""Containers under the kubelet's NUMA policies: whose cards lie on other NUMA nodes than the ids it got?

The oracle (:mod:`bench.numa_oracle`) looks at each one that lies elsewhere as it was when the kubelet turned
to it. Four NUMA nodes of two cards, pods as on the real cluster (``tests/cluster/numa.py``), bound up to
three ahead of their admission; the agent is real, the kubelet its stand-in.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.numa_oracle import within_reach
from bench.rows import Row
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import CORES_PER_CARD, GIB
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.domain.topology import Link, LinkKind, NumaPolicy, Topology
from sandbox.kubelet import Limiter, Step
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import cards

POLICIES: Final = (NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE)
NODES: Final = (1, 3, 5, 7)
AHEAD: Final = 3
_BATCH: Final = 8
_MOST_CORES: Final = 520
_MEMORY: Final = 40 * GIB
_OPEN: Final = Limiter(rate=1e6, burst=1_000_000)
_SHAPES: Final = ("one", "pair", "staged", "flanked", "whole")


@dataclass(slots=True)
class Aligned:
    """What became of the containers that were admitted."""

    containers: int = 0
    refused: int = 0  # pods, by the kubelet
    elsewhere: int = 0  # on cards of other nodes than their ids
    within_reach: int = 0  # of these, those that another choice of cards would have spared
    told: list[str] = field(default_factory=list)


class _Run:
    """One policy on one node."""

    def __init__(self, rig: NodeRig, seed: int, found: Aligned) -> None:
        self._rig, self._dice, self._found = rig, random.Random(seed), found
        self._moments: dict[tuple[str, str], Ledger] = {}  # the books as the kubelet turned to a container
        self._node = {state.card.uuid: state.card.numa for state in rig.states}
        self._alive: dict[str, tuple[dict[str, Any], int]] = {}
        self._number = 0
        rig.kubelet.hooks.before = self._before

    def round(self) -> None:
        """A batch of pods is bound and admitted, then three of four pods that run go."""
        coming: list[tuple[dict[str, Any], int]] = []
        for _ in range(_BATCH):
            busy = sum(cores for _, cores in (*self._alive.values(), *coming))
            made = self._draw()
            if busy + made[1] > _MOST_CORES or (bound := self._bound(made[0])) is None:
                continue
            coming.append((bound, made[1]))
            while len(coming) > self._dice.randint(0, AHEAD):
                self._admit(*coming.pop(self._dice.randrange(len(coming))))
        for one in coming:
            self._admit(*one)
        for uid in self._dice.sample(sorted(self._alive), k=(3 * len(self._alive) + 3) // 4):
            self._rig.delete(self._alive.pop(uid)[0], force=True)
            self._rig.state.forget_pod(PodUid(uid))

    def _draw(self) -> tuple[dict[str, Any], int]:
        name, dice = f"numa-{self._number}", self._dice
        self._number += 1
        a, b = dice.randint(1, 40), dice.randint(1, 40)
        first, second = container("a", a, dice.randint(1, 60)), container("b", b, dice.randint(1, 60))
        if self._number % 5 == 0:
            return pod(name, container("a", 2 * CORES_PER_CARD, 0)), 2 * CORES_PER_CARD
        shape = dice.choice(_SHAPES)
        if shape == "pair":
            return pod(name, first, second), a + b
        if shape == "staged":
            return pod(name, first, init=[container("init", b, dice.randint(1, 60))]), max(a, b)
        if shape == "flanked":
            return pod(name, first, init=[container("side", b, dice.randint(1, 60), sidecar=True)]), a + b
        if shape == "whole":
            return pod(name, container("a", CORES_PER_CARD, 0)), CORES_PER_CARD
        return pod(name, first), a

    def _bound(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """The pod with the cards that the extender would choose now; None if it fits nowhere."""
        rig = self._rig
        view, parsed = rig.state.view, rig.parsed(obj)
        request = bound_request(parsed, view.node.unit)
        try:
            shares = place(request, view.node.cards, rig.topology, view.ledger)
        except DoesNotFit:
            return None
        states = {state.card.uuid: state for state in rig.states}
        on = {
            name: [(states[s.card], s.amount.cores, s.amount.memory) for s in found]
            for name, found in shares.items()
        }
        meta, spec = obj["metadata"], obj["spec"]
        made = pod(meta["name"], *spec["containers"], init=spec["initContainers"], uid=parsed.uid, on=on)
        rig.pods.bind(rig.parsed(made))
        rig.state.introduce(rig.parsed(made))
        return made

    def _admit(self, obj: dict[str, Any], cores: int) -> None:
        uid, found = str(obj["metadata"]["uid"]), self._found
        self._moments.clear()
        result = self._rig.admit(obj)
        if not result.admitted:
            found.refused += 1
            found.told.append(f"{obj['metadata']['name']} refused: {result.message}")
            self._rig.delete(obj, force=True)
            self._rig.state.forget_pod(PodUid(uid))
            return
        self._rig.start(obj)
        self._alive[uid] = obj, cores
        for name in sorted(result.ids.keys() - set(_inits(obj))):
            self._compare(obj, name, result.ids[name])

    def _compare(self, obj: dict[str, Any], name: str, ids: Mapping[str, frozenset[str]]) -> None:
        view, found = self._rig.state.view, self._found
        aligned = {
            self._node[card]
            for resource in (CORE, MEMORY)
            for card in view.node.ids.cards_of(resource, ids.get(resource, frozenset()))
        }
        held = view.ledger.get(PodUid(obj["metadata"]["uid"]), name)
        assert held is not None
        found.containers += 1
        if {self._node[card] for card in held.cards} <= aligned:
            return
        found.elsewhere += 1
        within = self._reached(obj, name, aligned)
        found.within_reach += within
        nodes = sorted({self._node[card] or 0 for card in held.cards})
        cores = sum(share.amount.cores for share in held.shares)
        where = f"ids of {sorted(n or 0 for n in aligned)}, cards of {nodes}"
        reach = ", within reach" if within else ""
        found.told.append(f"{obj['metadata']['name']}/{name}: {cores} cores: {where}{reach}")

    def _before(self, step: Step) -> None:
        if (step.pod, step.container) not in self._moments:
            self._moments[step.pod, step.container] = self._rig.state.view.ledger.copy()

    def _reached(self, obj: dict[str, Any], name: str, nodes: set[int | None]) -> bool:
        uid = PodUid(obj["metadata"]["uid"])
        group = [*_inits(obj), name]
        now = self._rig.state.view.ledger
        own = [held for each in group if (held := now.get(uid, each)) is not None]
        there = [card for card, node in self._node.items() if node in nodes]
        known = [state.card for state in self._rig.states]
        policy = self._rig.topology.numa_policy
        return within_reach(self._moments[uid, group[0]], own, there, known, policy)


def _inits(obj: Mapping[str, Any]) -> list[str]:
    """The pod's ordinary init containers."""
    return [entry["name"] for entry in obj["spec"]["initContainers"] if "restartPolicy" not in entry]


def measure(policy: NumaPolicy, rounds: int, seed: int) -> Aligned:
    """So many rounds under one policy."""
    found = Aligned()
    states = tuple(
        replace(state, card=replace(state.card, numa=NODES[state.card.index // 2]))
        for state in cards(8, _MEMORY)
    )
    links = Topology.uniform(len(states), Link(LinkKind.SYS))
    with tempfile.TemporaryDirectory(prefix="numa") as directory:
        topology = replace(links, numa_policy=policy)
        with NodeRig(Path(directory), states, topology=topology, numa=policy, limiter=_OPEN) as rig:
            run = _Run(rig, seed, found)
            for _ in range(rounds):
                run.round()
    return found


def rows(*, full: bool) -> Iterator[Row]:
    """All policies, several seeds."""
    seeds = range(1, 9 if full else 3)
    found = [measure(policy, 16, seed) for policy in POLICIES for seed in seeds]
    containers, elsewhere, within, refused = (
        sum(getattr(each, what) for each in found)
        for what in ("containers", "elsewhere", "within_reach", "refused")
    )
    note = (
        f"of {elsewhere} containers, of {containers}, with a card of another NUMA node than the ids that the"
        " kubelet had aligned: those that another choice of cards would have spared as the kubelet turned to"
        f" them; the other {elsewhere - within} nobody could have had there; {refused} pods refused;"
        f" {len(POLICIES)} policies, seeds 1 to {len(seeds)}, the kubelet's stand-in"
    )
    yield Row("numa_could_be_had", within, "containers", "= 0", full=full, note=note)
