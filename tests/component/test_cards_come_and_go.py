"""Whatever happens to cards, node, kubelet and books: no container starts on a card that is not its own, none
starts without its limits, and in the end nothing is left. Seeded, so that a failure can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.services.cards.health import VANISHED
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import NumaPolicy
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, cards
from tests.seeds import seeds

STEPS = 40


class Fate:
    """One node of four cards, and the chance that rules it."""

    def __init__(self, directory: Path, seed: int, numa: NumaPolicy) -> None:
        self.chance = Random(seed)
        self.cards = tuple(
            replace(s, card=replace(s.card, numa=s.card.index // 2 if numa is not NumaPolicy.NONE else None))
            for s in cards(4, 4 * GIB)
        )
        self.clock = FakeClock()
        self.rig = NodeRig(
            directory,
            self.cards,
            clock=self.clock,
            seed=seed,
            numa=numa,
            back_off=(0.05, 0.2),
            patience=0.25,
        )
        self.numbers: dict[CardUuid, int] = {}  # /dev/nvidia<n>, of the cards that are there
        self.living: dict[str, tuple[dict[str, Any], Any]] = {}  # UID → pod and what its admission gave
        self.serial = 0
        self.count_cards()

    def count_cards(self, lost: frozenset[CardUuid] = frozenset()) -> None:
        """As a driver does at boot."""
        there = [s.card.uuid for s in self.cards if s.card.uuid not in lost]
        self.numbers = {uuid: n for n, uuid in enumerate(there)}
        self.tell_cards()

    def tell_cards(self) -> None:
        def state(s: CardState) -> CardState:
            if s.card.uuid in self.numbers:
                return replace(s, card=replace(s.card, minor=self.numbers[s.card.uuid]))
            return replace(s, healthy=False, missing=True, reason=VANISHED)

        self.rig.states = tuple(map(state, self.cards))
        self.rig.injector.minors = dict(self.numbers)

    # What may happen.

    def admit(self) -> None:
        core, units = self.chance.choice((10, 30, 30, 50)), self.chance.choice((2, 4, 8))
        shapes: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
            ([container("c", core, units)], []),
            ([container("a", core, units), container("b", 10, 2)], []),
            ([container("c", core, units)], [container("i", self.chance.choice((10, core, 60)), units)]),
            ([container("c", core, units)], [container("s", 10, 2, sidecar=True)]),
            ([container("c", 100, 0)], []),
        ]
        apps, init = self.chance.choice(shapes)
        self.serial += 1
        one = pod(f"p{self.serial}", *apps, init=init, controlled=True)
        result = self.rig.admit(one)
        if result.admitted:
            self.living[result.uid] = one, result
            self.start(result.uid)
        else:
            self.rig.delete(one)

    def start(self, uid: str) -> None:
        one, result = self.living[uid]
        for entry in (*one["spec"]["initContainers"], *one["spec"]["containers"]):
            try:
                self.rig.kubelet.start_container(uid, entry["name"])
            except NodeUnready as error:
                self.refused(uid, str(error))
                return
            self.judge(PodUid(uid), entry, result)

    def refused(self, uid: str, why: str) -> None:
        assert "/dev/nvidia" in why or "no longer there" in why
        assert PodUid(uid) in self.rig.pods.evicted, "a controller makes it anew"
        self.leave(uid)

    def judge(self, uid: PodUid, entry: dict[str, Any], result: Any) -> None:
        grant = self.rig.state.view.grants[uid, entry["name"]]
        given = {d.container_path for d in result.containers[entry["name"]].devices}
        assert given == {f"/dev/nvidia{self.numbers[card]}" for card in grant.allocation.cards}
        asked = entry["resources"]["limits"]
        if asked[CORE] < 100:
            (limit,) = self.rig.limits(result, entry["name"])
            assert (limit.cores, limit.memory) == (asked[CORE], asked[MEMORY] << 28)
            assert (limit.card,) == grant.allocation.cards

    def restart_container(self) -> None:
        if self.living:
            self.start(self.chance.choice(sorted(self.living)))

    def leave(self, uid: str) -> None:
        one, _ = self.living.pop(uid)
        force = self.chance.random() < 0.3
        self.rig.delete(one, force=force)
        if force:
            self.rig.kubelet.reap(uid)

    def depart(self) -> None:
        for uid in sorted(self.living):
            if self.chance.random() < 0.4:
                self.leave(uid)

    def lose_or_find_a_card(self) -> None:
        lost = [s.card.uuid for s in self.cards if s.card.uuid not in self.numbers]
        if lost and self.chance.random() < 0.6:
            found = self.chance.choice(lost)
            self.numbers[found] = min(set(range(4)).difference(self.numbers.values()))
        elif len(lost) < 2:
            del self.numbers[self.chance.choice(sorted(self.numbers))]
        self.tell_cards()
        self.rig.state.refit(self.rig.states, self.rig.topology)
        self.rig.plugin.announce()
        self.rig.await_registered()

    def restart_agent(self) -> None:
        self.rig.stop_agent()
        if self.chance.random() < 0.4:
            self.rig.store.state = None
        self.rig.start_agent()

    def restart_kubelet(self) -> None:
        before = self.rig.kubelet.registrations[CORE]
        self.rig.kubelet.restart()
        self.rig.until(lambda: self.rig.kubelet.registrations[CORE] > before)
        self.rig.await_registered()
        self.resume()

    def reboot(self) -> None:
        self.rig.stop_agent()
        self.count_cards(frozenset(s.card.uuid for s in self.cards if s.card.uuid not in self.numbers))
        self.rig.tenants.limits.clear()
        self.rig.kubelet.restart(reboot=True)
        self.rig.start_agent()
        self.resume()
        for uid in sorted(self.living):
            self.start(uid)

    def resume(self) -> None:
        for result in self.rig.kubelet.resume():
            if result.uid in self.living and not result.admitted:
                self.leave(result.uid)

    def pass_time(self) -> None:
        self.clock.pass_(self.chance.choice((1, 40, 100)))
        self.rig.reclaimer.round()


@pytest.mark.parametrize(
    ("seed", "numa"), [*zip(seeds(3), (NumaPolicy.NONE, NumaPolicy.NONE, NumaPolicy.SINGLE), strict=True)]
)
def test_no_container_starts_on_a_card_that_is_not_its_own(
    tmp_path: Path, seed: int, numa: NumaPolicy
) -> None:
    fate = Fate(tmp_path, seed, numa)
    rig = fate.rig
    often: dict[Callable[[], None], int] = {
        fate.admit: 10,
        fate.restart_container: 3,
        fate.depart: 3,
        fate.lose_or_find_a_card: 2,
        fate.restart_agent: 2,
        fate.restart_kubelet: 1,
        fate.reboot: 2,
        fate.pass_time: 2,
    }
    with rig:
        for step in fate.chance.choices(list(often), list(often.values()), k=STEPS):
            step()
            free = {u: rig.state.view.ledger.free(u) for u in fate.numbers}
            assert all(amount.cores >= 0 and amount.memory >= 0 for amount in free.values()), step
        for uid in sorted(fate.living):
            fate.leave(uid)
        for _ in range(4):
            fate.clock.pass_(SETTLE_SECONDS)
            rig.reclaimer.round()
        assert list(rig.state.view.ledger) == []
        assert rig.tenants.limits == {}
