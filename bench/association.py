"""Exact association under shuffled admissions and faults. The judge is the kubelet stand-in's side alone:
it reads the limits in force under the mounts that the kubelet was handed, and compares them with the pod.

Faults: the agent killed at any step of an admission, resources refused silently between two calls, pods
deleted while their neighbours are admitted, by force too, kubelet restarts, names used again. And ghosts:
pods that are deleted by force after they were bound, whose room the extender gives to others at once, and
that the kubelet, which is seconds behind, admits all the same.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench import soak
from bench.rows import OUTPUT, Row
from bench.soak import Outcome
from bench.world import World
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from sandbox.kubelet import AdmissionResult, Step

SEED = int(os.environ.get("BENCH_SEED", "1"))  # stated in the note: the same shapes and faults again
# Of the pods that are bound: ghosts, and those with one of a few names. 0.3 and 0.7 are a dense mix.
GHOSTS, AGAIN = (float(os.environ.get(f"BENCH_{name}", "0.05")) for name in ("GHOSTS", "AGAIN"))
STRETCH = 250  # admissions with, or without, an extender
SETTLE_SECONDS = 75.0  # the agent gives nothing back within 60 s after registering


@dataclass
class Life:
    """A pod that the extender placed: what it may use, and what became of it."""

    obj: dict[str, Any]
    pod: Pod
    request: PodRequest
    placement: Mapping[str, tuple[Share, ...]]
    annotated: bool
    result: AdmissionResult | None = None
    limits: dict[str, dict[CardUuid, tuple[int, int]]] = field(default_factory=dict)


class Driver:
    """The extender, the users and the bad luck."""

    def __init__(
        self,
        world: World,
        seed: int,
        kill_every: int,
        shape: Callable[[random.Random], dict[str, Any]] | None = None,
    ) -> None:
        self.world = world
        self.shape = shape or shape_by_chance
        self.random = random.Random(seed)
        self.kill_every = kill_every
        self.ledger = Ledger((s.card for s in world.cards), world.unit)
        self.alive: dict[PodUid, Life] = {}
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.extender = True
        self._kill_at = 0
        self._steps = 0
        self._refuse: tuple[str, int] | None = None
        world.kubelet.hooks.before = self._step
        world.kubelet.hooks.after = self._maybe_kill

    def run(self, admissions: int) -> None:
        """Batches of pods, admitted in another order than bound.

        Most stretches have an extender; in the others the agent chooses the cards itself. A node does not
        mix the two: an extender learns of the agent's own choices only afterwards.
        """
        while self.counts["admissions"] < admissions:
            extender = self.counts["admissions"] // STRETCH % 5 != 4
            if extender != self.extender:
                self.finish()
                self.extender = extender
            batch = [life for _ in range(self.random.randint(1, 12)) if (life := self._bind()) is not None]
            ghosts = [life for life in batch if self.random.random() < GHOSTS]
            buried = {ghost.pod.uid for ghost in ghosts}
            for ghost in ghosts:
                self.world.api.delete("pods", ghost.pod.name, grace=0)
                self._gone(ghost)
            batch += [life for _ in ghosts if (life := self._bind()) is not None]
            self.random.shuffle(batch)
            for life in batch:
                if life.pod.uid in buried:
                    self._admit_ghost(life)
                else:
                    self._admit(life)
            self._depart()
            if self.random.random() < 0.01:
                self._restart_kubelet()

    def finish(self) -> None:
        """All pods go; then nothing may be left."""
        for life in list(self.alive.values()):
            self._delete(life)

    # --- the extender -----------------------------------------------------------------------------

    def _bind(self) -> Life | None:
        """Create and bind a pod of a random shape where the extender's own ledger has room."""
        shape = self.shape(self.random)
        name = f"again-{self.random.randrange(4)}" if self.random.random() < AGAIN else ""
        if name and any(life.pod.name == name for life in self.alive.values()):
            name = ""
        probe = self.world.create(**shape, name=name)
        pod = parse_pod(probe)
        try:
            request = judged_request(pod, self.world.unit)
            placement = place(request, self._shuffled(), self.world.topology, self.ledger)
        except DoesNotFit:
            self.world.api.delete("pods", pod.name, grace=0)
            return None
        self.ledger.commit(_allocations(pod, placement))
        probe = self.world.bind(probe, placement if self.extender else None)
        life = Life(probe, parse_pod(probe), request, placement, self.extender)
        self.alive[pod.uid] = life
        return life

    def _shuffled(self) -> tuple[Any, ...]:
        """Cards with some closed at random, so that equal shapes land on different cards."""
        closed = self.random.sample(
            range(len(self.world.cards)), self.random.randint(0, len(self.world.cards) - 2)
        )
        return tuple(replace(s, cordoned=i in closed) for i, s in enumerate(self.world.cards))

    # --- the kubelet's side -----------------------------------------------------------------------

    def _admit(self, life: Life) -> None:
        self.counts["admissions"] += 1
        if life.pod.uid not in self.alive:
            return
        if self.kill_every and self.random.random() < 1 / self.kill_every:
            self._kill_at = self._steps + self.random.randint(0, 8)
        if self.random.random() < 0.05:
            self._refuse = (life.pod.uid, self.random.randint(1, 2 * len(life.pod.containers)))
        try:
            life.result = self.world.kubelet.admit(life.obj)
        except NodeUnready as error:
            self.complaints.append(f"{life.pod.key}: {error}")
            self._gone(life)
            return
        finally:
            self._refuse = None
        if self.world.agent is None:
            self.world.start_agent()
            self.counts["kills"] += 1
        if not life.result.admitted:
            self._rejected(life)
            return
        if self._start(life):
            self._judge(life)

    def _admit_ghost(self, life: Life) -> None:
        """It must be refused: its room is others', and it has a second to live.

        Where a pod that asks for just the same, as the kubelet sees it, has its name by now and is not
        admitted yet, nothing tells the two apart: it may take that one's room for its second.
        """
        self.counts["ghosts"] += 1
        result = self.world.kubelet.admit(life.obj)
        if result.admitted and self._has_double(life):
            self.counts["ghosts_as_their_double"] += 1
        elif result.admitted:
            self._wrong(life, "", "was deleted before its admission, and placed all the same")
        if result.admitted:
            self.world.kubelet.delete(life.pod.uid, force=True)
        self.world.kubelet.reap(life.pod.uid)

    def _has_double(self, life: Life) -> bool:
        waiting = (one for one in self.alive.values() if one.result is None)
        return any(_as_listed(one) == _as_listed(life) for one in waiting)

    def _rejected(self, life: Life) -> None:
        result = life.result
        text = result.message if result else ""
        expected = any(word in text for word in ("silent refusal", "rpc", "healthy", "has been stopped"))
        self.counts["rejected_expected" if expected else "rejected_otherwise"] += 1
        if not expected:
            self.complaints.append(f"{life.pod.key} rejected: {text}")
        self.world.api.patch("pods", life.pod.name, {"status": {"phase": "Failed"}}, subresource="status")
        self.world.api.delete("pods", life.pod.name, grace=0)
        self.world.kubelet.delete(life.pod.uid)
        self._gone(life)

    def _start(self, life: Life, tries: int = 5) -> bool:
        """Start every container, as the kubelet does: again if the plugin was killed meanwhile."""
        for container in life.pod.containers:
            if container.asks:
                try:
                    self.world.kubelet.start_container(life.pod.uid, container.name)
                except NodeUnready as error:
                    if self.world.agent is None:
                        self.world.start_agent()
                        self.counts["kills"] += 1
                    if tries:
                        return self._start(life, tries - 1)
                    self.counts["starts_refused"] += 1
                    self.complaints.append(f"{life.pod.key} {container.name} start: {error}")
                    self._delete(life)
                    return False
        self.counts["started"] += 1
        return True

    def _judge(self, life: Life) -> None:
        """What is in force must be what this container asked for, on the card that was decided for it."""
        assert life.result is not None
        for container in life.pod.containers:
            if not container.asks:
                continue
            try:
                found = self.world.limits(life.result, container.name)
            except (OSError, ValueError) as error:
                self._wrong(life, container.name, f"no limits: {error}")
                continue
            life.limits[container.name] = found
            self.counts["judged"] += 1
            allowed = {s.card.uuid for s in self.world.cards if life.request.allows(s.card)}
            if not allowed.issuperset(found):
                self._wrong(life, container.name, f"in force on {list(found)}, which the pod does not allow")
            asked = life.placement[container.name]
            amounts = sorted((s.amount.cores, -1 if s.whole else s.amount.memory) for s in asked)
            if sorted(found.values()) != amounts:
                self._wrong(life, container.name, f"asked {amounts}, in force {found}")
            elif life.annotated and set(found) != {s.card for s in asked}:
                self._wrong(
                    life, container.name, f"assigned {[s.card for s in asked]}, in force on {list(found)}"
                )
        self._check_cards()

    def _check_cards(self) -> None:
        """The limits in force on a card never add up to more than the card."""
        real = Ledger((s.card for s in self.world.cards), self.world.unit, self._in_force())
        for state in self.world.cards:
            free = real.free(state.card.uuid)
            if free.cores < 0 or free.memory < 0:
                self.counts["overcommit"] += 1
                self.complaints.append(
                    f"card {state.card.index} over-committed by {-free.cores} cores, {-free.memory} bytes"
                )

    def _in_force(self) -> Iterable[Allocation]:
        for life in self.alive.values():
            for n, container in enumerate(life.pod.containers):
                found = life.limits.get(container.name)
                if found:
                    whole = {s.card.uuid: s.card.capacity(self.world.unit) for s in self.world.cards}
                    shares = tuple(
                        Share(c, whole[c] if m < 0 else Amount(k, m)) for c, (k, m) in found.items()
                    )
                    yield Allocation(life.pod.uid, container.name, container.kind, n, shares)

    def _wrong(self, life: Life, container: str, why: str) -> None:
        self.counts["wrong"] += 1
        self.complaints.append(f"{life.pod.key} {container}: {why}")

    # --- departures and faults --------------------------------------------------------------------

    def _depart(self) -> None:
        for life in list(self.alive.values()):
            if self.random.random() < 0.35:
                self._delete(life, force=self.random.random() < 0.3)

    def _delete(self, life: Life, *, force: bool = False) -> None:
        self.world.api.delete("pods", life.pod.name, grace=0)
        self.world.kubelet.delete(life.pod.uid, force=force)
        if force:
            self.world.kubelet.reap(life.pod.uid)
        self._gone(life)

    def _gone(self, life: Life) -> None:
        self.alive.pop(life.pod.uid, None)
        self.ledger.release(life.pod.uid)

    def _restart_kubelet(self) -> None:
        self.counts["kubelet_restarts"] += 1
        self.world.kubelet.restart()
        self.world.await_devices()
        for result in self.world.kubelet.resume():
            life = self.alive.get(PodUid(result.uid))
            if life is not None and not result.admitted:
                life.result = result
                self._rejected(life)

    def _step(self, step: Step) -> None:
        self._steps += 1
        self._maybe_kill(step)
        if self._refuse is not None and step.name == "resource" and step.pod == self._refuse[0]:
            uid, left = self._refuse
            self._refuse = (uid, left - 1)
            if left == 1:
                raise NodeUnready("silent refusal by another manager")

    def _maybe_kill(self, _step: Step) -> None:
        if self._kill_at and self._steps >= self._kill_at:
            self._kill_at = 0
            self.world.kill()


def shape_by_chance(chance: random.Random) -> dict[str, Any]:
    """A pod's containers: fractions equal in cores and unequal in memory, several, init, sidecars, whole."""
    core, memory = chance.choice((10, 20, 30, 30, 30, 50)), chance.choice((4, 8, 8, 20))
    kind = chance.random()
    if kind < 0.45:
        return {"containers": [("c", core, memory)]}
    if kind < 0.65:
        return {
            "containers": [("a", core, memory), ("b", chance.choice((core, 10)), chance.choice((memory, 4)))]
        }
    if kind < 0.8:
        return {
            "containers": [("c", core, memory)],
            "init": [("i", chance.choice((10, core, 60)), chance.choice((4, memory)))],
        }
    if kind < 0.9:
        return {"containers": [("c", core, memory)], "sidecars": [("s", 10, 4)]}
    return {"containers": [("c", chance.choice((100, 200)), 0)]}


def _as_listed(life: Life) -> object:
    """What the kubelet lists of the pod, and asks for it. It lists no ordinary init containers."""
    asked = [(c, (c.wants(CORE), c.wants(MEMORY))) for c in life.pod.containers if c.asks]
    listed = [(c.name, amounts) for c, amounts in asked if c.kind is not ContainerKind.INIT]
    return life.pod.key, listed, {amounts for _, amounts in asked}


def _allocations(pod: Pod, placement: Mapping[str, tuple[Share, ...]]) -> list[Allocation]:
    return [
        Allocation(pod.uid, c.name, c.kind, n, placement[c.name])
        for n, c in enumerate(pod.containers)
        if c.name in placement
    ]


def leaked(world: World) -> int:
    """Shares, directories and ids that outlive every pod, once the agent has had time to notice."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        graph = json.loads(world.get("/graph"))
        holders = sum(len(card["holders"]) for card in graph["cards"])
        directories = (
            sum(1 for _ in (world.root / "pages").iterdir()) if (world.root / "pages").exists() else 0
        )
        if holders + directories == 0 or time.monotonic() > deadline:
            return holders + directories
        time.sleep(0.5)


def measure(
    seed: int,
    admissions: int = soak.ADMISSIONS,
    shape: Callable[[random.Random], dict[str, Any]] | None = None,
    node: Callable[..., World] = World,
) -> Outcome:
    """One run; what was wrong is told on stderr, and the agent's log is kept then."""
    started = time.monotonic()
    with node(seed=seed) as world:
        driver = Driver(world, seed, 100, shape)
        driver.run(admissions)
        driver.finish()
        left = leaked(world)
        if driver.counts["wrong"] or driver.counts["overcommit"] or left:
            shutil.copy(world.log, OUTPUT.with_name(f"association-agent-{seed}.log"))
    for complaint in driver.complaints[:20]:
        print(complaint, file=sys.stderr)
    return Outcome(seed, dict(driver.counts), left, time.monotonic() - started)


def rows(*, full: bool) -> list[Row]:
    """A quick run of one seed, or all slices of the soak."""
    return shuffled(measure, "association", full=full)


def shuffled(
    measure: Callable[..., Outcome],
    name: str,
    *,
    full: bool,
    quick: int = soak.ADMISSIONS,
    what: str = "",
) -> list[Row]:
    """The rows of shuffled admissions: ``quick`` of one seed, or all slices of the soak, kept by ``name``.

    ``measure`` takes a seed and a number of admissions; ``what`` says in the note which pods they are.
    """
    if full:
        kept = soak.KEPT if name == "association" else soak.KEPT / name
        outcomes = soak.run(measure, soak.wanted(), kept)
        size = f"{len(outcomes)} of {soak.SLICES} slices"
    else:
        outcomes = [measure(SEED, quick)]
        size = f"seed {SEED}"
    size = f"{what}, {size}" if what else size
    return sums(outcomes, size, full=full and len(outcomes) == soak.SLICES, name=name)


def sums(outcomes: Sequence[Outcome], size: str, *, full: bool, name: str = "association") -> list[Row]:
    """The rows of some runs together; ``size`` says in the note how many they were."""
    counts = sum((Counter(one.counts) for one in outcomes), Counter[str]())
    counted = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    note = f"{size}: {counted}, {sum(one.seconds for one in outcomes):.0f} s"
    figures = {
        "wrong": counts["wrong"],
        "overcommit": counts["overcommit"],
        "leaked_ids": sum(one.leaked for one in outcomes),
    }
    return [
        Row(f"{name}_{kind}", n, "count", "= 0", full=full, note=note if kind == "wrong" else "")
        for kind, n in figures.items()
    ]
