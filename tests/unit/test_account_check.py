"""Accounts compared with the driver's figures, from NVML and page to Event, metric, `/usage` and limits page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from prometheus_client import CollectorRegistry

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.domain.enforcement.second_witness import GAP
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.runtime.inbound import scrape
from gpu_manager.servers.exporter import Findings, accounts
from gpu_manager.servers.status import Status
from gpu_manager.services.enforcement.account_check import NOTHING, AccountCheck
from gpu_manager.services.enforcement.time_sharing import TimeSharing
from gpu_manager.services.enforcement.usage import UsageSampler
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.nvml import FakeNvml, Gpu
from tests.fakes.ports import FakeClock
from vcuda.page.limits import read_limits

GIB = 1 << 30


class Rig:
    """A container with 30 cores of a card, its page, and NVML; ``seconds`` are of the agent's life."""

    def __init__(self, directory: Path, node: DirectRig) -> None:
        assert isinstance(node.clock, FakeClock)
        self.node, self.clock, self.sees_host = node, node.clock, True
        made = pod("part", container("c", 30, 20))
        assert node.admit(made).admitted
        uid = made["metadata"]["uid"]
        assert node.kubelet.start_container(uid, "c", container_id="c" * 64)
        node.pods.bind(parse_pod(node.kubelet.pod(uid)))
        node.processes.containers = {42: (PodUid(uid), "c" * 64), 43: (PodUid(uid), "c" * 64)}
        (index,) = node.cards_of(made, "c")
        self.uuid = node.states[index].card.uuid
        self.gpu = Gpu(0, uuid=self.uuid)
        self.nvml = FakeNvml(self.gpu)
        self.cards = NvmlCards(
            self.nvml, sysfs=Path("/nonexistent"), monotonic=self.clock.monotonic, wall=self.clock.now
        )
        self.cards.list()
        ((self.name, limits),) = node.tenants.limits.items()
        self.page = directory / "pages"
        self.pages = FileControlPages(self.page)
        self.pages.open(self.name, limits)
        self.busy, self.launches = 0.0, 0
        self.agent()

    def agent(self) -> None:
        """A new one, that knows nothing of what another found."""
        node = self.node
        self.usage = UsageSampler(
            node.state,
            self.cards,
            node.pods,
            node.tenants,
            node.processes,
            node.clock,
            node.metrics,
            gains=lambda: self.check.found.gains,
        )
        self.check = AccountCheck(
            node.state, lambda: self.usage.last, node.pods, lambda: self.sees_host, node.clock, GAP
        )
        self.sharing = TimeSharing(self.pages, self.usage.tenants, node.clock, node.metrics)
        self.registry = CollectorRegistry()
        self.registry.register(
            Findings(node.state, lambda index: accounts(self.usage.last, self.check.found, index))
        )

    def seconds(self, count: int, account: float, *driver: int, launches: int = 0) -> None:
        """The page accounts for so much of the card, its gain not included; ``driver``: percent by process."""
        for _ in range(count):
            self.clock.pass_(1.0)
            self.busy += account * self.gain
            self.launches += launches
            self.node.tenants.uses = {
                self.name: (TenantUse(self.uuid, 0, self.busy, 0.0, 0, 1, launches=self.launches),)
            }
            stamp = int(self.clock.now() * 1e6)
            self.gpu.compute = {42 + n: GIB for n in range(len(driver))}
            self.gpu.samples = [(42 + n, stamp, percent) for n, percent in enumerate(driver)]
            self.gpu.gpu_percent = min(100, sum(driver))
            self.usage.sample()
            self.check.look()
            self.sharing.step()

    @property
    def gain(self) -> float:
        return read_limits((self.page / self.name / "limits").read_bytes()).cards[0].gain

    def events(self) -> list[str]:
        return [text for _, reason, text in self.node.pods.events if reason == "VcudaAccountDiffers"]

    def metrics(self) -> str:
        return scrape(self.registry, "")[0].decode()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with DirectRig(tmp_path, clock=FakeClock()) as node:
        made = Rig(tmp_path, node)
        yield made
        made.pages.close()


def test_an_account_that_is_too_low_is_told_once_and_held_until_the_two_agree(rig: Rig) -> None:
    rig.seconds(60, 0.30, 60)
    assert rig.events() == [], "the first second has no account yet"
    rig.seconds(1, 0.30, 60)
    (text,) = rig.events()
    assert text == (
        'container "c" on card 0: its account is 30% of the card\'s time, the driver counts 60%; '
        "it is held by the driver's figure until the two agree"
    )
    assert rig.gain == 2.0
    assert 'vcuda_container_account_difference_ratio{card="0",container="c",namespace=' in rig.metrics()
    rig.seconds(300, 0.15, 30)
    assert (rig.gain, len(rig.events())) == (2.0, 1)
    rig.seconds(130, 0.30, 30)
    assert rig.gain == 1.0
    assert len(rig.events()) == 2
    assert rig.events()[1].endswith("are not known to differ any more")


def test_several_processes_are_one_container_and_no_more_than_the_card(rig: Rig) -> None:
    rig.seconds(90, 0.60, 30, 30)
    assert rig.check.found.differing == {}
    rig.seconds(90, 0.99, 99, 99)
    assert rig.check.found.differing == {}
    rig.seconds(150, 0.60, 90, 90)
    (difference,) = rig.check.found.differing.values()
    assert difference == pytest.approx(0.4, abs=0.002)


def test_what_is_told_is_in_the_agents_usage(rig: Rig) -> None:
    status = Status(
        rig.node.state,
        rig.usage,
        rig.registry,
        "1",
        dict,
        differing=lambda: rig.check.found.differing,
    )

    def device() -> dict[str, object]:
        ((pod_,),) = [status.usage()["usage"].values()]
        return pod_["stat"]["c"]["dev"][0]

    rig.seconds(30, 0.30, 60)
    assert "account_difference" not in device()
    rig.seconds(40, 0.30, 60)
    assert device()["account_difference"] == 30.0


def test_an_agent_that_starts_knows_nothing_and_lets_go_of_what_another_held(rig: Rig) -> None:
    rig.seconds(61, 0.30, 60)
    assert rig.gain == 2.0
    rig.agent()
    rig.seconds(2, 0.15, 30)
    assert rig.gain == 1.0
    rig.seconds(58, 0.30, 60)
    assert len(rig.events()) == 1
    rig.seconds(1, 0.30, 60)
    assert len(rig.events()) == 2


def test_a_driver_that_hangs_is_no_witness(rig: Rig) -> None:
    rig.seconds(61, 0.30, 60)
    for _ in range(6):  # the sampler waits for the driver, the loop of corrections goes on
        rig.clock.pass_(1.0)
        rig.sharing.step()
    assert rig.check.found is NOTHING
    assert rig.gain == 1.0
    rig.seconds(59, 0.30, 60)
    assert rig.gain == 1.0, "the mean began anew"


CALLS = ("samples", "rates", "processes_v3", "memory", "handle")
CODES = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", CALLS)
def test_no_error_of_the_driver_makes_an_honest_container_differ(rig: Rig, call: str, code: int) -> None:
    for failing in (code, 0, code):
        rig.gpu.fail = {call: failing, **({"processes_v2": failing} if call == "processes_v3" else {})}
        rig.seconds(70, 0.50, 50)
        assert rig.check.found.differing == {}
    assert rig.events() == []


def test_a_driver_that_fails_as_a_whole_lets_go(rig: Rig) -> None:
    rig.seconds(61, 0.30, 60)
    rig.nvml.broken = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    rig.seconds(7, 0.30, 60)
    assert (rig.gain, dict(rig.check.found.differing)) == (1.0, {})


@pytest.mark.parametrize(
    ("lacks", "setting"),
    [
        ("host-pid", lambda rig: setattr(rig, "sees_host", False)),
        ("samples", lambda rig: rig.gpu.fail.update(samples=pynvml.NVML_ERROR_NOT_SUPPORTED)),
    ],
)
def test_without_a_witness_nothing_is_claimed_and_the_metric_says_what_it_lacks(
    rig: Rig, lacks: str, setting
) -> None:
    setting(rig)
    rig.seconds(90, 0.30, 60)
    assert rig.events() == []
    assert f'vcuda_card_without_witness{{card="0",lacks="{lacks}",uuid="{rig.uuid}"}} 1.0' in rig.metrics()


def test_a_driver_that_does_not_list_the_containers_processes_is_no_witness(rig: Rig) -> None:
    rig.seconds(120, 0.50)
    assert rig.events() == []
    assert rig.check.found.differences == {}


def test_a_container_at_rest_is_forgotten_and_costs_nothing(rig: Rig) -> None:
    rig.seconds(30, 0.30, 30)
    rig.seconds(130, 0.0)
    assert not rig.check._cases
