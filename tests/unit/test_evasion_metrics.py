"""What operators see of evaders and of the last limit: names and labels of the metrics, and when they go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.evasion import EvasionReason
from gpu_manager.servers.exporter import Findings, guards
from gpu_manager.services.enforcement.container_starts import NotInjected
from gpu_manager.services.enforcement.evasion_detector import Evader
from tests.fakes.ports import cards
from tests.fakes.state import state_of

STATES = cards(2)
SECOND = STATES[1].card.uuid


class Board:
    """The collector over what the services say."""

    def __init__(self) -> None:
        self.detector: Any = SimpleNamespace(evaders=(), blind=frozenset())
        self.driver_limits: Any = SimpleNamespace(kinds={})
        self.registry = CollectorRegistry()
        self.injection: Any = SimpleNamespace(found=())
        self.registry.register(
            Findings(
                state_of(STATES),
                lambda index: guards(
                    self.detector.evaders,
                    index,
                    self.detector.blind,
                    self.driver_limits.kinds,
                    self.injection.found,
                ),
            )
        )

    def scrape(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        text = generate_latest(self.registry).decode()
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found


def evader(reason: EvasionReason, card: CardUuid = SECOND) -> Evader:
    return Evader("team", "bad", "c", card, reason, "process 1 uses 8 GiB")


def test_every_series_that_does_not_name_a_container_is_there_from_the_first_scrape_on() -> None:
    found = Board().scrape()
    assert found["vcuda_evaders"] == {(): 0}
    assert found["vcuda_evasion_detection_blind"] == {(("lacks", "host-pid"),): 0, (("lacks", "cards"),): 0}
    assert found["vcuda_driver_memory_limits"] == {(("kind", k),): 0 for k in ("nvml", "dmem", "none")}
    assert "vcuda_container_evading" not in found


def test_a_container_counts_once_and_each_of_its_reasons_is_a_series() -> None:
    board = Board()
    board.detector.evaders = (evader(EvasionReason.UNREGISTERED), evader(EvasionReason.MEMORY))
    found = board.scrape()
    assert found["vcuda_evaders"] == {(): 1}
    labels = {"namespace": "team", "pod": "bad", "container": "c", "uuid": SECOND, "card": "1"}
    assert found["vcuda_container_evading"] == {
        tuple(sorted({**labels, "reason": reason}.items())): 1 for reason in ("no-slot", "memory")
    }
    board.detector.evaders = ()
    assert "vcuda_container_evading" not in board.scrape(), "cleared: no series is left"


def test_a_card_that_has_gone_is_shown_by_its_uuid_alone() -> None:
    board = Board()
    gone = CardUuid("GPU-99999999-0000-0000-0000-000000000000")
    board.detector.evaders = (evader(EvasionReason.FOREIGN_CARD, gone),)
    ((labels, _),) = board.scrape()["vcuda_container_evading"].items()
    assert dict(labels)["uuid"] == gone
    assert dict(labels)["card"] == ""


def test_what_evasion_detection_lacks_and_who_holds_memory_are_said() -> None:
    board = Board()
    board.detector.blind = frozenset({"host-pid"})
    board.driver_limits.kinds = {"nvml": 3, "none": 1}
    found = board.scrape()
    assert found["vcuda_evasion_detection_blind"][("lacks", "host-pid"),] == 1
    assert found["vcuda_driver_memory_limits"] == {
        (("kind", "nvml"),): 3,
        (("kind", "dmem"),): 0,
        (("kind", "none"),): 1,
    }


def test_a_container_without_its_mounts_is_a_series_while_it_runs() -> None:
    board = Board()
    assert "vcuda_container_not_injected" not in board.scrape()
    board.injection.found = (NotInjected("team", "bare", "c", "no libcuda.so is mounted"),)
    labels = (("container", "c"), ("namespace", "team"), ("pod", "bare"))
    assert board.scrape()["vcuda_container_not_injected"] == {labels: 1}
