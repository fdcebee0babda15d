"""Claims that race for a quota through two replicas of the admission service, whose leader is killed midway.

The replicas are the product's, on one clock: leader election, books, quota and webhook's judgement. What is
around them is a model: an API server that stores what was let pass at once, or up to a minute later, or never
(another webhook refused it), that allocates and deletes claims, that sometimes gives no answer to a write of
the record, done or not, and watches that show everything late. The judge knows neither: it adds up what is
stored by the amounts that the generator wrote.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.binding import BIND_SECONDS, TRAVEL_SECONDS
from admission.extender.claim_leadership import ClaimLeadership
from admission.extender.leader_election import HeldLease, Leader, PodLister
from admission.quota.claims_quota import REQUEST_SECONDS, AdmittedClaims, ClaimCreations
from admission.quota.quota_book import QuotaBook
from bench.rows import Row
from gpu_manager.domain.card import Card
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.api_server import LeaseRecord
from tests.fakes.extender import UNIT, config_map, node, uuid
from tests.fakes.ports import FakeClock

CREATES: Final = 1_000
_NAMESPACE, _LEASE_SECONDS = "team", 12.0
_MODELS: Final = {"n1": "Tesla-T4", "n2": "Tesla-V100"}
_QUOTA: Final = (
    '{"team": {"quota": {"Tesla-T4": 4, "Tesla-V100": 3, "*": 6}, "memory": {"*": 131072}, '
    '"protected": {"Tesla-T4": 1, "*": 1.5}}}'
)
_LIMITS: Final = {"Tesla-T4": 400, "Tesla-V100": 300, "*": 600}
_RIGHTS: Final = {"Tesla-T4": 100, "*": 150}  # to protected shares
_MEMORY: Final = 131072 << 20
_CARDS = 8
_PROTECTED: Final = [
    {
        "opaque": {
            "driver": DRA_DRIVER,
            "parameters": {
                "apiVersion": f"{DRA_DRIVER}/v1",
                "kind": "ShareParameters",
                "priority": "protected",
            },
        }
    }
]
_CLASS: Final = {
    "metadata": {"name": "ours"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}]},
}


def rows(*, full: bool) -> Iterator[Row]:
    """How often more is stored than the quota grants."""
    runs = [race(Random(f"bench/{seed}")) for seed in range(10 if full else 2)]
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run)
    note = (
        f"of {len(runs)} x {CREATES} answers: {counts['let pass']} let pass, {counts['protected']} of them "
        f"protected; {counts['refused']} refused, {counts['again']} more told to ask again, "
        f"{counts['killed']} leaders killed, {counts['stopped']} stopped; requests stored up to a minute "
        "late, watches up to 3 s; limits and the right to protected shares; API server and watches are models"
    )
    yield Row("dra_quota_over", counts["over"], "instants", "= 0", full=full, note=note)


@dataclass
class _Lease:
    """The one Lease, as each replica's client reads and writes it."""

    record: LeaseRecord | None = None
    version: int = 0


@dataclass
class _Line:
    lease: _Lease
    seen: int = -1

    def read(self) -> LeaseRecord | None:
        self.seen = self.lease.version
        return self.lease.record

    def write(self, holder: str, seconds: float, transitions: int) -> bool:
        if self.seen != self.lease.version:
            return False
        self.lease.version += 1
        self.seen = self.lease.version
        self.lease.record = LeaseRecord(holder, seconds, transitions, f"{holder} {self.seen}")
        return True


@dataclass
class _Server:
    """What is stored, and everything that is due."""

    clock: FakeClock
    random: Random
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    watchers: list[_Replica] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=itertools.count)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.clock.time + seconds, next(self.order), what))

    def run(self, until: float) -> None:
        while self.due and self.due[0][0] <= until:
            at, _, what = heapq.heappop(self.due)
            self.clock.time = max(self.clock.time, at)
            what()
        self.clock.time = until

    def put(self, claim: dict[str, Any]) -> None:
        self.stored[claim["metadata"]["uid"]] = claim = self._version(claim)
        self._show(claim, gone=False)

    def drop(self, uid: str) -> None:
        claim = self.stored.pop(uid, None)
        if claim is not None:
            self._show(self._version(claim), gone=True)

    def _version(self, claim: dict[str, Any]) -> dict[str, Any]:
        meta = {**claim["metadata"], "resourceVersion": str(next(self.versions))}
        return {**claim, "metadata": meta}

    def _show(self, claim: dict[str, Any], *, gone: bool) -> None:
        for watcher in self.watchers:
            watcher.show(slim_claim(claim), gone=gone)


@dataclass
class _Record:
    """What replicas share of claims that were let pass; ``forgets``: a new leader finds nothing in it."""

    random: Random
    forgets: bool
    text: str = ""
    version: int = 0


class _RecordClient:
    """The record as one replica reads and writes it."""

    def __init__(self, record: _Record) -> None:
        self._record = record
        self._seen = -1

    def read(self) -> str | None:
        self._seen = self._record.version
        return "" if self._record.forgets else self._record.text

    def write(self, text: str) -> bool:
        record, fails = self._record, self._record.random.random()
        if fails < 0.01:
            raise NodeUnready("no answer")
        if self._seen != record.version:
            return False
        record.version += 1
        self._seen, record.text = record.version, text
        if fails < 0.02:
            raise NodeUnready("no answer, though it is written")
        return True


class _Replica:
    """One process of the service. ``listed`` and ``error`` are its watch's."""

    def __init__(self, server: _Server, lease: _Lease, record: _Record, name: str) -> None:
        self._server, self._clock = server, server.clock
        self.listed: float | None = None
        self.error: str | None = None
        self._shown_until = 0.0
        self._list = 0
        self.cluster = ClusterState(UNIT)
        self.cluster.replace(NODES, _nodes())
        self.cluster.replace(PODS, [])
        self.cluster.replace(CLASSES, [slim_class(_CLASS)])
        quota = QuotaBook()
        quota.update(config_map(_QUOTA))
        self.lease = HeldLease(_Line(lease), self._clock, name, _LEASE_SECONDS)
        lister = PodLister(self._pods_listed, lambda: None, lambda: None, lambda: False)
        self.leader = Leader(self.lease, lister, self._clock, BIND_SECONDS + TRAVEL_SECONDS)
        admitted = AdmittedClaims(_RecordClient(record), self.cluster, self._clock)
        self.leadership = ClaimLeadership(self.leader, self, self.cluster, admitted)
        self.claims = ClaimCreations(self.cluster, quota, self._clock, self.leadership.leads, admitted.keep)
        self.relist()
        server.watchers.append(self)

    def _pods_listed(self) -> float:
        return self._clock.time

    def relist(self) -> None:
        """A list that is asked for now; it comes a little later."""
        self._list += 1
        number, asked = self._list, self._clock.time
        objects = [slim_claim(one) for one in self._server.stored.values()]

        def come() -> None:
            if number == self._list:
                self.listed = asked
                self.cluster.replace(CLAIMS, objects)

        self._shown_until = max(self._shown_until, asked + self._server.random.uniform(0, 1))
        self._server.later(self._shown_until - asked, come)

    def show(self, claim: Mapping[str, Any], *, gone: bool) -> None:
        """An event of the watch, late and in order."""
        now = self._clock.time
        self._shown_until = max(self._shown_until, now + self._server.random.uniform(0, 3))
        kind = "DELETED" if gone else "MODIFIED"
        self._server.later(self._shown_until - now, lambda: self.cluster.apply(CLAIMS, kind, claim))

    def tick(self) -> None:
        self.leader.tick()
        self.leadership.look(self._clock.time)


def race(random: Random, creates: int = CREATES, *, forgets: bool = False) -> Counter[str]:
    """Run one race; count what was answered, and the instants with more than the quota stored.

    ``forgets``: a new leader does not learn what the one before let pass, as a check of the judge.
    """
    clock = FakeClock()
    server, lease, counts = _Server(clock, random), _Lease(), Counter[str]()
    record = _Record(random, forgets)
    names, claims = itertools.count(), itertools.count()
    replicas = [_Replica(server, lease, record, f"r{next(names)}") for _ in range(2)]
    next_kill = clock.time + 40
    while counts["let pass"] + counts["refused"] < creates:
        server.run(clock.time + 0.5)
        for replica in replicas:
            replica.tick()
        if clock.time >= next_kill:
            next_kill = clock.time + random.uniform(90, 160)
            replicas = _ended(replicas, server, random, counts)
            replicas.append(_Replica(server, lease, record, f"r{next(names)}"))
        for _ in range(random.choice((0, 0, 1, 4))):
            _create(random.choice(replicas), server, random, counts, f"{next(claims)}")
        for uid in [uid for uid in server.stored if random.random() < 0.02]:
            server.drop(uid)
        _allocate(server, random)
    server.run(clock.time + REQUEST_SECONDS + 10)
    counts["over"] += _over(server)
    return counts


def _ended(replicas: list[_Replica], server: _Server, random: Random, counts: Counter[str]) -> list[_Replica]:
    """The leader is killed, or stopped: then it gives its Lease back."""
    leading = [one for one in replicas if one.leader.leads()] or replicas[:1]
    gone = leading[0]
    if random.random() < 0.5:
        gone.leader.resign()
        gone.leader.release()
        counts["stopped"] += 1
    else:
        counts["killed"] += 1
    server.watchers.remove(gone)
    return [one for one in replicas if one is not gone]


def _create(replica: _Replica, server: _Server, random: Random, counts: Counter[str], name: str) -> None:
    claim = _claim(random, name)
    dry_run = random.random() < 0.05
    answer = replica.claims.refuse(claim, _NAMESPACE, dry_run=dry_run)
    if answer is not None:
        counts["again" if answer.again else "refused"] += 1
        return
    counts["let pass"] += 1
    counts["protected"] += claim["metadata"]["judged"]["protected"]
    if dry_run or random.random() < 0.1:
        return  # nothing is stored, or another webhook refused it

    def store() -> None:
        server.put(claim)
        counts["over"] += _over(server)

    late = random.random() < 0.25
    server.later(random.uniform(1, REQUEST_SECONDS - 1) if late else random.uniform(0, 0.1), store)


def _claim(random: Random, name: str) -> dict[str, Any]:
    cores, memory = random.choice((10, 30, 50, 100)), random.choice((1, 2, 4))
    asked: dict[str, Any] = {"deviceClassName": "ours"}
    if cores < 100:
        asked["capacity"] = {"requests": {"cores": str(cores), "memory": f"{memory}Gi"}}
    if random.random() < 0.7:
        model = random.choice(tuple(_MODELS.values()))
        expression = f"device.attributes['{DRA_DRIVER}'].productName == '{model}'"
        asked["selectors"] = [{"cel": {"expression": expression}}]
    else:
        model = ""
    config = _PROTECTED if cores < 100 and random.random() < 0.15 else []
    judged = {
        "cores": cores,
        "memory": memory * GIB if cores < 100 else 16 * GIB,
        "model": model,
        "protected": bool(config),
    }
    return {
        "metadata": {"name": name, "namespace": _NAMESPACE, "uid": f"uid-{name}", "judged": judged},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}], "config": config}},
        "status": {},
    }


def _allocate(server: _Server, random: Random) -> None:
    """Kubernetes gives a card to some that wait; nobody of ours is asked."""
    for claim in list(server.stored.values()):
        if "allocation" in claim["status"] or random.random() < 0.8:
            continue
        judged = claim["metadata"]["judged"]
        where = next((name for name, model in _MODELS.items() if model == judged["model"]), "")
        where = where or random.choice(tuple(_MODELS))
        cards = [Card(n, uuid(where, n), _MODELS[where], 16 * GIB) for n in range(_CARDS)]
        result = {
            "request": "gpu",
            "driver": DRA_DRIVER,
            "pool": where,
            "device": random.choice(tuple(device_names(cards).values())),
            "consumedCapacity": {"cores": str(judged["cores"]), "memory": str(judged["memory"])},
        }
        now = {**judged, "model": _MODELS[where]}
        server.put(
            {
                **claim,
                "metadata": {**claim["metadata"], "judged": now},
                "status": {
                    "allocation": {
                        "devices": {"results": [result], "config": claim["spec"]["devices"]["config"]}
                    }
                },
            }
        )


def _over(server: _Server) -> int:
    """1 if what is stored passes a limit or a right: by model where it is known, in sum in any case."""
    sums: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for claim in server.stored.values():
        judged = claim["metadata"]["judged"]
        sums[judged["model"]] += judged["cores"]
        sums["*"] += judged["cores"]
        sums["memory"] += judged["memory"]
        if judged["protected"]:
            within[judged["model"]] += judged["cores"]
            within["*"] += judged["cores"]
    passed = any(sums[model] > limit for model, limit in _LIMITS.items())
    passed = passed or any(within[model] > right for model, right in _RIGHTS.items())
    return int(passed or sums["memory"] > _MEMORY)


def _nodes() -> list[dict[str, Any]]:
    return [node(name, _CARDS, model=model, claimed=range(_CARDS)) for name, model in _MODELS.items()]
