"""Cards of a split node handed over between device plugin and DRA under load, on a modelled clock.

The books, the hand-over, what is published and what is prepared are the product's. Modelled are the rest of
Kubernetes, each late: schedulers act on the inventory and on the slice as they were 0 to 5 s ago and tolerate
every taint, the kubelet reports its node every 10 s, admits and prepares up to 2 s after a binding. The agent
is killed and started anew from what it stored.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bench.rows import Row, percentile
from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    MEMORY,
    Assignment,
    decode_assignment,
    encode_assignment,
)
from gpu_manager.domain.dra.device import SharedDevice
from gpu_manager.domain.dra.published import device_names
from gpu_manager.domain.dra.sides import ClaimCards, Side
from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, GIB, ZERO, Amount
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.books_format import decode, decode_sides
from gpu_manager.services.allocation.grant import Decision
from gpu_manager.services.allocation.node_cards import NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.preferred_ids import IdChoice
from gpu_manager.services.claims.handover import CardHandover
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.slices import SlicePublisher
from tests.fakes.claims import FakeClaims, FakeSlices, claim_object, result
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock, FakeInjector, FakePods, FakeProcesses, FakeStore, FakeTenants

NODE, NAMESPACE = "n1", "default"
HANDOVERS: Final = 100
TICK: Final = 0.5  # seconds of the modelled clock
_CARDS = 6
_UNITS = 64  # of a card
_OLDEST = 5.0  # seconds of a scheduler's copy
_REPORT_SECONDS = 10.0  # between two reports of the node's status
_KUBELET_SECONDS = 2.0  # from a binding to the kubelet's call, at most
_MOST_SECONDS = 60.0  # in which what arrives late is freed
_RETRY_SECONDS = 4.0  # of the kubelet, for claims that were refused
_DELETE_SECONDS = 2.0  # from an eviction to the pod's end


def rows(*, full: bool) -> Iterator[Row]:
    """Double instants, the time of a hand-over, and what arrived late."""
    loads = [HandoverLoad(seed) for seed in ((1, 2, 3) if full else (1,))]
    for load in loads:
        load.run(HANDOVERS)
    counts = sum((load.counts for load in loads), Counter[str]())
    seconds = [one for load in loads for one in load.seconds]
    over = (
        f"{len(seconds)} hand-overs of a node's {_CARDS} cards, both ways; schedulers' copies 0 to 5 s old, "
        f"claims that tolerate everything; {counts['pods']} pods, {counts['claims']} claims and "
        f"{counts['killed']} kills of the agent, on a modelled clock"
    )
    double = sum(load.double for load in loads)
    note = f"of {counts['judged']}: {over}"
    yield Row("handover_double_instants", double, "instants", "= 0", full=full, note=note)
    note = f"from leaving one side to coming to the other, median {percentile(seconds, 50):.1f}; {over}"
    yield Row("handover_p95_s", round(percentile(seconds, 95), 1), "s", "≤ 20", full=full, note=note)
    freed = max((one for load in loads for one in load.freed), default=0.0)
    note = (
        f"until what arrived late was gone: {counts['late claims']} claims of a card that had left, "
        f"{counts['late pods']} pods that failed at admission; {counts['moved pods']} more pods were given "
        "another card than the scheduler's"
    )
    bar = f"≤ {_MOST_SECONDS:.0f}"
    yield Row("handover_freed_worst_s", round(freed, 1), "s", bar, full=full, note=note)


@dataclass
class _Copies:
    """What was told at which time, for those who hear of it late."""

    told: list[tuple[float, Any]] = field(default_factory=list)

    def tell(self, now: float, value: Any) -> None:
        if not self.told or self.told[-1][1] != value:
            self.told.append((now, value))
            del self.told[:-400]

    def as_of(self, when: float) -> Any:
        known = [value for at, value in self.told if at <= when]
        return known[-1] if known else self.told[0][1]


class _Status:
    """The node's allocatable, as the kubelet reported it last."""

    def __init__(self) -> None:
        self.shown: dict[str, int] = {CORE: _CARDS * CORES_PER_CARD, MEMORY: _CARDS * _UNITS}

    def allocatable(self, resource: str) -> int | None:
        return self.shown[resource]


@dataclass
class _Work:
    """A pod or a pod with a claim: until when it runs, since when it is late."""

    pod: Pod
    ends: float
    claim: str = ""
    late_since: float | None = None
    next_try: float = 0.0
    running: bool = False
    gone_at: float | None = None


class HandoverLoad:
    """``run`` until so many hand-overs are done; ``double``, ``seconds`` and ``freed`` say how it went."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        cards = [
            Card(n, CardUuid(f"GPU-{n:08x}-0000-0000-0000-000000000000"), "T4", 16 * GIB)
            for n in range(_CARDS)
        ]
        self.states = tuple(CardState(card) for card in cards)
        self.names = device_names(cards)
        self.clock, self.store, self.metrics = FakeClock(), FakeStore(), service_metrics()
        self.claims, self.slices, self.pods = FakeClaims(), FakeSlices(), FakePods()
        self.status, self.counts = _Status(), Counter[str]()
        self.double, self.seconds, self.freed = 0, list[float](), list[float]()
        self.wanted = ClaimCards(_CARDS // 2)
        self._numbers = itertools.count()
        self._work: dict[str, _Work] = {}
        self._open, self._devices = _Copies(), _Copies()
        self._kubelet_ids: Mapping[str, frozenset[str]] = {}
        self._left: dict[CardUuid, float] = {}
        self._reported = 0.0
        self._start(Books(self._node()))

    def run(self, handovers: int) -> None:
        """The load goes on until so many cards have come to their new side."""
        changed = 0.0
        while len(self.seconds) < handovers:
            self.clock.pass_(TICK)
            now = self.clock.time
            if now - changed > 25:
                changed = now
                self._want(ClaimCards(self._rng.randrange(1, _CARDS)))
            self._arrive()
            self._kubelet()
            self._leave()
            if self._rng.random() < 0.01:
                self._kill()
            self._look()
            self._judge()

    # The agent.

    def _node(self) -> NodeCards:
        topology = Topology.uniform(_CARDS, Link(LinkKind.SYS))
        return NodeCards.of(NODE, DEFAULT_UNIT, self.states, topology)

    def _start(self, books: Books) -> None:
        self.state = NodeState(books, self.store, self.metrics)
        self.publisher = SlicePublisher(self.state, self.slices, self.clock, self.metrics, 1)
        self._want(self.wanted)
        self.preparer = ClaimPreparer(
            self.state,
            self.claims,
            self.pods,
            FakeTenants(),
            FakeInjector(),
            FakeProcesses(),
            self.metrics,
            evict=True,
        )
        for found in [one for named in self.pods.local().values() for one in named if not one.tombstone]:
            self.state.introduce(found.pod)
        self.state.set_sides({})
        self._look()

    def _want(self, wanted: ClaimCards) -> None:
        """Another number of cards in the settings, with which the agent starts anew."""
        self.wanted = wanted
        self.handover = CardHandover(
            self.state,
            self.claims,
            self.slices,
            self.publisher,
            self.status,
            self.pods,
            self.clock,
            self.metrics,
            wanted,
        )

    def _kill(self) -> None:
        self.counts["killed"] += 1
        stored = self.store.state or b""
        grants, planned = decode(stored)
        books = Books(self._node(), grants, decode_sides(stored))
        for allocation in planned:
            try:
                books.plan((allocation,))
            except VcudaError:
                continue
        self._start(books)

    def _look(self) -> None:
        if self.clock.time % 1 == 0:
            self.handover.look()
            self.publisher.look()
        now, view = self.clock.time, self.state.view
        for uuid, side in (view.sides or {}).items():
            if side.is_moving:
                self._left.setdefault(uuid, now)
            elif uuid in self._left:
                self.seconds.append(now - self._left.pop(uuid))
        self._open.tell(now, frozenset(s.card.uuid for s in view.node.cards if s.open))
        self._devices.tell(now, tuple(one.name for one in self._published()))
        offer = self.state.offer
        self._kubelet_ids = {
            resource: frozenset(
                device
                for state in offer.node.cards
                for device in offer.node.ids.of_card[resource][state.card.uuid]
                if offer.healthy(resource, state) and device not in offer.withdrawn.get(resource, frozenset())
            )
            for resource in (CORE, MEMORY)
        }

    def _published(self) -> Sequence[SharedDevice]:
        return self.slices.told[-1] if self.slices.told else ()

    # The rest of Kubernetes.

    def _arrive(self) -> None:
        if self._rng.random() < 0.18:
            self._bind_pod()
        if self._rng.random() < 0.18:
            self._allocate_claim()

    def _amount(self) -> Amount:
        return Amount(self._rng.choice((20, 40, 60, 99)), self._rng.randint(4, 40) * DEFAULT_UNIT)

    def _bind_pod(self) -> None:
        """By the extender: it knows its own bindings at once, and the inventory late."""
        now, amount = self.clock.time, self._amount()
        known = self._open.as_of(now - self._rng.uniform(0, _OLDEST))
        used = self._used_by_pods()
        for state in self.states:
            uuid = state.card.uuid
            if uuid in known and amount.fits_in(state.card.capacity(DEFAULT_UNIT) - used.get(uuid, ZERO)):
                self._add(amount, uuid)
                return

    def _add(self, amount: Amount, uuid: CardUuid) -> None:
        name = f"pod-{next(self._numbers)}"
        chosen = {"c": ((uuid, amount),)}
        asked = {CORE: amount.cores, MEMORY: amount.memory // DEFAULT_UNIT}
        written = {ALLOCATION: encode_assignment(Assignment(NODE, PodUid(f"uid-{name}"), chosen))}
        pod = self._pod(name, written, [{"name": "c", "resources": {"limits": asked, "requests": asked}}])
        self.counts["pods"] += 1
        self._bound(_Work(pod, self._until()))

    def _pod(self, name: str, annotations: Mapping[str, str], containers: Sequence[Mapping[str, Any]]) -> Pod:
        return parse_pod(
            {
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "uid": f"uid-{name}",
                    "annotations": dict(annotations),
                    "ownerReferences": [{"controller": True}],
                },
                "spec": {"nodeName": NODE, "containers": list(containers)},
                "status": {"phase": "Pending"},
            }
        )

    def _until(self) -> float:
        return self.clock.time + 3 + self._rng.expovariate(1 / 25)

    def _bound(self, work: _Work) -> None:
        work.next_try = self.clock.time + self._rng.uniform(0, _KUBELET_SECONDS)
        self._work[work.pod.key] = work
        self.pods.bind(work.pod)
        self.state.introduce(work.pod)

    def _allocate_claim(self) -> None:
        """By kube-scheduler: it knows its own allocations at once, and the slice late; no taint stops it."""
        now, amount = self.clock.time, self._amount()
        devices = self._devices.as_of(now - self._rng.uniform(0, _OLDEST))
        used = self._used_by_claims()
        whole = self.states[0].card.capacity(DEFAULT_UNIT)
        device = next((d for d in devices if amount.fits_in(whole - used.get(d, ZERO))), None)
        if device is None:
            return
        name = f"claim-{next(self._numbers)}"
        self.counts["claims"] += 1
        shares = result(device, amount.cores, amount.memory, shareID=name)
        self.claims.add(claim_object(name, shares, namespace=NAMESPACE, pods=(name,)))
        self._bound(_Work(self._pod(name, {}, [{"name": "c"}]), self._until(), claim=name))

    def _used_by_pods(self) -> dict[CardUuid, Amount]:
        used: dict[CardUuid, Amount] = {}
        for work in self._work.values():
            held = self.state.view.ledger.of_pod(work.pod.uid).values()
            shares = [(s.card, s.amount) for one in held for s in one.shares]
            if not shares and not work.claim:
                shares = list((_chosen(work.pod) or {}).items())
            for card, amount in shares:
                used[card] = used.get(card, ZERO) + amount
        return used

    def _used_by_claims(self) -> dict[str, Amount]:
        used: dict[str, Amount] = {}
        for claim in self.claims.there.values():
            for one in claim["status"]["allocation"]["devices"]["results"]:
                given = one["consumedCapacity"]
                amount = Amount(int(given["cores"]), int(given["memory"]))
                used[one["device"]] = used.get(one["device"], ZERO) + amount
        return used

    def _kubelet(self) -> None:
        now = self.clock.time
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self.status.shown = {resource: len(ids) for resource, ids in self._kubelet_ids.items()}
        for work in list(self._work.values()):
            if not work.running and work.gone_at is None and now >= work.next_try:
                if work.claim:
                    self._prepare(work)
                else:
                    self._admit(work)
        evicted = set(self.pods.evicted)
        for work in self._work.values():
            if work.gone_at is None and work.pod.uid in evicted:
                work.gone_at = now + self._rng.uniform(0, _DELETE_SECONDS)

    def _prepare(self, work: _Work) -> None:
        try:
            self.preparer.prepare(NAMESPACE, f"claim-{work.claim}", work.claim)
            work.running = True
        except VcudaError as error:
            work.next_try = self.clock.time + _RETRY_SECONDS
            if work.late_since is None and "has gone over" in str(error):
                work.late_since = self.clock.time
                self.counts["late claims"] += 1

    def _admit(self, work: _Work) -> None:
        """As the kubelet: ids of any card are tokens; a pod that is refused has failed for good."""
        container = work.pod.containers[0]
        candidate = ContainerCandidate(work.pod, container)
        wanted = {resource: container.wants(resource) for resource in (CORE, MEMORY)}
        taken = {r: {d for g in self.state.view.grants.values() for d in g.ids.get(r, ())} for r in wanted}
        free = {resource: sorted(self._kubelet_ids[resource] - taken[resource]) for resource in wanted}
        try:
            if any(len(free[resource]) < size for resource, size in wanted.items()):
                raise NodeUnready("the kubelet has too few healthy devices")
            listed: dict[str, frozenset[str]] = {}
            for resource, size in wanted.items():
                answer = Identification(candidate, None, frozenset(), has=dict(listed))
                ids = self.state.decide(IdChoice(resource, free[resource], (), size), answer, {})
                listed[resource] = frozenset(ids)
                with self.state.allocate(resource, listed[resource], Decision(candidate)):
                    pass
        except VcudaError:
            work.late_since, work.gone_at = self.clock.time, self.clock.time + _DELETE_SECONDS
            self.counts["late pods"] += 1
            return
        work.running = True
        named = _chosen(work.pod) or {}
        held = {card for one in self.state.view.ledger.of_pod(work.pod.uid).values() for card in one.cards}
        self.counts["moved pods"] += not held <= named.keys()

    def _leave(self) -> None:
        now = self.clock.time
        for work in list(self._work.values()):
            ended = work.running and now >= work.ends
            if ended or (work.gone_at is not None and now >= work.gone_at):
                self._end(work)

    def _end(self, work: _Work) -> None:
        if work.claim:
            self.preparer.unprepare(NAMESPACE, f"claim-{work.claim}", work.claim)
            self.claims.there.pop(f"{NAMESPACE}/{work.claim}", None)
        else:
            held = [key for key in self.state.view.grants if key[0] == work.pod.uid]
            self.state.release(held)
            self.state.forget_pod(work.pod.uid)
        self.pods.forget(work.pod.key)
        self.pods.known = {
            key: [f for f in found if not f.tombstone] for key, found in self.pods.known.items()
        }
        self.pods.known = {key: found for key, found in self.pods.known.items() if found}
        if work.late_since is not None:
            self.freed.append(self.clock.time - work.late_since)
        del self._work[work.pod.key]

    # Who judges.

    def _judge(self) -> None:
        """A card is wrong at an instant if both sides hold it, or may be given it, or it is given twice."""
        view = self.state.view
        ids = self._kubelet_ids[CORE]
        taken = {d for grant in view.grants.values() for d in grant.ids.get(CORE, ())}
        published = {one.name for one in self._published()}
        for state in self.states:
            uuid = state.card.uuid
            self.counts["judged"] += 1
            holders = view.ledger.holders(uuid)
            kinds = {one.claim is not None for one in holders}
            side = (view.sides or {}).get(uuid)
            booked = view.ledger.booked(uuid)
            offered = bool(set(view.node.ids.of_card[CORE][uuid]) & ids - taken)
            wrong = (
                len(kinds) > 1
                or (True in kinds and side is not Side.DRA)
                or (False in kinds and side is not Side.PLUGIN)
                or not booked.fits_in(state.card.capacity(DEFAULT_UNIT))
                or (offered and self.names[uuid] in published)
            )
            self.double += wrong


def _chosen(pod: Pod) -> dict[CardUuid, Amount] | None:
    told = decode_assignment(pod.annotations.get(ALLOCATION))
    return dict(told.containers["c"]) if told is not None else None
