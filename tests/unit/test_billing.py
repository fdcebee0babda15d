"""Bills: what pods held over time, whatever happens to the agent and its disk meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpu_manager.domain.billing import (
    KEPT_DAYS,
    KEPT_PODS,
    KEPT_SECONDS,
    Bills,
    Holding,
    booked_peak,
    decode_bills,
    encode_bills,
)
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.services.allocation.books import Books, Grant, NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.billing import SAVE_SECONDS, BillMeter
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse
from gpu_manager.services.metrics import ServiceMetrics
from tests.fakes.ports import FakeCards, FakeClock, FakePods, FakeProcesses, FakeStore, FakeTenants, cards

UNIT = 256 << 20


def holding(cores: int, namespace: str = "a", pod: str = "p") -> Holding:
    return Holding(namespace, pod, Amount(cores, GIB))


def allocation(
    pod: str, container: str, kind: ContainerKind, order: int, cores: int, card: int = 0, namespace: str = "a"
) -> Allocation:
    share = Share(cards()[card].card.uuid, Amount(cores, GIB))
    return Allocation(PodUid(pod), container, kind, order, (share,), namespace, pod)


def test_who_was_there_for_ten_seconds_pays_for_ten() -> None:
    bills = Bills()
    bills.add({PodUid("1"): holding(30), PodUid("2"): holding(50, pod="q")}, 10, now=110)
    bills.add({PodUid("1"): holding(30)}, 5, now=115)
    assert bills.namespaces["a"].core_seconds == 30 * 15 + 50 * 10
    assert bills.namespaces["a"].since == 100
    assert bills.pods[PodUid("2")].sums.memory_byte_seconds == 10 * GIB


def test_the_sums_of_a_pod_are_told_a_while_after_its_end_and_those_of_its_namespace_for_months() -> None:
    bills = Bills()
    bills.add({PodUid("1"): holding(30)}, 10, now=100)
    assert bills.close((), now=100)
    assert not bills.close((), now=100 + KEPT_SECONDS - 1), "no news"
    assert PodUid("1") in bills.pods
    bills.close((), now=100 + KEPT_SECONDS)
    assert not bills.pods
    bills.close((), now=100 + KEPT_DAYS * 86400)
    assert bills.namespaces["a"].core_seconds == 300
    bills.close((), now=101 + KEPT_DAYS * 86400)
    assert not bills.namespaces


def test_a_storm_of_jobs_does_not_fill_the_memory() -> None:
    bills = Bills()
    for n in range(KEPT_PODS + 50):
        bills.add({PodUid(str(n)): holding(1)}, 1, now=n)
        bills.close((), now=min(n, KEPT_SECONDS / 2))
    bills.close((), now=KEPT_SECONDS / 2)
    assert len(bills.pods) == KEPT_PODS


def test_what_is_written_is_read_again_and_what_is_not_ours_is_refused() -> None:
    bills = Bills()
    bills.add({PodUid("1"): holding(30), PodUid("2"): holding(1, "b", "q")}, 10, now=100)
    bills.close((PodUid("1"),), now=101)
    written = encode_bills(bills, "boot", 7.5)
    assert decode_bills(written) == (bills, "boot", 7.5)
    head = written.splitlines()[0]
    for data in (
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        head[:-9],
        head + b"\n3",
        head + b'\n["x"]',
        b"\xff",
        written[:-9],
    ):
        with pytest.raises(ValueError, match="no file of bills"):
            decode_bills(data)


def test_a_pod_is_billed_at_its_peak_on_every_card() -> None:
    init, app = ContainerKind.INIT, ContainerKind.APP
    held = [
        allocation("p", "prepare", init, 0, 50),
        allocation("p", "main", app, 1, 50),
        allocation("p", "other", app, 2, 20, card=1),
    ]
    assert booked_peak(held).cores == 70


@dataclass
class Node:
    """A meter over a node state that a test changes; ``sample`` is what the sampler would say."""

    store: FakeStore = field(default_factory=FakeStore)
    clock: FakeClock = field(default_factory=lambda: FakeClock(1000.0))
    grants: dict[str, Grant] = field(default_factory=dict)
    sample: Sample = field(default_factory=lambda: Sample(0.0))
    boot: str = "boot"

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process over the same disk."""
        node = NodeCards.of("n1", UNIT, cards(), Topology(()))
        self.metrics = ServiceMetrics(CollectorRegistry())
        books = Books(node, self.grants.values())
        self.state = NodeState(books, FakeStore(), self.metrics)
        self.pods = FakePods()
        usage = UsageSampler(
            self.state,
            FakeCards(cards()),
            self.pods,
            FakeTenants(),
            FakeProcesses(blind=True),
            self.clock,
            self.metrics,
        )
        usage.last = self.sample
        self.usage = usage
        self.meter = BillMeter(self.state, usage, self.store, self.clock, self.metrics, self.boot)
        self.meter.restore()

    def grant(self, *allocations: Allocation) -> None:
        for one in allocations:
            self.grants[f"{one.key}"] = Grant(one, f"dir-{one.container}")
        self._books()

    def release(self, pod: str) -> None:
        self.grants = {k: g for k, g in self.grants.items() if g.allocation.pod != pod}
        self._books()

    def _books(self) -> None:
        node = self.state.node
        self.state.open(Books(node, self.grants.values()))
        self.meter.look()

    def pass_(self, seconds: float) -> None:
        self.clock.pass_(seconds)
        self.meter.look()

    def cores(self, namespace: str = "a") -> float:
        found = self.meter.told.namespaces.get(namespace)
        return found.core_seconds if found else 0.0


APP = ContainerKind.APP


def test_a_job_between_two_scrapes_is_on_the_bill_and_no_time_is_billed_twice() -> None:
    node = Node()
    node.grant(allocation("job", "c", APP, 0, 40))
    node.pass_(10)
    node.release("job")
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 400
    assert node.meter.told.pods[PodUid("job")].ended == 1010.0


def test_an_agent_that_is_replaced_bills_the_time_without_it_but_not_a_night_switched_off() -> None:
    node = Node()
    node.grant(allocation("p", "c", APP, 0, 10))
    node.pass_(SAVE_SECONDS)
    node.clock.pass_(60)  # killed: nobody looks
    node.start()
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 10 * (60 + 2 * SAVE_SECONDS)
    node.clock.pass_(8 * 3600)
    node.boot = "the next"
    node.start()
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 10 * (60 + 3 * SAVE_SECONDS)


def test_bills_that_cannot_be_read_begin_anew_and_it_is_counted() -> None:
    node = Node(store=FakeStore(b'{"bills": {}}'))
    assert node.metrics.scrape_errors.labels("bills")._value.get() == 1
    node.grant(allocation("p", "c", APP, 0, 10))
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 10 * SAVE_SECONDS


def test_what_the_disk_does_not_hold_is_not_told() -> None:
    node = Node()
    node.grant(allocation("p", "c", APP, 0, 10))
    node.store.broken = True
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 0
    node.store.broken = False
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 10 * 2 * SAVE_SECONDS


def test_a_pod_without_a_name_and_one_that_has_ended_are_on_no_bill() -> None:
    node = Node()
    unnamed = Allocation(PodUid("x"), "c", APP, 0, (Share(cards()[1].card.uuid, Amount(10, GIB)),))
    gone = allocation("gone", "c", APP, 0, 20)
    node.pods.known = {"a/gone": [KnownPod(Pod(PodUid("gone"), "a", "gone", (), phase="Failed"))]}
    node.grant(unnamed, gone)
    node.pass_(SAVE_SECONDS)
    assert not node.meter.told.namespaces


def test_a_claim_is_billed_once_to_its_namespace_however_many_pods_share_it() -> None:
    node = Node()
    pods = tuple((PodUid(f"uid-{name}"), name) for name in ("one", "two"))
    holder = HoldingClaim("shared", "gpu", (("gpu-0", "s"),), pods)
    shares = (Share(cards()[1].card.uuid, Amount(30, GIB)),)
    node.grant(Allocation(PodUid("claim"), "shared/gpu", APP, 0, shares, "a", "shared", claim=holder))
    running = {f"a/{name}": [KnownPod(Pod(uid, "a", name, (), phase="Running"))] for uid, name in pods}
    node.pods.known = running
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 30 * SAVE_SECONDS
    assert [(one.pod, one.sums.core_seconds) for one in node.meter.told.pods.values()] == [
        ("shared", 30 * SAVE_SECONDS)
    ]
    node.pods.known = {}
    node.pass_(SAVE_SECONDS)
    assert node.cores() == 60 * SAVE_SECONDS, "it is held until it is released"


def test_waste_is_what_was_held_and_not_used_and_no_more_than_was_booked() -> None:
    node = Node()
    prepare = allocation("p", "prepare", ContainerKind.INIT, 0, 50)
    main = allocation("p", "main", APP, 1, 50)
    shares = (
        ShareUse(prepare.key, prepare.shares[0], "active", memory=GIB, core=0.3),
        ShareUse(main.key, main.shares[0], "active", memory=0, core=0.0),
    )
    node.sample = Sample(0.0, shares=shares)
    node.start()
    node.grant(prepare, main)
    node.pass_(SAVE_SECONDS)
    sums = node.meter.told.namespaces["a"]
    assert sums.core_used_seconds == pytest.approx(30 * SAVE_SECONDS)
    assert sums.core_wasted_seconds == pytest.approx(20 * SAVE_SECONDS)
    assert sums.memory_wasted_byte_seconds == 0


def test_a_figure_that_changes_between_two_writes_is_billed_for_its_own_time() -> None:
    node = Node()
    one = allocation("p", "c", APP, 0, 50)
    node.grant(one)
    for core, seconds in ((0.1, 3), (0.3, 4), (0.0, 3)):
        use = ShareUse(one.key, one.shares[0], "active", memory=0, core=core)
        node.usage.last = Sample(0.0, shares=(use,))
        node.pass_(0)
        for _ in range(seconds):
            node.pass_(1)
    node.pass_(SAVE_SECONDS)
    sums = node.meter.told.namespaces["a"]
    assert sums.core_seconds == 50 * (10 + SAVE_SECONDS)
    assert sums.core_used_seconds == pytest.approx(10 * 3 + 30 * 4)


def test_a_container_that_changes_its_size_is_billed_for_each_by_its_time() -> None:
    node = Node()
    one = allocation("p", "c", APP, 0, 50)
    node.grant(one)
    node.pass_(0)
    node.pass_(SAVE_SECONDS)
    before = one.shares[0].amount
    node.state.resize(node.grants[f"{one.key}"], replace(before, cores=80))
    node.pass_(0)
    node.pass_(2 * SAVE_SECONDS)
    sums = node.meter.told.namespaces["a"]
    assert sums.core_seconds == 50 * SAVE_SECONDS + 80 * 2 * SAVE_SECONDS


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "kill", "disk fails", "disk works"]),
        st.integers(0, 3),
        st.floats(0, 30),
    ),
    max_size=40,
)


@given(EVENTS)
def test_no_sum_ever_goes_back_and_in_the_end_it_is_what_was_held(
    events: list[tuple[str, int, float]],
) -> None:
    node = Node()
    held: dict[int, float] = {}
    due, serial, told = 0.0, 0, 0.0
    names: dict[int, str] = {}
    saved = SAVE_SECONDS + 1  # times are floats: a pause of exactly that may be a little less
    for what, slot, seconds in events:
        if what == "come" and slot not in held:
            serial += 1
            names[slot], held[slot] = f"p{serial}", 10.0 * (slot + 1)
            node.grant(allocation(names[slot], "c", APP, 0, 10 * (slot + 1)))
        elif what == "go" and slot in held:
            del held[slot]
            node.release(names[slot])
        elif what == "kill" and not node.store.broken:
            node.pass_(saved)  # of what the disk does not hold yet, an ended pod's last seconds are lost
            due += sum(held.values()) * saved
            node.start()
        else:
            node.store.broken = what == "disk fails"
        node.pass_(seconds)
        due += sum(held.values()) * seconds
        assert node.cores() >= told
        told = node.cores()
    node.store.broken = False
    node.grant(allocation("last", "c", APP, 0, 1, namespace="b"))
    node.pass_(saved)
    due += sum(held.values()) * saved
    assert node.cores() == pytest.approx(due)
