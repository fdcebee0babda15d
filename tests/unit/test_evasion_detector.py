"""The watchdog over samples made by hand: who is named, to whom, how soon, and who never is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.enforcement.evasion import CLEARED, NEEDED, SHARED_SAMPLES, EvasionReason
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.enforcement.time_sharing import NEEDED as SLICES_NEEDED
from gpu_manager.domain.enforcement.time_sharing import Stalls
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.enforcement.evasion_detector import EvasionDetector
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.ports import FakePods, cards
from tests.fakes.state import state_of

STATES = cards(2)
FIRST, SECOND = (s.card.uuid for s in STATES)
LIMIT = 5 * GIB


class NoKubelet:
    def listing(self) -> object:
        raise NodeUnready("there is no kubelet here")

    def checkpoint(self) -> None:
        return None


@dataclass
class FakeWitness:
    holders: dict[str, frozenset[int]] = field(default_factory=dict)
    changed: dict[str, tuple[int, str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    looks: int = 0

    def registered(self, name: str) -> frozenset[int]:
        if name in self.gone:
            raise NodeUnready("the page is gone")
        return self.holders.get(name, frozenset())

    def attacks(self, name: str) -> tuple[int, str]:
        self.looks += 1
        return self.changed.get(name, (0, ""))

    def tampering(self) -> Mapping[str, int]:
        return {name: count for name, (count, _) in self.changed.items()}

    def noted(self) -> Collection[str]:
        return ()

    def notes(self, name: str) -> tuple[LibraryMessage, ...]:
        return ()


@dataclass
class FakeHost:
    """Host ids are 1,000 above the ids that processes know; ``ending`` ones are nobody."""

    seeing: bool = True
    ending: set[int] = field(default_factory=set)
    containers: dict[int, tuple[PodUid, str]] = field(default_factory=dict)

    def host_pid(self) -> bool:
        return self.seeing

    def inner_pid(self, pid: int) -> int | None:
        return None if pid in self.ending else pid - 1000

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        return self.containers.get(pid)


def pod(name: str, *, controlled: bool = True, core: int | None = 30) -> Pod:
    container = Container("c", ContainerKind.APP, core=core, memory_units=20 if core else None)  # type: ignore[arg-type]
    return Pod(PodUid(f"uid-{name}"), "team", name, (container,), node="n1", controlled=controlled)


def grant(name: str, card: CardUuid = FIRST, cores: int = 30, ceiling: int = 0) -> Grant:
    share = Share(card, Amount(cores, LIMIT if cores < 100 else 16 * GIB))
    allocation = Allocation(
        PodUid(f"uid-{name}"), "c", ContainerKind.APP, 0, (share,), "team", name, granted=True
    )
    return Grant(allocation, f"dir-{name}", ceiling, {CORE: frozenset(), MEMORY: frozenset()}, proven=True)


class Rig:
    """``see`` is one sample and one look."""

    def __init__(self, *, evict: bool = False) -> None:
        self.pods, self.witness, self.host, self.metrics = (
            FakePods(),
            FakeWitness(),
            FakeHost(),
            service_metrics(),
        )
        self.state = state_of(STATES)
        self.sample = Sample(0.0)
        self.watchdog = EvasionDetector(
            self.state,
            lambda: self.sample,
            self.pods,
            self.witness,
            self.host,
            self.metrics,
            evict=evict,
            leases=lambda: self.leases,
        )
        self.grants: dict[Key, Grant] = {}
        self.uses: dict[Key, ShareUse] = {}
        self.ended: frozenset[Key] = frozenset()
        self.leases: dict[CardUuid, tuple[int, ...]] = {}

    def run(self, made: Pod, given: Grant | None = None, *, registered: Sequence[int] = ()) -> None:
        self.pods.bind(made)
        if given is not None:
            self.grants[given.key] = given
            share = given.allocation.shares[0]
            self.uses[given.key] = ShareUse(
                given.key,
                share,
                "exclusive" if share.whole else "active",
                memory=None if share.whole else GIB,
                core=None if share.whole else 0.2,
            )
            self.witness.holders[given.directory] = frozenset(registered)

    def see(
        self,
        *processes: tuple[str, ProcessUse],
        lost: Sequence[CardUuid] = (),
        times: int = 1,
    ) -> None:
        """``(pod's name, what the driver says of a process of it)``."""
        seen: dict[tuple[Key, CardUuid], list[ProcessUse]] = {}
        for name, process in processes:
            seen.setdefault(((PodUid(f"uid-{name}"), "c"), process.uuid), []).append(process)
        for _ in range(times):
            self.sample = Sample(
                self.sample.at + 1.0,
                dict(self.grants),
                {s.card.uuid: CardUse(s.card.uuid) for s in STATES if s.card.uuid not in lost},
                tuple(self.uses.values()),
                seen,
                self.ended,
                {
                    card: sum(p.utilisation or 0.0 for _, p in processes if p.uuid == card)
                    for card in (FIRST, SECOND)
                },
            )
            self.watchdog.look()

    def named(self) -> set[tuple[str, EvasionReason]]:
        return {(e.pod, e.reason) for e in self.watchdog.evaders}

    def events(self) -> list[tuple[str, str]]:
        return [(key, text) for key, reason, text in self.pods.events if reason == "VcudaEvader"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def on(card: CardUuid, pid: int, memory: int | None = GIB, utilisation: float | None = 20.0) -> ProcessUse:
    return ProcessUse(card, pid, memory, utilisation)


def test_a_process_without_a_slot_is_named_at_the_second_sample_with_what_and_where(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"), registered=[17])
    rig.see(("bad", on(FIRST, 1018, 8 * GIB)))
    assert not rig.named()
    rig.see(("bad", on(FIRST, 1018, 8 * GIB)))
    assert rig.named() == {("bad", EvasionReason.UNREGISTERED), ("bad", EvasionReason.MEMORY)}
    (first, second) = sorted(rig.events())
    assert first[0] == second[0] == "team/bad"
    assert any(
        'container "c" on card 0: process 1018 uses 8 GiB past the library' in t for _, t in (first, second)
    )
    assert any("3 GiB past the limit of 5 GiB" in t for _, t in (first, second))


def test_it_is_told_and_logged_once_however_long_it_lasts(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    with capture_logs() as logs:
        rig.see(("bad", on(FIRST, 1018)), times=50)
    assert len(rig.events()) == 1
    assert [entry["event"] for entry in logs].count("evasion_detected") == 1
    assert counts(rig.metrics.evaders_named) == {"no-slot": 1}


def test_honest_processes_are_never_named(rig: Rig) -> None:
    rig.run(pod("good"), grant("good"), registered=[17, 18])
    rig.see(("good", on(FIRST, 1017, 2 * GIB)), ("good", on(FIRST, 1018, 2 * GIB)), times=20)
    assert not rig.named()
    assert not rig.watchdog.blind


def test_the_same_sample_is_judged_once(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    rig.see(("bad", on(FIRST, 1018)))
    for _ in range(10):
        rig.watchdog.look()
    assert not rig.named()


def test_a_process_that_ends_is_not_taken_for_one_that_hides(rig: Rig) -> None:
    rig.run(pod("good"), grant("good"))
    rig.host.ending = {1017}
    rig.see(("good", on(FIRST, 1017)), times=10)
    assert not rig.named()


def test_a_page_that_cannot_be_read_accuses_nobody_of_having_no_slot(rig: Rig) -> None:
    rig.run(pod("good"), grant("good"))
    rig.witness.gone = {"dir-good"}
    key = grant("good").key
    rig.uses[key] = replace(rig.uses[key], enforcement="unknown", memory=None, core=None)
    rig.see(("good", on(FIRST, 1017, 90 * GIB // 100, 99.0)), times=10)
    assert not rig.named()


def test_without_the_hosts_processes_nobody_is_named_and_the_lack_is(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    rig.host.seeing = False
    rig.see(("bad", on(FIRST, 1018, 9 * GIB)), times=5)
    assert not rig.named()
    assert rig.watchdog.blind == {"host-pid"}


def test_a_card_that_tells_nothing_neither_names_nor_clears(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    rig.see(("bad", on(FIRST, 1018)), times=2)
    assert rig.named() == {("bad", EvasionReason.UNREGISTERED)}
    rig.see(lost=[FIRST], times=2 * CLEARED[EvasionReason.UNREGISTERED])
    assert rig.named() == {("bad", EvasionReason.UNREGISTERED)}
    rig.see(lost=[FIRST, SECOND])
    assert rig.watchdog.blind == {"cards"}
    rig.see(times=CLEARED[EvasionReason.UNREGISTERED])
    assert not rig.named()
    rig.see(("bad", on(FIRST, 1018)), times=2)
    assert len(rig.events()) == 2, "named anew after it had been cleared"


def test_a_container_that_is_gone_is_forgotten(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    rig.see(("bad", on(FIRST, 1018)), times=2)
    rig.grants.clear()
    rig.uses.clear()
    rig.pods.forget("team/bad")
    rig.see()
    assert not rig.watchdog.evaders


def test_an_evader_whose_pod_is_deleted_and_runs_no_more_is_one_no_more(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"))
    rig.witness.changed["dir-bad"] = (1, "the usage page has no magic")
    rig.see()
    assert rig.named() == {("bad", EvasionReason.TAMPERED)}
    rig.pods.forget("team/bad")
    rig.see()
    assert rig.watchdog.evaders, "its processes may run on"
    rig.ended = frozenset(rig.grants)
    rig.see()
    assert not rig.watchdog.evaders


def test_a_container_on_a_card_that_it_does_not_hold_is_named_on_that_card(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad", FIRST), registered=[17])
    rig.see(("bad", on(FIRST, 1017)), ("bad", on(SECOND, 1017)), times=2)
    assert [(e.card, e.reason) for e in rig.watchdog.evaders] == [(SECOND, EvasionReason.FOREIGN_CARD)]
    assert "on card 1:" in rig.events()[0][1]


def test_a_whole_card_has_no_page_to_compare_with_but_an_edge(rig: Rig) -> None:
    rig.run(pod("whole", core=100), grant("whole", FIRST, 100))
    rig.see(("whole", on(FIRST, 1017, 16 * GIB, 100.0)), times=5)
    assert not rig.named()
    rig.see(("whole", on(SECOND, 1017)), times=2)
    assert rig.named() == {("whole", EvasionReason.FOREIGN_CARD)}


def test_a_pod_that_asked_for_nothing_is_named_and_never_evicted() -> None:
    rig = Rig(evict=True)
    rig.run(pod("guest", core=None))
    rig.see(("guest", on(FIRST, 1018)), times=3)
    assert rig.named() == {("guest", EvasionReason.FOREIGN_CARD)}
    assert not rig.pods.evicted


def test_a_container_that_asks_but_is_not_in_our_books_is_not_called_an_evader(rig: Rig) -> None:
    rig.run(pod("unknown"))
    rig.see(("unknown", on(FIRST, 1018)), times=10)
    assert not rig.named()


def test_an_attack_on_the_page_is_named_at_once_and_cleared_after_a_quiet_minute(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"), registered=[17])
    rig.see(("bad", on(FIRST, 1017)))
    rig.witness.changed["dir-bad"] = (1, "it had 7 bytes instead of 327680")
    rig.see(("bad", on(FIRST, 1017)))
    assert rig.named() == {("bad", EvasionReason.TAMPERED)}
    assert "it had 7 bytes" in rig.events()[0][1]
    rig.see(("bad", on(FIRST, 1017)), times=CLEARED[EvasionReason.TAMPERED] - 1)
    assert rig.named()
    rig.see(("bad", on(FIRST, 1017)))
    assert not rig.named()


def test_time_that_the_page_hides_is_named_when_it_is_taken_from_others(rig: Rig) -> None:
    rig.run(pod("bad"), grant("bad"), registered=[17])
    rig.see(("bad", on(FIRST, 1017, GIB, 97.0)), times=NEEDED[EvasionReason.TIME])
    assert rig.named() == {("bad", EvasionReason.TIME)}


def test_an_elastic_container_may_use_up_to_its_ceiling(rig: Rig) -> None:
    rig.run(pod("elastic"), grant("elastic", ceiling=90), registered=[17])
    rig.see(("elastic", on(FIRST, 1017, GIB, 97.0)), times=10)
    assert not rig.named()


@pytest.mark.parametrize(("controlled", "evict"), [(True, True), (True, False), (False, True)])
def test_only_pods_that_are_made_anew_are_evicted_and_only_where_it_is_wished_for(
    controlled: bool, evict: bool
) -> None:
    rig = Rig(evict=evict)
    rig.run(pod("bad", controlled=controlled), grant("bad"))
    rig.see(("bad", on(FIRST, 1018, 9 * GIB)), times=5)
    expected = [PodUid("uid-bad")] if controlled and evict else []
    assert rig.pods.evicted == expected, "once, though two things were found"
    assert any("the pod is evicted" in text for _, text in rig.events()) is bool(expected)


def test_hidden_time_alone_evicts_nobody() -> None:
    rig = Rig(evict=True)
    rig.run(pod("bad"), grant("bad"), registered=[17])
    rig.see(("bad", on(FIRST, 1017, GIB, 97.0)), times=5)
    assert rig.named() == {("bad", EvasionReason.TIME)}
    assert not rig.pods.evicted


def test_a_pod_that_the_watch_has_not_shown_yet_is_told_of_when_it_has(rig: Rig) -> None:
    made = pod("bad")
    rig.run(made, grant("bad"))
    rig.pods.forget("team/bad")
    rig.see(("bad", on(FIRST, 1018)), times=3)
    assert rig.named() == {("bad", EvasionReason.UNREGISTERED)}
    assert not rig.events()
    rig.pods.bind(made)
    rig.see(("bad", on(FIRST, 1018)))
    assert len(rig.events()) == 1


def test_an_idle_node_is_looked_at_again_only_after_a_change(rig: Rig) -> None:
    rig.run(pod("quiet"), grant("quiet"), registered=[])
    rig.see()
    rig.sample = replace(rig.sample, at=rig.sample.at + 1.0)
    rig.watchdog.look()
    rig.witness.looks = 0
    rig.sample = replace(rig.sample, at=rig.sample.at + 1.0)
    rig.watchdog.look()
    assert rig.witness.looks == 0
    rig.witness.changed["dir-quiet"] = (1, "its mode was 0600")  # found by another reader than the sampler
    rig.sample = replace(rig.sample, at=rig.sample.at + 1.0)
    rig.watchdog.look()
    assert rig.named() == {("quiet", EvasionReason.TAMPERED)}


def test_whose_page_cannot_be_read_beside_its_process_is_named_after_three_samples_and_not_evicted() -> None:
    rig = Rig(evict=True)
    given = grant("a")
    rig.run(pod("a"), given, registered=[7])
    share = given.allocation.shares[0]
    rig.uses[given.key] = ShareUse(given.key, share, "unknown", reason="the pages of dir-a cannot be used")
    rig.see(("a", ProcessUse(FIRST, 1007, memory=GIB)), times=2)
    assert not rig.watchdog.evaders
    rig.see(("a", ProcessUse(FIRST, 1007, memory=GIB)))
    found = rig.watchdog.evaders
    assert [evader.reason for evader in found] == [EvasionReason.UNREADABLE]
    assert "process 1007 uses 1 GiB of the card" in found[0].evidence
    assert "the pages of dir-a cannot be used" in found[0].evidence
    assert not rig.pods.evicted
    rig.see(times=5)
    assert not rig.watchdog.evaders


def test_who_holds_a_lease_on_a_gate_is_named_at_once_though_it_uses_no_card() -> None:
    rig = Rig()
    made = pod("a")
    made = replace(made, containers=(replace(made.containers[0], runtime_id="c" * 64),))
    rig.run(made, grant("a"))
    rig.run(pod("b"), grant("b"))
    rig.see()
    rig.host.containers[4711] = PodUid("uid-a"), "c" * 64
    rig.leases[FIRST] = (4711, 4712)
    rig.see()
    (evader,) = rig.watchdog.evaders
    assert (evader.pod, evader.card, evader.reason) == ("a", FIRST, EvasionReason.TAMPERED)
    assert "process 4711 holds a lease on the card's gate" in evader.evidence
    rig.leases.clear()
    rig.see(times=60)
    assert not rig.watchdog.evaders


def test_time_beside_a_container_that_only_holds_memory_is_judged_as_alone_and_beside_work_in_the_mean() -> (
    None
):
    rig = Rig()
    rig.run(pod("bad"), grant("bad"), registered=[1])
    rig.run(pod("idle"), grant("idle"), registered=[2])
    bad, idle = ("bad", ProcessUse(FIRST, 1001, GIB, 90.0)), ("idle", ProcessUse(FIRST, 1002, GIB, 0.0))
    rig.see(bad, idle, times=NEEDED[EvasionReason.TIME])
    assert ("bad", EvasionReason.TIME) in rig.named()
    rig = Rig()
    rig.run(pod("bad"), grant("bad"), registered=[1])
    rig.run(pod("busy"), grant("busy"), registered=[2])
    busy = ("busy", ProcessUse(FIRST, 1002, GIB, 10.0))
    rig.see(bad, busy, times=SHARED_SAMPLES + NEEDED[EvasionReason.TIME] - 2)
    assert rig.named() == set()
    rig.see(bad, busy)
    assert rig.named() == {("bad", EvasionReason.TIME)}


def slices(rig: Rig, *, third: bool = False) -> tuple[tuple[str, ProcessUse], ...]:
    """A container that waits for another one's long slices; what the driver says of both."""
    for name, inner in (("good", 17), ("bad", 18)):
        rig.run(pod(name), grant(name), registered=[inner])
    waiting = rig.grants[grant("good").key]
    rig.uses[waiting.key] = replace(rig.uses[waiting.key], stalls=Stalls(50, 2, 0.2))
    both = ("good", on(FIRST, 1017, utilisation=20.0)), ("bad", on(FIRST, 1018, utilisation=30.0))
    if third:
        rig.run(pod("third"), grant("third"), registered=[19])
        return *both, ("third", on(FIRST, 1019, utilisation=5.0))
    return both


def test_whose_slices_a_neighbour_waits_for_is_named_after_half_a_minute_and_never_evicted() -> None:
    rig = Rig(evict=True)
    both = slices(rig)
    rig.see(*both, times=SLICES_NEEDED)
    assert not rig.named(), "the first sample has no second before it"
    rig.see(*both)
    assert rig.named() == {("bad", EvasionReason.SLICE)}
    assert "interrupted for 100 ms" in rig.events()[0][1]
    assert "good" not in rig.events()[0][1], "a tenant is not told who its neighbour is"
    assert not rig.pods.evicted


def test_where_a_third_container_works_nobody_is_accused_of_a_long_slice(rig: Rig) -> None:
    rig.see(*slices(rig, third=True), times=3 * SLICES_NEEDED)
    assert not rig.named()


def test_a_process_of_nobody_on_the_card_speaks_for_the_accused(rig: Rig) -> None:
    both = slices(rig)
    for _ in range(3 * SLICES_NEEDED):
        rig.see(*both, ("stranger", on(FIRST, 4711, utilisation=40.0)))
    assert not rig.named()


def test_a_long_slice_is_forgotten_a_minute_after_its_work_ended(rig: Rig) -> None:
    both = slices(rig)
    rig.see(*both, times=SLICES_NEEDED + 1)
    for key, use in rig.uses.items():
        rig.uses[key] = replace(use, core=0.0, stalls=Stalls())
    rig.see(times=CLEARED[EvasionReason.SLICE] - 1)
    assert rig.named()
    rig.see()
    assert not rig.named()
