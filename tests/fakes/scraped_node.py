"""A node, and what a scrape of it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import Advice, Figure, Sized
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.cards import CardUse
from gpu_manager.servers.exporter import Exporter
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.billing import SAVE_SECONDS, BillMeter
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import PageSlots
from gpu_manager.services.metrics import ServiceMetrics
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.page_evidence import Slots
from tests.fakes.ports import FakeCards, FakeClock, FakeStore

Labels = tuple[tuple[str, str], ...]


def counters(metrics: ServiceMetrics) -> dict[str, Counter]:
    return {name: found for name, found in vars(metrics).items() if isinstance(found, Counter)}


class Board:
    """A node and what a scrape of it shows."""

    def __init__(self, rig: NodeRig) -> None:
        self.rig = rig
        self.cards = FakeCards(rig.states)
        self.slots = Slots()
        self.usage = UsageSampler(
            rig.state,
            self.cards,
            rig.pods,
            rig.tenants,
            rig.processes,
            rig.clock,
            rig.metrics,
            PageSlots(self.slots, self.slots),
        )
        self.bills = BillMeter(rig.state, self.usage, FakeStore(), rig.clock, rig.metrics, "boot")
        self.events: dict[str, int] = {}
        self.dropped = 0
        self.sized: tuple[Sized, ...] = ()
        self.registry = rig.registry
        self.registry.register(
            Exporter(
                rig.state,
                self.usage,
                "1.2.3",
                bills=lambda: self.bills.told,
                events=lambda: self.events,
                writes_dropped=lambda: self.dropped,
                unreadable=lambda: {"pods": self.dropped, "nodes": 0},
                sized=lambda: self.sized,
            )
        )

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def scrape(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {}
        for family in parse_prometheus(self.text()):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} twice"
                found[sample.name][labels] = sample.value
        return found

    def of(self, name: str, **labels: str) -> list[float]:
        return [v for have, v in self.scrape().get(name, {}).items() if labels.items() <= dict(have).items()]

    def admit(self, name: str, cores: int, memory: int) -> dict[str, object]:
        obj = pod(name, container("c", cores, memory))
        assert self.rig.admit(obj).admitted
        return obj

    def watch(self, obj: dict[str, object]) -> None:
        """The watch shows the pod as the kubelet reports it."""
        uid = obj["metadata"]["uid"]  # type: ignore[index]  # a pod object
        self.rig.pods.bind(parse_pod(self.rig.kubelet.pod(uid)))

    def start(self, obj: dict[str, object], pid: int = 0) -> None:
        """The pod's container runs; its process has this pid on the node."""
        uid = obj["metadata"]["uid"]  # type: ignore[index]  # a pod object
        assert self.rig.kubelet.start_container(uid, "c", container_id="c" * 64) is not None
        self.watch(obj)
        if pid:
            self.rig.processes.containers[pid] = (PodUid(uid), "c" * 64)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with NodeRig(tmp_path, clock=FakeClock()) as rig:
        yield Board(rig)


def grant(name: str, *, namespace: str = "default", uid: str = "", card: int = 0, cores: int = 10) -> Grant:
    uuid = f"GPU-{card:08x}-0000-0000-0000-000000000000"
    share = Share(uuid, Amount(cores, GIB))  # type: ignore[arg-type]  # a NewType of str
    allocation = Allocation(
        PodUid(uid or f"uid-{name}"), "c", ContainerKind.APP, 0, (share,), namespace, name
    )
    return Grant(allocation, f"dir-{uid or name}")


def everything(board: Board) -> None:
    """A node on which every family has a series."""
    board.admit("part", 30, 20)
    board.admit("whole", 100, 0)
    uuids = [s.card.uuid for s in board.rig.states]
    board.cards.uses = [CardUse(uuid, 5 * GIB, 40.0) for uuid in uuids]
    board.events = {"card_closed": 1}
    size = Advice(Figure(20, "it works"), Figure(GIB, "it took that"))
    need = Need(DAY, 3, HOUR, 20, (GIB,), (GIB,))
    board.sized = (Sized(("default", "Pod/part", "c"), ("part",), Amount(30, GIB), GIB, need, size),)
    for counted in counters(board.rig.metrics).values():
        (counted.labels(*("x" for _ in counted._labelnames)) if counted._labelnames else counted).inc()
    board.usage.sample()
    assert isinstance(board.rig.clock, FakeClock)
    board.bills.look()
    board.rig.clock.pass_(SAVE_SECONDS)
    board.bills.look()
