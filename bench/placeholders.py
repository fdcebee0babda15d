"""``placeholder_extra_cards``: cards that an autoscaler is asked for beyond those that the planner needs.

The autoscaler is modelled as Cluster Autoscaler counts: pods that fit in the sum of a node are taken for
placed; for the others it fills new nodes of one group, pod by pod. The scheduler has kube-scheduler's sums
and the extender.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from admission.extender.fragmentation_score import LeastFragmentation
from admission.placeholders.keeper import Placeholders
from bench.rows import Row
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_json import whole_number
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.topology import Link, Topology
from gpu_manager.domain.whatif.simulation import SimNode, nodes_needed
from tests.fakes.extender import Obj, World, node, pod

_MIXES: Final = 200
_QUICK: Final = 40
_ROUNDS: Final = 40
_NAMESPACE: Final = "vcuda-placeholders"
_HOSTNAME: Final = "kubernetes.io/hostname"


def rows(*, full: bool) -> Iterator[Row]:
    """Mixes drawn at random, each until every pod runs: the most that was asked for too much at any time."""
    mixes = [Autoscaled(random.Random(seed)) for seed in range(_MIXES if full else _QUICK)]
    added = [mix.run() for mix in mixes]
    left = sum(len(mix.left) + len(mix.api.there) for mix in mixes)
    made = sum(mix.api.made for mix in mixes)
    note = f"{len(mixes)} mixes, {sum(added)} nodes added, {made} placeholders"
    extra = max(mix.extra for mix in mixes)
    yield Row("placeholder_extra_cards", extra, "cards", "≤ 1", full=full, note=note)
    text = "pods that never ran, and placeholders that stayed"
    yield Row("placeholder_left", left, "count", "= 0", full=full, note=text)


class Written:
    """The API of the placeholders; what it stores the keeper sees at once."""

    def __init__(self) -> None:
        self.there: dict[str, Obj] = {}
        self.made = 0
        self.keeper: Placeholders | None = None

    def create(self, body: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        if name in self.there:
            return
        self.made += 1
        self.there[name] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.made}"}}
        self._show(self.there[name], gone=False)

    def delete(self, name: str, uid: str) -> None:
        if name in self.there and self.there[name]["metadata"]["uid"] == uid:
            self._show(self.there.pop(name), gone=True)

    def _show(self, obj: Obj, *, gone: bool) -> None:
        assert self.keeper is not None
        self.keeper.see(obj, gone=gone)


class Autoscaled:
    """A cluster of one node group, its scheduler and its autoscaler."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.cards, self.memory = draw.choice((1, 2, 4, 8)), draw.choice((16, 40, 80)) * GIB
        self.nodes = {obj["metadata"]["name"]: obj for obj in map(self._node, range(draw.randint(1, 4)))}
        self.world = World(list(self.nodes.values()), expecting=True)
        self.api = Written()
        policy = LeastFragmentation(self.world.cluster, lambda job: job(), self.world.quota)
        self.keeper = self.api.keeper = Placeholders(
            _NAMESPACE, self.api, self.world.cluster, policy, self.world.quota, 1
        )
        self.first, self.extra = len(self.nodes), 0
        for number in range(draw.randint(0, 3 * self.cards * self.first)):  # what runs already
            if not self.place(obj := self._pod(f"old-{number}")):
                self.world.delete(obj)
        self.left: list[Obj] = [self._pod(f"p-{number}") for number in range(draw.randint(1, 20))]
        self.world.create(*self.left)

    def _node(self, number: int) -> Obj:
        name = f"n{number}"
        return node(name, self.cards, memory=self.memory, labels={_HOSTNAME: name})

    def _pod(self, name: str) -> Obj:
        if self.draw.random() < 0.15:
            return pod(name, 100 * self.draw.randint(1, self.cards), None)
        units = self.memory // DEFAULT_UNIT
        core, memory = self.draw.randint(5, 95), max(1, units * self.draw.randint(5, 95) // 100)
        return pod(name, core, memory)

    def room(self) -> dict[str, tuple[int, int]]:
        """What Kubernetes counts as free of each node."""
        left = {name: _counts(obj["status"]["allocatable"]) for name, obj in self.nodes.items()}
        for one in self.world.api.pods.values():
            if at := one["spec"].get("nodeName"):
                left[at] = _less(left[at], _asked(one))
        return left

    def place(self, obj: Obj) -> bool:
        """Filter, prioritize, bind, as kube-scheduler; a pod without a node is unschedulable."""
        self.world.api.put(obj)
        self.world.show(obj)
        room = self.room()
        names = [name for name, left in room.items() if _fits(_asked(obj), left)]
        found = self.world.filter(obj, names)["NodeNames"] if names else []
        if found:
            scores = self.world.prioritize(obj, found)
            if not self.world.bind(obj, max(found, key=scores.__getitem__)):
                return True
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
        self.world.show({**obj, "status": {"phase": "Pending", "conditions": [said]}})
        return False

    def schedule(self) -> None:
        """Try each pod that waits, and each placeholder, which no node may get."""
        self.left = [obj for obj in self.left if not self.place(obj)]

    def scale_up(self) -> int:
        """The nodes that the autoscaler adds now."""
        room = self.room()
        rest: list[Obj] = []
        for obj in (*self.left, *self.api.there.values()):
            off = _kept_off(obj)
            at = next((n for n, left in room.items() if n not in off and _fits(_asked(obj), left)), None)
            if at is None:
                rest.append(obj)
            else:
                room[at] = _less(room[at], _asked(obj))
        full = _counts(self._node(0)["status"]["allocatable"])
        sums = [sum(parts) for parts in zip(*map(_asked, rest), strict=True)] or [0, 0]
        self.extra = max(
            self.extra, max(-(-sums[0] // 100), -(-sums[1] * self.cards // full[1])) - self.needed()
        )
        bins: list[tuple[int, int]] = []
        for obj in sorted(rest, key=_asked, reverse=True):
            number = next((i for i, left in enumerate(bins) if _fits(_asked(obj), left)), len(bins))
            if number == len(bins):
                bins.append(full)
            bins[number] = _less(bins[number], _asked(obj))
        for _ in bins:
            obj = self._node(len(self.nodes))
            self.nodes[obj["metadata"]["name"]] = obj
            self.world.cluster.apply("nodes", "ADDED", obj)
        return len(bins)

    def needed(self) -> int:
        """The cards of new nodes that the planner gives to the pods without room."""
        _, pods = self.keeper.unplaced()
        cards = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "T4", self.memory)) for i in range(self.cards))
        ledger = Ledger((state.card for state in cards), DEFAULT_UNIT)
        kind = SimNode("new", cards, Topology.uniform(self.cards, Link.parse("SYS")), ledger)
        placed = nodes_needed((), sorted(pods, key=lambda pod: (-pod.weight, pod.name)), kind).placements
        return len({(one.node, card) for one in placed for card in one.cards})

    def run(self) -> int:
        """Until nothing waits or nothing changes; the number of nodes that were added."""
        for _ in range(_ROUNDS):
            self.schedule()
            self.keeper.round()
            if not self.scale_up():
                break
        self.schedule()
        self.keeper.round()
        return len(self.nodes) - self.first


def _counts(of: Mapping[str, Any]) -> tuple[int, int]:
    return whole_number(of.get(CORE)), whole_number(of.get(MEMORY))


def _asked(obj: Obj) -> tuple[int, int]:
    cores, memory = zip(*(_counts(c["resources"]["limits"]) for c in obj["spec"]["containers"]), strict=True)
    return sum(cores), sum(memory)


def _fits(asked: tuple[int, int], left: tuple[int, int]) -> bool:
    return asked[0] <= left[0] and asked[1] <= left[1]


def _less(left: tuple[int, int], asked: tuple[int, int]) -> tuple[int, int]:
    return left[0] - asked[0], left[1] - asked[1]


def _kept_off(obj: Obj) -> Sequence[str]:
    if "affinity" not in obj["spec"]:
        return ()
    affinity = obj["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    return [name for one in term["matchExpressions"] if one["operator"] == "NotIn" for name in one["values"]]
