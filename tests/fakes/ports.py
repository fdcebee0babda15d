"""Hand-written fakes behind the agent's ports; each is the smallest thing that keeps its port's promise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import ALLOCATION
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.cards import CardUse, HealthChange, ProcessUse
from gpu_manager.ports.containers import HeldInjection
from gpu_manager.ports.control_pages import Limit, TenantUse


def cards(
    count: int = 8, memory: int = 16 * GIB, model: str = "Tesla-T4", numa: int | None = None
) -> tuple[CardState, ...]:
    return tuple(
        CardState(
            Card(i, CardUuid(f"GPU-{i:08x}-0000-0000-0000-000000000000"), model, memory, numa=numa, minor=i)
        )
        for i in range(count)
    )


class FakeClock:
    """Time stands still until the test moves it."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def pass_(self, seconds: float) -> None:
        self.time += seconds


class FakeStore:
    """Keeps the last state; ``broken`` makes every save fail."""

    def __init__(self, state: bytes | None = None) -> None:
        self.state = state
        self.broken = False

    def load(self) -> bytes | None:
        return self.state

    def set_aside(self, why: str) -> tuple[str, ...]:
        self.state = None
        return (f"ledger.a.{why}",)

    def aside(self) -> tuple[str, ...]:
        return ()

    def save(self, state: bytes) -> None:
        if self.broken:
            raise NodeUnready("no space left on the disk of the ledger")
        self.state = state


@dataclass
class FakeCards:
    """Tells the figures that the test gives it; ``lost`` cannot be asked."""

    states: tuple[CardState, ...] = ()
    uses: list[CardUse] = field(default_factory=list)
    processes: list[ProcessUse] = field(default_factory=list)
    lost: bool = False

    def list(self) -> Sequence[CardState]:
        if self.lost:
            raise NodeUnready("the driver does not answer")
        return self.states

    def topology(self) -> Topology:
        return Topology.uniform(len(self.states), Link(LinkKind.SYS))

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        if self.lost:
            raise NodeUnready("the driver does not answer")
        return self.uses, self.processes

    def watch(self, changed: Callable[[HealthChange], None]) -> None:
        """Nothing ever changes by itself."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class FakeNodeObject:
    """The Node object: keeps what was published; the test writes what the operator says."""

    closed: frozenset[CardUuid] = frozenset()
    error: str = ""  # why cordons cannot be read
    gone: frozenset[CardUuid] = frozenset()  # to be forgotten
    others: frozenset[CardUuid] = frozenset()  # cards that other nodes show
    published: list[tuple[dict[str, str], dict[str, str | None]]] = field(default_factory=list)
    behind: bool = False  # what was published is on its way still

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        self.published.append((dict(annotations), dict(labels)))

    def shown(self) -> bool:
        return not self.behind

    def cordoned(self) -> frozenset[CardUuid]:
        if self.error:
            raise NodeUnready(self.error)
        return self.closed

    def to_forget(self) -> frozenset[CardUuid]:
        return self.gone

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        self.gone = self.gone.difference(uuids)

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        return self.others.intersection(uuids)


@dataclass
class FakePods:
    """The API's view of the node's pods. ``known`` may lag behind ``there``, as a watch does."""

    there: dict[str, Pod] = field(default_factory=dict)
    known: dict[str, list[KnownPod]] = field(default_factory=dict)
    away: bool = False
    fetches: int = 0
    looks: int = 0
    _answer: Mapping[str, Sequence[KnownPod]] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    annotations: dict[PodUid, dict[str, str]] = field(default_factory=dict)
    evicted: list[PodUid] = field(default_factory=list)

    def bind(self, pod: Pod, *, watched: bool = True) -> None:
        self.there[pod.key] = pod
        if watched:
            self.watch()

    def watch(self) -> None:
        """The watch catches up; what is gone stays as a tombstone."""
        before = {key: found[:] for key, found in self.known.items()}
        self.known = {key: [KnownPod(pod)] for key, pod in self.there.items()}
        for key, found in before.items():
            for old in found:
                if all(f.pod.uid != old.pod.uid for f in self.known.get(key, [])):
                    self.known.setdefault(key, []).append(KnownPod(old.pod, tombstone=True))

    def forget(self, key: str, *, watched: bool = True) -> None:
        self.there.pop(key, None)
        if watched:
            self.watch()

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        self.looks += 1
        now = {key: tuple(found) for key, found in self.known.items()}
        if now != self._answer:
            self._answer = now
        return self._answer

    def fetch(self, namespace: str, name: str) -> Pod | None:
        self.fetches += 1
        if self.away:
            raise NodeUnready("the API server does not answer")
        return self.there.get(f"{namespace}/{name}")

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        self.annotations.setdefault(pod.uid, {}).update(annotations)

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((pod.key, reason, message))

    def evict(self, pod: Pod, reason: str | None) -> None:
        if reason is not None:
            self.evicted.append(pod.uid)
        elif pod.uid in self.evicted:
            self.evicted.remove(pod.uid)


@dataclass
class FakeTenants:
    """Directories of limits in memory."""

    limits: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)
    uses: dict[str, tuple[TenantUse, ...]] = field(default_factory=dict)
    tampered: set[str] = field(default_factory=set)

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        self.limits[name] = tuple(limits)

    def reset(self, name: str) -> None:
        self.resets.append(name)

    def usage(self, name: str) -> Sequence[TenantUse]:
        if name in self.tampered:
            raise Tampered(f"the usage page of {name} was truncated")
        return self.uses.get(name, ())

    def unchanged(self, names: Iterable[str]) -> Mapping[str, Sequence[TenantUse]]:
        return {name: self.uses.get(name, ()) for name in names if name not in self.tampered}

    def names(self) -> Sequence[str]:
        return tuple(self.limits)

    def remove(self, name: str) -> None:
        self.limits.pop(name, None)


@dataclass
class FakeInjector:
    """Mounts the allocation's directory, so that a judge can read which limits a container got."""

    root: Path = Path("/pages")
    alive: frozenset[str] = frozenset()
    minors: Mapping[CardUuid, int] = field(default_factory=dict)  # of cards that are given as device nodes
    restored: Mapping[str, HeldInjection] = field(default_factory=dict)
    broken: str = ""  # why nothing can be restored
    lacking: str = ""  # why nothing can be injected
    removed: bool = False  # the directory that it writes into
    claimed: dict[str, tuple[Share, ...]] = field(default_factory=dict)  # what claims were given
    said: dict[str, tuple[Priority, bool]] = field(default_factory=dict)  # and what they said of it

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        if self.lacking:
            raise NodeUnready(self.lacking)
        return Injection(
            env={"VCUDA_CARDS": ",".join(s.card for s in shares)},
            mounts=(Mount("/etc/vcuda/limits", str(self.root / name / "limits")),),
            devices=tuple(
                DeviceNode(f"/dev/nvidia{n}", f"/dev/nvidia{n}", "rw")
                for s in shares
                if (n := self.minors.get(s.card)) is not None
            ),
            annotations={ALLOCATION: annotation},
        )

    def inject_claim(
        self,
        name: str,
        shares: Sequence[Share],
        priority: Priority = Priority.NORMAL,
        *,
        preload: bool = True,
    ) -> tuple[str, ...]:
        if self.broken:
            raise NodeUnready(self.broken)
        self.claimed[name] = tuple(shares)
        self.said[name] = priority, preload
        return tuple(f"tencent.com/vcuda=a-{name}" + (f"-{n}" if n else "") for n in range(len(shares)))

    def restore(self, held: Mapping[str, HeldInjection]) -> None:
        self.restored = dict(held)
        if self.broken:
            raise NodeUnready(self.broken)

    def detached(self) -> bool:
        return self.removed

    def prune(self, alive: Collection[str]) -> None:
        self.alive = frozenset(alive)


@dataclass
class FakeProcesses:
    """Nobody lives unless the test says so; ``blind`` cannot see. ``ended`` are shown until the next look."""

    living: set[PodUid] = field(default_factory=set)
    ended: set[PodUid] = field(default_factory=set)
    waiting: set[PodUid] = field(default_factory=set)  # to be started, all that live
    blind: bool = False
    containers: dict[int, tuple[PodUid, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: list[PodUid] = field(default_factory=list)

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        return self.containers.get(pid)

    def alive(self, pod: PodUid) -> bool | None:
        self.asked.append(pod)
        return None if self.blind else pod in self.living or pod in self.ended

    def unstarted(self, pod: PodUid) -> bool:
        return pod in self.waiting

    def look_again(self, pods: Collection[PodUid], *, answer: bool = True) -> None:
        if answer and not self.ended.isdisjoint(pods):
            self.ended.clear()
