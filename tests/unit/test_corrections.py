"""What the driver counts beyond a container's account, from the sample to the page and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.enforcement.driver_overhead import SAMPLES
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.ports.control_pages import Correction, TenantUse
from gpu_manager.services.enforcement.time_sharing import TimeSharing
from gpu_manager.services.enforcement.usage import UsageSampler
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock
from vcuda.page.limits import read_limits

MIB = 1 << 20
LIMIT = 5 * GIB


class Rig:
    """One container with 5 GiB of a card; ``second`` is one second of the agent's life."""

    def __init__(self, directory: Path, node: DirectRig) -> None:
        self.node, self.cards = node, FakeCards(node.states)
        self.usage = UsageSampler(
            node.state, self.cards, node.pods, node.tenants, node.processes, node.clock, node.metrics
        )
        made = pod("part", container("c", 30, 20))
        assert node.admit(made).admitted
        uid = made["metadata"]["uid"]
        assert node.kubelet.start_container(uid, "c", container_id="c" * 64)
        node.pods.bind(parse_pod(node.kubelet.pod(uid)))
        node.processes.containers = {42: (PodUid(uid), "c" * 64)}
        (index,) = node.cards_of(made, "c")
        self.card = node.states[index].card.uuid
        ((self.name, limits),) = node.tenants.limits.items()
        self.pages = FileControlPages(directory / "pages")
        self.pages.open(self.name, limits)
        self.page = directory / "pages" / self.name / "limits"
        self.service = self.agent()

    def agent(self) -> TimeSharing:
        """A new one, that knows nothing of what another wrote."""
        return TimeSharing(self.pages, self.usage.tenants, self.node.clock, self.node.metrics)

    def second(
        self, *, driver: int | None, account: int, process: bool = True, untold: int = 0, movable: int = 0
    ) -> int:
        """What the page says after a second in which driver and account counted so much."""
        self.cards.uses = [CardUse(self.card)]
        self.cards.processes = [ProcessUse(self.card, 42, driver, 10.0)] if process else []
        self.node.tenants.uses = {
            self.name: (TenantUse(self.card, account, 0.0, 0.0, 0, 1, movable, untold),)
        }
        return self.sampled()

    def sampled(self) -> int:
        assert isinstance(self.node.clock, FakeClock)
        self.node.clock.pass_(1.0)
        self.usage.sample()
        self.service.step()
        return self.told()

    def told(self) -> int:
        return read_limits(self.page.read_bytes()).cards[0].host_adjust


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with DirectRig(tmp_path, clock=FakeClock()) as node:
        made = Rig(tmp_path, node)
        yield made
        made.pages.close()


def settled(rig: Rig, driver: int, account: int) -> int:
    return [rig.second(driver=driver, account=account) for _ in range(SAMPLES)][-1]


def test_a_context_that_nobody_asked_for_counts_after_three_seconds(rig: Rig) -> None:
    seen = [rig.second(driver=GIB + 528 * MIB, account=GIB) for _ in range(SAMPLES + 1)]
    assert seen == [0] * (SAMPLES - 1) + [528 * MIB] * 2
    (use,) = rig.usage.last.shares
    assert (use.memory, use.held) == (GIB, GIB + 528 * MIB)


def test_it_is_gone_with_the_process(rig: Rig) -> None:
    assert settled(rig, 528 * MIB, 0) == 528 * MIB
    assert rig.second(driver=None, account=0, process=False) == 0


def test_a_driver_that_tells_nothing_changes_nothing(rig: Rig) -> None:
    assert settled(rig, 528 * MIB, 0) == 528 * MIB
    assert rig.second(driver=None, account=0) == 528 * MIB, "a process whose memory is not told"
    rig.cards.lost = True
    assert rig.sampled() == 528 * MIB, "a card that does not answer"


@pytest.mark.parametrize("account", [0, 2 * GIB, LIMIT, 1 << 47])
def test_whatever_a_page_claims_its_container_never_gains_room(rig: Rig, account: int) -> None:
    held = 2 * GIB + 100 * MIB
    assert settled(rig, held, account) + account >= held
    assert rig.told() >= 0


def test_memory_past_the_limit_leaves_no_room_and_overflows_nothing(rig: Rig) -> None:
    assert settled(rig, 1 << 62, 0) == LIMIT


def test_what_an_agent_before_this_one_wrote_does_not_stay(rig: Rig) -> None:
    assert settled(rig, 528 * MIB, 0) == 528 * MIB
    rig.second(driver=None, account=0, process=False)
    rig.pages.publish(rig.name, 1, {rig.card: Correction(co_active=3.0, host_adjust=GIB)})
    rig.service = rig.agent()
    assert rig.sampled() == 0
    (card,) = read_limits(rig.page.read_bytes()).cards
    assert (card.gain, card.co_active) == (1.0, 1.0)


def test_what_has_not_changed_is_not_written(rig: Rig) -> None:
    settled(rig, 528 * MIB, 0)
    before = rig.page.read_bytes()
    rig.second(driver=528 * MIB, account=0)
    assert rig.page.read_bytes() == before


def test_what_nobody_can_tell_of_is_judged_by_the_next_sample_and_only_while_it_waits(rig: Rig) -> None:
    def excess() -> tuple[int, int, int]:
        card = read_limits(rig.page.read_bytes()).cards[0]
        return card.host_excess, card.host_looked_ns, card.host_counted

    rig.second(driver=GIB, account=2 * GIB)
    assert excess() == (0, 0, 0), "nothing waits"
    rig.second(driver=GIB, account=3 * GIB, untold=GIB, movable=GIB)
    assert excess() == (GIB, int(rig.node.clock.monotonic() * 1e9), GIB)
    rig.second(driver=GIB, account=3 * GIB, untold=GIB, movable=GIB)
    assert excess()[1] == int(rig.node.clock.monotonic() * 1e9), "of this second, not of the last"
    rig.second(driver=None, account=3 * GIB, untold=GIB, movable=GIB)
    assert excess() == (0, 0, 0), "a process whose memory is not told"
    rig.second(driver=GIB, account=2 * GIB, movable=GIB)
    assert excess() == (0, 0, 0)
