"""Extender, agent and kubelet each see the API as it was a while ago: nobody is refused at the node for it.

A full node, pods of one size that come and go, agents that restart, and an API server that is away from the agent in
some admissions. The kubelet takes bound pods up in an order of its own, late.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from admission.cluster.snapshot import PODS
from gpu_manager.domain.contract import INVENTORY, Inventory, encode_inventory
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.services.allocation.prestart import AnnotationWriteback
from tests.fakes.direct import DirectRig
from tests.fakes.extender import World, node, pod
from tests.fakes.node import NODE
from tests.fakes.ports import cards

Obj = dict[str, Any]
STEPS = 400
WAITING = 20  # pods that look for room
AWAY = 0.15  # of the admissions


class Cluster:
    """``refused``: what the kubelet was told of pods that the extender had bound."""

    def __init__(self, rig: DirectRig, seed: int) -> None:
        self.rig, self.dice = rig, random.Random(seed)
        here = node(NODE)
        told = Inventory(DEFAULT_UNIT, rig.states, rig.topology, released=())
        here["metadata"]["annotations"][INVENTORY] = encode_inventory(told)
        self.world = World([here], watching=False)
        self.world.api.shown = self._bound
        self.refused: list[str] = []
        self.admitted = self._created = 0
        self._to_extender: list[tuple[str, Obj]] = []
        self._to_agent: list[tuple[str, Obj]] = []
        self._to_kubelet: list[str] = []
        self._running: list[str] = []
        self._ending: list[str] = []

    def step(self) -> None:
        if sum(not one["spec"].get("nodeName") for one in self.world.api.pods.values()) < WAITING:
            one = pod(f"pod-{self._created}", 15, 10, uid=f"{self.dice.getrandbits(128):032x}")
            self._created += 1
            self._write("ADDED", one)
        steps = (self._schedule, self._admit, self._delete, self._end, self._restart, self._annotate)
        self.dice.choices(steps, (25, 25, 12, 12, 3, 23))[0]()
        self._show_extender(self.dice.choice((0, 1, 3, 10, 100)))
        self._show_agent(self.dice.choice((0, 0, 0, 1, 3, 10, 100)))

    # What happens in the API, and who hears of it.

    def _write(self, event: str, obj: Obj, **status: str) -> None:
        obj = {**deepcopy(obj), **({"status": dict(status)} if status else {})}
        key = "default", obj["metadata"]["name"]
        there = self.rig.pods.there
        if event == "DELETED":
            self.world.api.pods.pop(key)
            there.pop("/".join(key), None)
        else:
            self.world.api.pods[key] = obj
            if obj["spec"].get("nodeName"):
                there["/".join(key)] = self.rig.parsed(obj)
        self._to_extender.append((event, obj))
        self._to_agent.append((event, obj))

    def _bound(self, obj: Obj) -> None:
        self._write("MODIFIED", obj)
        self._to_kubelet.append(obj["metadata"]["name"])

    def _show_extender(self, count: int) -> None:
        for event, obj in _first(self._to_extender, count):
            self.world.cluster.apply(PODS, event, obj)

    def _show_agent(self, count: int) -> None:
        pods = self.rig.pods
        for event, obj in _first(self._to_agent, count):
            if obj["spec"].get("nodeName"):
                one = self.rig.parsed(obj)
                pods.known = {**pods.known, one.key: [KnownPod(one, tombstone=event == "DELETED")]}
                if event != "DELETED":
                    self._seen(one)

    def _seen(self, one: Pod) -> None:
        """As the agent does with each pod that its watch shows."""
        self.rig.state.introduce(one)
        AnnotationWriteback(self.rig.state, self.rig.pods, self.rig.clock).tell(one)

    # What the parts do.

    def _schedule(self) -> None:
        known = (PodUid(one["metadata"]["uid"]) for one in self.world.api.pods.values())
        shown = {uid for uid in known if self.world.cluster.pod(uid)}
        waiting = [
            one
            for one in self.world.api.pods.values()
            if not one["spec"].get("nodeName") and one["metadata"]["uid"] in shown
        ]
        for one in self.dice.sample(waiting, min(len(waiting), self.dice.randint(1, 6))):
            self.world.schedule(one)

    def _admit(self) -> None:
        if not self._to_kubelet:
            return
        name = self._to_kubelet.pop(self.dice.randrange(min(4, len(self._to_kubelet))))
        obj = deepcopy(self.world.api.pods["default", name])
        self.rig.pods.away = self.dice.random() < AWAY
        self.rig.plugin.announce()
        result = self.rig.kubelet.admit(obj)
        self.rig.pods.away = False
        if not result.admitted:
            self.refused.append(f"{name}: {result.message}")
            self._write("DELETED", obj, phase="Failed")
            return
        self.admitted += 1
        self.rig.processes.living.add(PodUid(obj["metadata"]["uid"]))
        self.rig.start(obj)
        self._write("MODIFIED", obj, phase="Running")
        self._running.append(name)

    def _delete(self) -> None:
        if self._running:
            name = self._running.pop(self.dice.randrange(len(self._running)))
            obj = deepcopy(self.world.api.pods["default", name])
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
            self._write("MODIFIED", obj)
            self._ending.append(name)

    def _end(self) -> None:
        if self._ending:
            obj = self.world.api.pods["default", self._ending.pop(self.dice.randrange(len(self._ending)))]
            self.rig.processes.living.discard(PodUid(obj["metadata"]["uid"]))
            self.rig.kubelet.delete(obj["metadata"]["uid"], force=True)
            self._write("MODIFIED", obj, phase="Succeeded")
            self._write("DELETED", obj, phase="Succeeded")

    def _restart(self) -> None:
        """The next agent lists the pods as they are."""
        self.rig.restart_agent()
        self._to_agent.clear()
        self.rig.pods.known = {}
        self.rig.pods.watch()
        for (found,) in self.rig.pods.known.values():
            self._seen(found.pod)

    def _annotate(self) -> None:
        """What the agent has written reaches the API."""
        written = self.rig.pods.annotations
        for obj in list(self.world.api.pods.values()):
            said = written.pop(PodUid(obj["metadata"]["uid"]), None)
            if said is not None:
                meta = obj["metadata"]
                annotations = {**meta["annotations"], **said}
                self._write("MODIFIED", {**obj, "metadata": {**meta, "annotations": annotations}})
        written.clear()


def _first(queue: list[tuple[str, Obj]], count: int) -> Iterator[tuple[str, Obj]]:
    taken, queue[:count] = queue[:count], []
    yield from taken


@pytest.mark.parametrize("seed", [111, 114, 142, 154, 157])
def test_no_room_is_promised_twice_whatever_each_has_seen(tmp_path: Path, seed: int) -> None:
    """In each of these runs one pod was refused while a card with too much on it was taken for a fact."""
    with DirectRig(tmp_path, cards(2), seed=seed, patience=0.25) as rig:
        cluster = Cluster(rig, seed)
        for _ in range(STEPS):
            cluster.step()
    assert cluster.refused == []
    assert cluster.admitted > 20
