"""What is on /metric: lint as promtool does it, names of the contract, hostile names, nothing twice."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from gpu_manager.domain.contract import CORE, EVICT, MEMORY
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.servers.exporter import Exporter, describe, guards
from gpu_manager.services.allocation.unidentified_grants import UNIDENTIFIED
from tests.fakes import scraped_node
from tests.fakes.node import NODE
from tests.fakes.scraped_node import Board, Labels, everything, grant
from tests.fakes.state import put

board = scraped_node.board

SOURCES = Path(__file__).parents[2] / "gpu_manager"
# The predecessor's names and units are kept as they were.
LEGACY = {
    "container_gpu_memory_total",
    "container_gpu_utilization",
    "container_request_gpu_memory",
    "container_request_gpu_utilization",
}
COUNTING = ("services", "servers")


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
