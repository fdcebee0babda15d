"""What the agent tells the watcher and the pages while protected and best-effort containers share a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.control_pages import GateReading, GateWatch, WatchedTenant
from gpu_manager.servers.exporter import Findings, gates
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.enforcement.gates import PERIOD_SECONDS, REST_SECONDS, CardGates
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.ports import FakeClock, cards
from tests.fakes.state import state_of

STATES = cards(2)
CARD, OTHER = (state.card.uuid for state in STATES)


def grant(pod: str, priority: Priority, cores: int = 30, ceiling: int = 0, card: CardUuid = CARD) -> Grant:
    shares = (Share(card, Amount(cores, GIB)),)
    allocation = Allocation(PodUid(pod), "c", ContainerKind.APP, 0, shares, "team", pod, priority=priority)
    return Grant(allocation, pod.ljust(32, "0"), ceiling)


@dataclass
class Rig:
    """A service whose sample is what these grants make of it."""

    grants: list[Grant]
    works: set[str] = field(default_factory=set)
    longest: float = 0.0
    state: str = "active"
    published: list[tuple[str, CardUuid, float | None]] = field(default_factory=list)
    beside: dict[str, float | None] = field(default_factory=dict)
    watched: list[list[GateWatch]] = field(default_factory=list)
    ensured: list[CardUuid] = field(default_factory=list)
    broken: str = ""
    unreadable: bool = False
    ended: bool = False
    sampled: bool = True

    def __post_init__(self) -> None:
        self.metrics = service_metrics()
        self._granted: dict[Key, Grant] = {}
        self.service = CardGates(self._grants_now, self._sample, self, self, self, FakeClock(), self.metrics)

    def _grants_now(self) -> Mapping[Key, Grant]:
        """The same mapping while nothing changes, as of the node's books."""
        now = {g.key: g for g in self.grants}
        if now != self._granted:
            self._granted = now
        return self._granted

    def _sample(self) -> Sample:
        grants = {g.key: g for g in self.grants}
        uses = tuple(
            ShareUse(
                g.key,
                share,
                self.state,
                core=0.5 if g.allocation.pod_name in self.works else 0.0,
                longest=self.longest,
            )
            for g in self.grants
            for share in g.allocation.shares
            if self.sampled
        )
        return replace(Sample(0.0), grants=grants, shares=uses)

    def publish(self, name, heartbeat_ns, corrections):
        if self.unreadable:
            raise NodeUnready("its page is gone")
        for card, told in corrections.items():
            self.published.append((name, card, told.granted))
            self.beside[name] = told.beside

    def path(self, card):
        return Path("/gates") / card

    def ensure(self, card):
        self.ensured.append(card)

    def read(self, card):
        if self.broken:
            raise NodeUnready(self.broken)
        return GateReading(3, 1.5)

    def watch(self, watched):
        if self.broken:
            raise NodeUnready(self.broken)
        self.watched.append(list(watched))

    def close(self):
        self.ended = True


def name(pod: str) -> str:
    return pod.ljust(32, "0")


def pair(**options) -> Rig:
    return Rig([grant("p", Priority.PROTECTED), grant("b", Priority.BEST_EFFORT, 20, 100)], **options)


def test_where_all_containers_are_normal_nothing_is_told_and_nothing_watched():
    rig = Rig([grant("a", Priority.NORMAL), grant("b", Priority.NORMAL)])
    rig.service.look()
    assert (rig.published, rig.watched, rig.ensured) == ([], [[]], [])
    assert rig.service.told == {}


def test_a_node_whose_containers_are_all_normal_rests_until_another_comes():
    rig = Rig([grant("a", Priority.NORMAL)])
    for _ in range(3):
        rig.service.look()
    assert (rig.watched, rig.service.pause) == ([[]], REST_SECONDS)
    rig.grants = pair().grants
    rig.service.look()
    assert (len(rig.watched[-1]), rig.service.pause) == (1, PERIOD_SECONDS)
    rig.grants = [grant("a", Priority.NORMAL)]
    rig.service.look()
    assert (rig.watched[-1], rig.service.told, rig.service.pause) == ([], {}, REST_SECONDS)


def test_a_card_with_both_classes_is_watched_and_both_are_told_their_shares_once():
    rig = pair()
    rig.service.look()
    rig.service.look()
    told = GateWatch(CARD, (WatchedTenant(name("p"), 0, 30),), (WatchedTenant(name("b"), 0, 20),))
    assert rig.watched == [[told], [told]]
    assert rig.ensured == [CARD, CARD]
    assert rig.published == [(name("p"), CARD, 30.0), (name("b"), CARD, 100.0)]


def test_a_card_is_watched_from_the_grant_on_before_any_page_was_read():
    rig = pair(sampled=False)
    rig.service.look()
    assert [len(watched) for watched in rig.watched] == [1]
    assert rig.published == [(name("p"), CARD, 30.0), (name("b"), CARD, 100.0)]


def test_a_protected_container_is_told_when_best_effort_ones_begin_to_work_and_stop():
    rig = pair()
    rig.service.look()
    assert rig.beside == {name("p"): 0.0, name("b"): 0.0}
    rig.works = {"b"}
    rig.service.look()
    assert rig.beside == {name("p"): 20.0, name("b"): 0.0}, "it uses 50, and is sure of 20"
    rig.works = set()
    rig.service.look()
    assert rig.beside[name("p")] == 0.0


def test_who_is_left_alone_is_told_so():
    rig = pair()
    rig.service.look()
    rig.grants.pop(0)
    rig.published.clear()
    rig.service.look()
    assert rig.published == [(name("b"), CARD, 0.0)]
    assert rig.watched[-1] == []


def test_a_started_agent_tells_containers_that_are_alone_what_an_earlier_one_may_have_told_otherwise():
    rig = Rig([grant("p", Priority.PROTECTED)])
    rig.service.look()
    assert rig.published == [(name("p"), CARD, 0.0)]


def test_classes_on_different_cards_do_not_meet():
    rig = Rig([grant("p", Priority.PROTECTED), grant("b", Priority.BEST_EFFORT, card=OTHER)])
    rig.service.look()
    assert rig.watched == [[]]


def test_shares_follow_who_is_at_work():
    rig = pair()
    rig.grants.append(grant("x", Priority.BEST_EFFORT, 20, 100))
    rig.works = {"b", "x"}
    rig.service.look()
    assert (name("b"), CARD, 50.0) in rig.published
    rig.works = {"b"}
    rig.published.clear()
    rig.service.look()
    assert rig.published == [(name("p"), CARD, 30.0), (name("b"), CARD, 100.0)]
    assert rig.beside[name("p")] == 20.0


def test_a_page_that_cannot_be_written_is_counted_and_tried_again():
    rig = pair(unreadable=True)
    rig.service.look()
    assert rig.published == []
    assert counts(rig.metrics.scrape_errors) == {"pages": 2}
    rig.unreadable = False
    rig.service.look()
    assert len(rig.published) == 2


def test_a_container_whose_page_cannot_be_trusted_does_not_count():
    rig = pair(state="tampered")
    rig.service.look()
    assert (rig.watched, rig.published) == ([[]], [])


def test_a_watcher_that_cannot_be_started_is_counted_and_the_shares_are_told_all_the_same():
    rig = pair(broken="it is not there")
    rig.service.look()
    rig.service.look()
    assert counts(rig.metrics.scrape_errors) == {"gates": 2}
    assert len(rig.published) == 2
    assert rig.service.told[CARD].closed is None


def test_the_expected_wait_and_the_closed_time_are_told_of_cards_with_both_classes_alone():
    rig = pair(longest=0.05)
    rig.service.look()
    told = rig.service.told[CARD]
    assert (round(told.wait, 4), told.closed, told.beside_normal) == (0.0505, 1.5, False)
    rig.grants.append(grant("n", Priority.NORMAL))
    rig.service.look()
    assert rig.service.told[CARD].beside_normal


def test_it_ends_the_watcher():
    rig = pair()
    rig.service.close()
    assert rig.ended


def test_the_metrics_name_the_card():
    rig = pair(longest=0.05)
    registry = CollectorRegistry()
    registry.register(Findings(state_of(STATES), lambda index: gates(rig.service.told, index)))
    assert b"uuid=" not in generate_latest(registry)
    rig.service.look()
    text = generate_latest(registry).decode()
    labels = f'{{card="0",uuid="{CARD}"}}'
    assert f"vcuda_protected_wait_seconds{labels} 0.0505" in text
    assert f"vcuda_gate_closed_seconds_total{labels} 1.5" in text
    assert f"vcuda_protected_beside_normal{labels} 0.0" in text
    rig.broken = "gone"
    rig.service.look()
    assert "vcuda_gate_closed_seconds_total{" not in generate_latest(registry).decode(), "absent is not zero"
    assert {family.name for family in gates({}, {})} == {
        "vcuda_protected_wait_seconds",
        "vcuda_gate_closed_seconds",
        "vcuda_protected_beside_normal",
    }
