"""Pods that are placed while others grow and shrink: the real extender, leader, agent and kubelet's rules.

One node of four cards with the agent's own services, one namespace with a quota, and the extender of the
admission service, which sees what the API server shows. kube-scheduler counts the node's device ids as the
kubelet reports them at that moment. A watcher adds up what the agent has booked and what the quota counts.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from admission.cluster.snapshot import PODS
from admission.extender.binding import BindRules
from admission.extender.resizing import PAUSE_SECONDS, ResizeAnswers
from bench.rows import Row
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CORE,
    INVENTORY,
    MEMORY,
    RESIZE,
    RESIZED,
    Inventory,
    decode_assignment,
    encode_inventory,
)
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO, Amount
from tests.fakes.extender import World, pod
from tests.fakes.node import NODE
from tests.fakes.resizing import ResizingRig

CARDS: Final = 4
_MODEL: Final = "Tesla-T4"
_UNITS: Final = 64  # of one card
_SETTLED: Final = 61.0  # the agent gives nothing back within 60 s after registering
_QUOTA_CARDS: Final = 3

Obj = dict[str, Any]


class Placing:
    """A node, its agent, and the service; each act is seen by the watch before the next."""

    def __init__(self, rig: ResizingRig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        quota = {"default": {"quota": {_MODEL: _QUOTA_CARDS}}}
        self.world = World([_node(rig)], quota=quota, clock=rig.clock)
        rules = BindRules(leads=lambda _: True, schedulers=frozenset({"gpu-scheduler"}))
        self.answers = ResizeAnswers(
            self.world.cluster, self.world.quota, self.world.api, rig.clock, rules, lambda *_: None
        )
        self.alive: dict[str, tuple[int, int]] = {}  # name → spec, in cores and units
        self.placed = self.refused = self.resized = self.waited = 0
        self.quota_wrong = 0
        self._names = 0

    def run(self, pods: int) -> None:
        """Until so many pods were placed."""
        acts = ((self._create, 30), (self._resize, 35), (self._program, 15), (self._second, 12))
        weights = [weight for _, weight in acts]
        while self.placed < pods:
            self.random.choices([act for act, _ in acts], weights)[0]()
            if len(self.alive) > self.random.randint(4, 14):
                self._end(self.random.choice(list(self.alive)))
            self._watch(settled=False)
            if self.random.random() < 0.02:
                self._settle()

    def _create(self) -> None:
        cores, units = self.random.randint(2, 60), self.random.randint(1, 40)
        self._names += 1
        name = f"p{self._names}"
        # kube-scheduler: the node's allocatable less the requests of its pods, before it asks an extender.
        left = [
            there - sum(spec[n] for spec in self.alive.values())
            for n, there in enumerate(self.rig.allocatable())
        ]
        obj = pod(name, cores, units)
        self.world.create(obj)
        where = self.world.schedule(obj) if cores <= left[0] and units <= left[1] else ""
        if not where:
            self.waited += 1
            self.world.delete(obj)
            return
        bound = self._object(name)
        self.placed += 1
        if not self.rig.admit(bound).admitted:
            self.refused += 1
            self.world.delete(bound)
            return
        self.rig.start(bound)
        self.rig.objects[name] = bound
        self.alive[name] = cores, units
        self._told()

    def _resize(self) -> None:
        if not self.alive:
            return
        name = self.random.choice(list(self.alive))
        cores, units = self.random.randint(1, 99), self.random.randint(1, _UNITS)
        spec = self.alive[name]
        wanted = None if (cores, units) == spec or self.random.random() < 0.2 else _size(cores, units)
        self._annotate(name, {RESIZE: wanted})
        self.rig.clock.pass_(PAUSE_SECONDS)
        self.answers.tick()
        for one in self.alive:  # what was refused a while ago is answered again too
            if self._answer(self._object(one)) != self._answer(self.rig.objects[one]):
                self.resized += 1
                self._follow(one)

    def _follow(self, name: str) -> None:
        there = self.rig.parsed(self._object(name))
        self.rig.objects[name] = self._object(name)
        self.rig.pods.bind(there)
        self.rig.resizer.follow(there)
        self._told()

    def _program(self) -> None:
        """It takes as much as its limit lets it, or frees some."""
        if self.alive:
            name = self.random.choice(list(self.alive))
            limit = self.rig.in_force(self.rig.objects[name], "main")[1]
            self.rig.program(self.rig.objects[name], self.random.uniform(0, limit), name="main")

    def _second(self) -> None:
        self.rig.second()
        self._told()

    def _end(self, name: str) -> None:
        obj = self.rig.objects.pop(name)
        self.alive.pop(name)
        self.world.delete(self._object(name))
        self.rig.delete(obj)
        self.rig.clock.pass_(_SETTLED)
        for _ in range(2):
            self.rig.reclaimer.round()
        self.rig.held.pop((PodUid(obj["metadata"]["uid"]), "main", 0), None)

    def _settle(self) -> None:
        """Programs free what they hold, and every answer is followed: then the quota is what is booked."""
        for name in self.alive:
            self.rig.program(self.rig.objects[name], 0, name="main")
        for _ in range(4):
            self._second()
        self._watch(settled=True)

    def _watch(self, *, settled: bool) -> None:
        """The quota counts what the pods' annotations say, to the byte, at every event: no less than the
        agent has booked, never more than it may, settled the same.
        """
        ledger = self.rig.state.view.ledger
        booked = sum(
            (
                peak(tuple(ledger.of_pod(uid).values()), card)
                for uid in ledger.pods
                for card in {c for a in ledger.of_pod(uid).values() for c in a.cards}
            ),
            ZERO,
        )
        counted = self.world.cluster.snapshot().used.get("default", {}).get(_MODEL, ZERO)
        quota = self.world.quota.current
        mine = quota.of("default") if quota else None
        wrong = mine is None or not booked.fits_in(counted) or bool(mine.passed({}, {_MODEL: counted}))
        due = sum((self._due(name, *spec) for name, spec in self.alive.items()), ZERO)
        self.quota_wrong += wrong or counted != due or (settled and booked != counted)

    def _due(self, name: str, cores: int, units: int) -> Amount:
        """What a pod is to be charged: what the scheduler has reserved and what the agent has booked, the
        larger of both; of a pod that was never resized, its spec at least.
        """
        annotations = self._object(name)["metadata"]["annotations"]
        answer, said = annotations.get(RESIZED), decode_assignment(annotations.get(ALLOCATION))
        ((_, told),) = said.containers["main"] if said else ((None, ZERO),)
        sizes = json.loads(answer)["containers"] if answer else {}
        reserved = Amount(**sizes["main"]) if sizes else ZERO
        is_followed = bool(sizes) and annotations.get(ASSIGNED) == "true"
        return told.peak(reserved).peak(ZERO if is_followed else Amount(cores, units * DEFAULT_UNIT))

    def _told(self) -> None:
        """What the agent wrote into its pods' annotations arrives."""
        for name in self.alive:
            written = self.rig.pods.annotations.pop(PodUid(self._object(name)["metadata"]["uid"]), None)
            if written:
                self._annotate(name, written)

    @staticmethod
    def _answer(obj: Obj) -> str | None:
        answer: str | None = obj["metadata"]["annotations"].get(RESIZED)
        return answer

    def _object(self, name: str) -> Obj:
        return self.world.api.pods["default", name]

    def _annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        obj = self._object(name)
        merged = {**obj["metadata"]["annotations"], **annotations}
        meta = {**obj["metadata"], "annotations": {k: v for k, v in merged.items() if v is not None}}
        self.world.api.put({**obj, "metadata": meta})
        self.world.cluster.apply(PODS, "MODIFIED", self._object(name))


def card_states() -> tuple[CardState, ...]:
    """The node's cards."""
    uuids = (CardUuid(f"GPU-{i:08x}-0000-0000-0000-000000000000") for i in range(CARDS))
    return tuple(CardState(Card(i, uuid, _MODEL, 16 * GIB, minor=i)) for i, uuid in enumerate(uuids))


def _node(rig: ResizingRig) -> Obj:
    inventory = Inventory(DEFAULT_UNIT, rig.states, rig.topology, (), (), serving=True, released=None)
    counts = {CORE: str(100 * CARDS), MEMORY: str(_UNITS * CARDS)}
    return {
        "metadata": {"name": NODE, "annotations": {INVENTORY: encode_inventory(inventory)}, "labels": {}},
        "status": {"capacity": counts, "allocatable": counts},
    }


def _size(cores: int, units: int) -> str:
    size = {"cores": cores, "memory": units * DEFAULT_UNIT}
    return json.dumps({"v": 1, "containers": {"main": size}})


def placed_rows(seed: int, *, full: bool) -> Iterator[Row]:
    """2,000 pods, or 200."""
    with (
        tempfile.TemporaryDirectory() as directory,
        ResizingRig(Path(directory), states=card_states()) as rig,
    ):
        placing = Placing(rig, seed)
        placing.run(2_000 if full else 200)
    note = (
        f"{placing.placed} pods placed beside {placing.resized} resizes, {placing.waited} without room, "
        f"seed {seed}; the node's allocatable is as the kubelet has it at that moment; after each event the "
        "quota's sum is that of the pods' annotations"
    )
    yield Row("resize_placed_refused", placing.refused, "pods", "= 0", full=full, note=note)
    yield Row("resize_quota_wrong", placing.quota_wrong, "instants", "= 0", full=full, note=note)
