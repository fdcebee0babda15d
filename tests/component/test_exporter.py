"""What is on /metric: lint as promtool does it, hostile names, absent figures, nothing stale, nothing twice."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import Advice, Figure, Sized
from gpu_manager.domain.contract import CORE, EVICT, MEMORY
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.servers.exporter import Exporter, describe, guards
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.unidentified_grants import UNIDENTIFIED
from gpu_manager.services.billing import SAVE_SECONDS, BillMeter
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import PageSlots
from gpu_manager.services.metrics import ServiceMetrics
from tests.fakes.node import NODE, NodeRig, container, pod
from tests.fakes.page_evidence import Slots
from tests.fakes.ports import FakeCards, FakeClock, FakeStore
from tests.fakes.state import put

SOURCES = Path(__file__).parents[2] / "gpu_manager"
Labels = tuple[tuple[str, str], ...]
# The predecessor's names and units are kept as they were.
LEGACY = {
    "container_gpu_memory_total",
    "container_gpu_utilization",
    "container_request_gpu_memory",
    "container_request_gpu_utilization",
}


COUNTING = ("services", "servers")


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
        """Its container runs, with this process on the node."""
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


def test_case_57_every_family_follows_promtools_rules(board: Board) -> None:
    everything(board)
    families = list(parse_prometheus(board.text()))
    names = [f.name for f in families]
    assert len(names) == len(set(names))
    for family in families:
        if family.name in LEGACY:
            continue
        assert re.fullmatch(r"vcuda_[a-z]+(_[a-z]+)*", family.name), family.name
        assert family.documentation, family.name
        assert not family.documentation.endswith("."), family.name
        assert not re.search(
            r"(_milli|_micro|_kilo|_mega|_mib|_gib|_kb|_percent|_minutes|_ms)(_|$)", family.name
        )
        assert not any(word in family.name for word in ("gauge", "counter", "histogram")), family.name
        if family.type == "counter":
            assert all(s.name == f"{family.name}_total" for s in family.samples), family.name
        if family.type == "gauge":
            assert not re.search(r"_(total|count|sum|bucket)$", family.name), family.name
        for sample in family.samples:
            assert sample.name.endswith("_bucket") == ("le" in sample.labels)
            assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) for label in sample.labels)


def test_case_57_both_formats_parse_and_say_the_same(board: Board) -> None:
    everything(board)
    plain, ours = board.scrape(), collections.Counter[str]()
    for family in parse_openmetrics(generate_openmetrics(board.registry).decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            if sample.name != "vcuda_sample_age_seconds":
                assert plain[sample.name][labels] == sample.value, sample.name
            ours[sample.name] += 1
    assert set(ours) == set(plain)


def test_the_names_of_the_contract_are_all_there(board: Board) -> None:
    everything(board)
    cards = "info healthy memory_total_bytes memory_used_bytes memory_booked_bytes cores_booked_ratio"
    containers = (
        "core_limit_ratio core_ceiling_ratio core_usage_ratio core_delivered_ratio throttled_seconds_total "
        "memory_limit_bytes memory_used_bytes memory_refusals_total enforcement"
    )
    wanted = {
        *LEGACY,
        *(f"vcuda_card_{name}" for name in cards.split()),
        *(f"vcuda_container_{name}" for name in containers.split()),
        "vcuda_node_fragmentation_ratio",
        "vcuda_allocations_total",
        "vcuda_allocate_duration_seconds_count",
        "vcuda_allocations_id_card_mismatch",
        "vcuda_scrape_errors_total",
        "vcuda_sample_age_seconds",
        "vcuda_build_info",
    }
    found = board.scrape()
    assert wanted - set(found) == set()
    assert "vcuda_evaders" in {f.name for f in guards((), {}, frozenset(), {}, ())}
    labels = dict(next(iter(found["vcuda_container_core_limit_ratio"])))
    assert set(labels) == {"namespace", "pod", "container", "uuid", "card"}


def test_the_predecessors_series_have_its_labels_and_units(board: Board) -> None:
    everything(board)
    found = board.scrape()
    mine = {"container_name": "c", "namespace": "default", "node": NODE, "pod_name": "part"}
    assert found["container_request_gpu_memory"][labels(mine, req_of_gpu_memory="total")] == 5120
    assert found["container_request_gpu_utilization"][labels(mine, req_of_gpu="total")] == 0.3
    assert found["container_gpu_memory_total"][labels(mine, gpu_memory="total")] == 0
    assert found["container_gpu_memory_total"][labels(mine, gpu_memory="gpu0")] == 0
    assert found["container_gpu_utilization"][labels(mine, gpu="total")] == 0


def labels(base: Mapping[str, str], **more: str) -> Labels:
    return tuple(sorted({**base, **more}.items()))


def test_request_and_limits_are_there_before_the_first_sample(board: Board) -> None:
    board.admit("part", 30, 20)
    assert board.of("container_request_gpu_memory", pod_name="part") == [5120]
    assert board.of("vcuda_container_core_limit_ratio", pod="part") == [0.3]
    assert board.of("vcuda_container_memory_used_bytes", pod="part") == [0], "its page is empty"
    board.admit("whole", 100, 0)
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [], "nobody has looked yet"
    assert board.of("vcuda_container_enforcement", pod="whole", state="exclusive") == [1]


def test_a_released_pod_leaves_no_series_behind(board: Board) -> None:
    one = board.admit("gone", 30, 20)
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio", pod="gone")
    uid = PodUid(one["metadata"]["uid"])  # type: ignore[index]  # a pod object
    board.rig.state.forget_pod(uid)
    assert board.of("vcuda_container_core_limit_ratio") == board.of("container_request_gpu_memory") == [], (
        "not even before the next sample"
    )


def test_what_the_driver_cannot_tell_has_no_series(board: Board) -> None:
    board.admit("whole", 100, 0)
    first, second = (s.card.uuid for s in board.rig.states[:2])
    silent = {"lists_processes": False, "samples_processes": False}
    board.cards.uses = [CardUse(first, None, None, **silent), CardUse(second, GIB, None, **silent)]
    board.usage.sample()
    assert board.of("vcuda_card_memory_used_bytes") == [GIB]
    assert board.of("vcuda_card_utilization_ratio") == []
    assert board.of("vcuda_container_memory_used_bytes") == []
    assert board.of("container_gpu_memory_total") == []
    assert len(board.of("vcuda_card_memory_total_bytes")) == 8
    board.cards.lost = True
    board.usage.sample()
    assert board.of("vcuda_card_memory_used_bytes") == []
    assert board.of("vcuda_scrape_errors_total", source="cards") == [1]


def test_the_memory_of_a_card_that_has_none_of_its_own_is_absent(board: Board) -> None:
    """As of GB10, which works in the host's memory."""
    states = [replace(s, card=replace(s.card, memory=0)) for s in board.rig.states[:1]]
    board.rig.state.refit((*states, *board.rig.states[1:]), board.rig.topology)
    assert len(board.of("vcuda_card_memory_total_bytes")) == 7
    assert len(board.of("vcuda_card_healthy")) == 8


def test_whole_cards_are_measured_by_the_drivers_processes(board: Board) -> None:
    one = board.admit("whole", 100, 0)
    uid = one["metadata"]["uid"]  # type: ignore[index]  # a pod object
    live = board.rig.kubelet.start_container(uid, "c", container_id="c" * 64)
    assert live is not None
    board.rig.pods.bind(parse_pod(board.rig.kubelet.pod(uid)))
    (index,) = board.rig.cards_of(one, "c")
    board.cards.processes = [ProcessUse(board.rig.states[index].card.uuid, 42, 3 * GIB, 50.0)]
    board.rig.processes.containers[42] = (PodUid(uid), "c" * 64)
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [3 * GIB]
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [0.5]
    assert board.of("container_gpu_memory_total", pod_name="whole", gpu_memory="total") == [3072]


def test_a_whole_card_that_nobody_works_on_is_used_at_zero_where_that_can_be_known(board: Board) -> None:
    one = board.admit("whole", 100, 0)
    uuid = board.rig.states[board.rig.cards_of(one, "c")[0]].card.uuid
    board.cards.uses = [CardUse(uuid, 0, 0.0)]
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [], "not started yet"
    board.start(one)
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [0.0]
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [0]
    board.cards.uses = [CardUse(uuid, 0, 0.0, samples_processes=False)]
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == []
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [0]
    board.slots.sees = False
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == []


def test_what_goes_past_the_page_is_used_too(board: Board) -> None:
    one = board.admit("part", 30, 20)
    (index,) = board.rig.cards_of(one, "c")
    uuid = board.rig.states[index].card.uuid
    (name,) = board.rig.tenants.limits
    board.rig.tenants.uses[name] = (TenantUse(uuid, GIB, 10.0, 0.0, 0, 1),)
    board.start(one, pid=41)
    board.rig.processes.containers[42] = board.rig.processes.containers[41]
    board.cards.uses = [CardUse(uuid, GIB, 60.0)]
    board.cards.processes = [ProcessUse(uuid, 41, GIB, 20.0), ProcessUse(uuid, 42, 0, 40.0)]
    board.slots.holders = {41}
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [pytest.approx(0.4)]
    board.slots.holders = {41, 42}
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [0.0], "the page accounts for both"


def test_an_init_container_that_has_ended_has_no_series_and_is_billed_once(board: Board) -> None:
    obj = pod("two", container("c", 50, 20), init=[container("prepare", 50, 20)])
    assert board.rig.admit(obj).admitted
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == [0.5, 0.5]
    obj["status"]["initContainerStatuses"] = [{"name": "prepare", "state": {"terminated": {"exitCode": 0}}}]
    board.rig.pods.bind(parse_pod(obj))
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == [0.5]
    assert board.of("container_request_gpu_utilization") == [0.5]
    assert board.of("vcuda_pod_core_booked_ratio", pod="two") == [0.5]
    assert isinstance(board.rig.clock, FakeClock)
    for _ in range(2):
        board.bills.look()
        board.rig.clock.pass_(SAVE_SECONDS)
    board.bills.look()
    assert board.of("vcuda_namespace_core_seconds_total") == [50 * 2 * SAVE_SECONDS]


def test_a_pod_that_has_ended_leaves_the_series_before_it_leaves_the_books(board: Board) -> None:
    one = board.admit("job", 30, 20)
    board.usage.sample()
    board.rig.pods.bind(replace(parse_pod(one), phase="Succeeded"))
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == []
    assert board.of("vcuda_pod_core_booked_ratio") == []
    assert board.rig.state.view.grants


def test_a_fractions_figures_come_from_its_page(board: Board) -> None:
    one = board.admit("part", 30, 20)
    (index,) = board.rig.cards_of(one, "c")
    (name,) = board.rig.tenants.limits
    uuid = board.rig.states[index].card.uuid
    board.rig.tenants.uses[name] = (TenantUse(uuid, 2 * GIB, 10.0, 4.0, 7, 1, variance=0.0),)
    board.usage.sample()
    assert isinstance(board.rig.clock, FakeClock)
    board.rig.clock.pass_(1.0)
    board.rig.tenants.uses[name] = (TenantUse(uuid, 2 * GIB, 10.15, 4.5, 7, 1, variance=0.0),)
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="part") == [2 * GIB]
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [pytest.approx(0.15)]
    assert board.of("vcuda_container_core_usage_error_ratio", pod="part") == [pytest.approx(0.00475)]
    assert board.of("vcuda_container_core_delivered_ratio", pod="part") == [pytest.approx(0.5)]
    assert board.of("vcuda_container_throttled_seconds_total", pod="part") == [4.5]
    assert board.of("vcuda_container_memory_refusals_total", pod="part") == [7]


def test_a_page_that_cannot_be_trusted_gives_a_state_and_no_figures(board: Board) -> None:
    board.admit("bad", 30, 20)
    board.rig.tenants.tampered = set(board.rig.tenants.limits)
    board.usage.sample()
    assert board.of("vcuda_container_enforcement", pod="bad", state="tampered") == [1]
    assert board.of("vcuda_container_memory_used_bytes", pod="bad") == []
    assert board.of("vcuda_container_memory_limit_bytes", pod="bad") == [5 * GIB]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb 1", "} 1\nvcuda_evaders 99", "ünïcödé", "a" * 253])
def test_hostile_names_stay_one_label(board: Board, name: str) -> None:
    hostile = grant(name, namespace=name)
    put(board.rig.state, hostile)
    assert board.of("vcuda_container_core_limit_ratio", pod=name, namespace=name) == [0.1]
    assert board.of("container_request_gpu_utilization", pod_name=name) == [0.1]
    assert "vcuda_evaders" not in board.scrape()
    list(parse_openmetrics(generate_openmetrics(board.registry).decode()))


def test_namesakes_and_the_unnamed_do_not_make_a_series_twice(board: Board) -> None:
    """A force-deleted pod whose process lives on, and its successor of the same name on the same card."""
    several = [
        grant("db-0", uid="old", cores=10),
        grant("db-0", uid="new", cores=20),
        grant("", uid=f"{UNIDENTIFIED}1"),
        grant("", uid=f"{UNIDENTIFIED}2"),
    ]
    put(board.rig.state, *several)
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == [0.2], "the last granted is shown"
    assert board.of("vcuda_unidentified_allocations") == [2]
    assert board.of("vcuda_card_cores_booked_ratio", card="0") == [0.5], "all of them are booked"


def test_a_container_on_vanished_cards_keeps_its_limits(board: Board) -> None:
    lost = replace(
        grant("big"),
        allocation=replace(
            grant("big").allocation,
            shares=tuple(Share(f"GPU-lost-{n}", Amount(100, GIB)) for n in range(2)),  # type: ignore[arg-type]
        ),
    )
    put(board.rig.state, lost)
    assert board.of("vcuda_container_core_limit_ratio", pod="big", card="") == [1, 1]
    assert board.of("container_request_gpu_utilization", pod_name="big") == [2]


def test_ids_off_their_card_are_counted_while_they_are(board: Board) -> None:
    one = board.admit("part", 30, 20)
    assert board.of("vcuda_allocations_id_card_mismatch") == [0, 0]
    key = (PodUid(one["metadata"]["uid"]), "c")  # type: ignore[index]  # a pod object
    other = board.rig.state.node.ids.of_card[CORE][board.rig.states[7].card.uuid][:30]

    held = board.rig.state.view.grants[key]
    put(board.rig.state, replace(held, ids={**held.ids, CORE: frozenset(other)}))
    assert board.of("vcuda_allocations_id_card_mismatch", resource=CORE) == [1]
    assert board.of("vcuda_allocations_id_card_mismatch", resource=MEMORY) == [0]


def test_counters_with_known_labels_start_at_zero(board: Board) -> None:
    assert board.of("vcuda_allocations_total") == [0, 0, 0, 0]
    assert board.of("vcuda_registrations_total", resource=CORE) == [1]
    assert board.of("vcuda_allocations_reclaimed_total") == [0]
    assert board.of("vcuda_scrape_errors_total") == []


def test_the_cards_events_are_counted(board: Board) -> None:
    board.events = {"card_closed": 3, "card_opened": 2}
    assert board.of("vcuda_card_events_total", event="card_closed") == [3]


def test_what_the_api_server_was_never_told_is_counted(board: Board) -> None:
    assert board.of("vcuda_api_writes_dropped_total") == [0]
    board.dropped = 7
    assert board.of("vcuda_api_writes_dropped_total") == [7]
    assert board.of("vcuda_watch_unreadable_objects_total", resource="pods") == [7]
    assert board.of("vcuda_watch_unreadable_objects_total", resource="nodes") == [0]


def test_a_pod_that_waits_for_the_evictor_has_a_series_until_it_goes(board: Board) -> None:
    waiting = Pod(PodUid("1"), "team", "waiting", (), annotations={EVICT: "{}"})
    pods = {
        pod.name: (KnownPod(pod, tombstone=pod.name == "gone"),)
        for pod in (
            waiting,
            replace(waiting, name="going", deleting=True),
            replace(waiting, name="gone"),
            replace(waiting, name="well", annotations={}),
        )
    }
    registry = CollectorRegistry()
    registry.register(Exporter(board.rig.state, board.usage, "1", pods=lambda: pods))
    name, text = "vcuda_pod_marked_for_eviction", generate_latest(registry).decode()
    assert re.findall(rf"^{name}{{.*", text, re.MULTILINE) == [
        f'{name}{{namespace="team",pod="waiting"}} 1.0'
    ]


def test_without_legacy_metrics_the_predecessors_are_gone(board: Board) -> None:
    registry = CollectorRegistry()
    registry.register(Exporter(board.rig.state, board.usage, "1", legacy=False))
    board.admit("part", 30, 20)
    assert "container_gpu" not in generate_latest(registry).decode()
    assert "vcuda_container_core_limit_ratio" in generate_latest(registry).decode()


def test_everything_that_is_exported_is_counted_somewhere(board: Board) -> None:
    """A series that nobody ever changes says that nothing happens."""
    texts = [file.read_text(encoding="utf-8") for room in COUNTING for file in (SOURCES / room).rglob("*.py")]
    used = {
        name
        for text in texts
        for name in re.findall(r"metrics\.([a-z_]+)\s*\.(?:inc|labels|observe|set)\(", text)
    }
    assert used == set(vars(board.rig.metrics))


def test_the_description_is_what_a_scrape_has(board: Board) -> None:
    everything(board)
    counted = {f.name for c in vars(board.rig.metrics).values() for f in c.collect()}
    described = {f.name: (f.type, f.documentation) for f in describe()}
    found = {f.name: (f.type, f.documentation) for f in board.registry.collect() if f.name not in counted}
    assert described == found


def test_when_a_counter_was_born_is_a_series_of_its_own_for_bills_alone(board: Board) -> None:
    everything(board)
    for text in (board.text(), generate_openmetrics(board.registry).decode()):
        born = {line.split("{")[0] for line in text.splitlines() if "_created" in line and line[0] != "#"}
        assert all(re.fullmatch(r"vcuda_(pod|namespace)_[a-z_]+_seconds_created", one) for one in born), born
