"""What the sampler makes of pages and of the driver's processes, second by second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.domain.enforcement.driver_overhead import account_error
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import ShareUse
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock


class Seconds:
    """A container with 30 cores of a card, and what each second's sample says of it."""

    def __init__(self, node: DirectRig) -> None:
        self.node, self.cards = node, FakeCards(node.states)
        self.usage = UsageSampler(
            node.state, self.cards, node.pods, node.tenants, node.processes, node.clock, node.metrics
        )
        made = pod("part", container("c", 30, 20))
        assert node.admit(made).admitted
        (index,) = node.cards_of(made, "c")
        self.card = node.states[index].card.uuid
        (self.name,) = node.tenants.limits
        uid = made["metadata"]["uid"]
        assert node.kubelet.start_container(uid, "c", container_id="c" * 64)
        node.pods.bind(parse_pod(node.kubelet.pod(uid)))
        node.processes.containers = {42: (PodUid(uid), "c" * 64)}

    def busy(self, seconds: float) -> None:
        """Its page says that it has used the card for so long in all."""
        self.node.tenants.uses = {self.name: (TenantUse(self.card, 0, seconds, 0.0, 0, 1),)}

    def sample(self) -> ShareUse:
        assert isinstance(self.node.clock, FakeClock)
        self.node.clock.pass_(1.0)
        (use,) = self.usage.sample().shares
        return use


@pytest.fixture
def seconds(tmp_path: Path) -> Iterator[Seconds]:
    with DirectRig(tmp_path, clock=FakeClock()) as node:
        yield Seconds(node)


def test_work_after_a_rest_is_of_its_own_second(seconds: Seconds) -> None:
    seconds.busy(10.0)
    idle = [seconds.sample() for _ in range(5)]
    assert {use.core for use in idle} == {0.0}
    assert idle[-1] is idle[-2], "nothing is made anew of a page that rests"
    seconds.busy(10.5)
    assert seconds.sample().core == pytest.approx(0.5)
    assert seconds.sample().core == 0.0


def test_a_container_begins_once_though_its_first_kernel_has_not_ended(seconds: Seconds) -> None:
    seconds.busy(10.0)
    for _ in range(3):
        seconds.sample()
    at_rest = seconds.usage.tenants()
    use = TenantUse(seconds.card, 0, 10.0, 0.0, 0, 1, last_busy_seconds=7.0)
    seconds.node.tenants.uses = {seconds.name: (use,)}
    seconds.sample()
    assert [one.began for one in seconds.usage.tenants()] == [True]
    seconds.sample()
    assert [one.began for one in seconds.usage.tenants()] == [False]
    seconds.sample()
    assert seconds.usage.tenants() == at_rest


def test_a_sample_says_by_how_much_its_account_may_be_wrong(seconds: Seconds) -> None:
    def told(busy: float, variance: float, launches: int, processes: int) -> None:
        use = TenantUse(seconds.card, 0, busy, 0.0, 0, processes, launches=launches, variance=variance)
        seconds.node.tenants.uses = {seconds.name: (use,)}

    told(1.0, 0.0, 0, 1)
    assert seconds.sample().error is None, "nothing to compare with yet"
    told(1.5, 1e-4, 10_000, 1)
    assert (
        seconds.sample().error == pytest.approx(account_error(0.5, 1e-4, 10_000.0)) == pytest.approx(0.0285)
    )
    told(2.4, 1e-4, 10_000, 2)
    assert seconds.sample().error == pytest.approx(account_error(0.9, 0.0, 0.0, processes=2))
    seconds.cards.uses = [CardUse(seconds.card)]
    seconds.cards.processes = [ProcessUse(seconds.card, 7, 1 << 20, 40.0)]
    told(2.9, 1e-4, 10_000, 1)
    assert seconds.sample().error == pytest.approx(account_error(0.5, 0.0, 0.0, shared=True)), (
        "another container's process was there"
    )
    told(0.0, 0.0, 0, 1)
    assert seconds.sample().error is None, "its page was reset"
    for busy in (0.1, 0.2):
        seconds.busy(busy)
        assert seconds.sample().error is None, "an older library does not tell"


def test_a_rest_ends_with_a_process_that_the_driver_sees(seconds: Seconds) -> None:
    seconds.busy(10.0)
    for _ in range(3):
        seconds.sample()
    seconds.cards.uses = [CardUse(seconds.card)]
    seconds.cards.processes = [ProcessUse(seconds.card, 42, 1 << 20, 10.0)]
    assert seconds.sample().pids == (42,)
    seconds.cards.processes = []
    assert [seconds.sample().pids for _ in range(2)] == [(), ()]


def test_what_a_dead_process_holds_is_its_containers_while_the_card_lists_it(seconds: Seconds) -> None:
    """A driver keeps it while a forked child has its descriptors, and lists the dead process's pid."""
    listed = [ProcessUse(seconds.card, 42, 700, 0.0)]
    seconds.cards.uses, seconds.cards.processes = [CardUse(seconds.card)], listed
    (owner,) = seconds.node.processes.containers.values()
    seconds.sample()
    seconds.node.processes.containers = {}
    assert [(use.pids, use.beyond) for use in (seconds.sample() for _ in range(3))][-1] == ((42,), 700)
    seconds.node.processes.containers = {42: (PodUid("another"), "d" * 64)}  # the number is given again
    assert seconds.sample().pids == (42,)
    seconds.cards.uses, seconds.cards.processes = [], []  # a card that says nothing
    seconds.sample()
    seconds.cards.uses, seconds.cards.processes = [CardUse(seconds.card)], listed
    assert seconds.sample().pids == (42,)
    seconds.cards.processes = []
    assert seconds.sample().pids == ()
    seconds.cards.processes = listed
    assert seconds.sample().pids == (), "another's by now"
    seconds.node.processes.containers = {42: owner}
    assert seconds.sample().pids == (42,)


def test_a_dead_process_that_no_card_counts_any_more_is_nobodys(seconds: Seconds) -> None:
    seconds.cards.uses = [CardUse(seconds.card)]
    seconds.cards.processes = [ProcessUse(seconds.card, 42, 700, 0.0)]
    assert seconds.sample().pids == (42,)
    seconds.node.processes.containers = {}
    seconds.cards.processes = [ProcessUse(seconds.card, 42, None, 50.0)]  # a sample of its last second
    assert seconds.sample().pids == ()


def test_memory_that_two_processes_share_is_not_added_to_what_their_container_holds(seconds: Seconds) -> None:
    """The driver counts it for both, and the card has it once."""
    (owner,) = seconds.node.processes.containers.values()
    seconds.node.processes.containers = {42: owner, 43: owner}
    seconds.node.tenants.uses = {seconds.name: (TenantUse(seconds.card, 400, 1.0, 0.0, 0, 2),)}
    seconds.cards.uses = [CardUse(seconds.card, memory_used=450)]
    seconds.cards.processes = [
        ProcessUse(seconds.card, 42, 425, 0.0),
        ProcessUse(seconds.card, 43, 281, 0.0),  # 256 of them the other's
    ]
    seen = [seconds.sample() for _ in range(6)]
    assert [use.beyond for use in seen] == [0, 0, 50, 50, 50, 50]
    assert [use.twice for use in seen] == [0, *[256] * 5], "from the second sample of its page on"
    seconds.cards.uses = [CardUse(seconds.card)]  # a card that does not say what is used of it
    assert seconds.sample().twice == 0
