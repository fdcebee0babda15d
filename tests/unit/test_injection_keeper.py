"""Lost injections are made again, said meanwhile, and an agent whose mount is gone restarts once."""

from __future__ import annotations

from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.containers import HeldInjection
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.recovery.repairs import PATIENCE_SECONDS, PERIOD_SECONDS, InjectionKeeper
from tests.fakes.ports import FakeClock, FakeInjector, FakePods, cards
from tests.fakes.state import state_of

SHARES = (Share(cards(1)[0].card.uuid, Amount(30, 5 * GIB)),)


class Rig:
    def __init__(self) -> None:
        self.injector, self.pods, self.clock = FakeInjector(), FakePods(), FakeClock()
        self.restarts, self.outdated = 0, ""
        grants = (
            Grant(Allocation(PodUid(pod), "c", ContainerKind.APP, 0, SHARES), directory)
            for pod, directory in (("a", "d" * 32), ("theirs", ""))
        )
        state = state_of(cards(1), *grants)
        self.keeper = InjectionKeeper(
            state, self.pods, self.injector, self.clock, self.restart, lambda: self.outdated
        )

    def restart(self) -> None:
        self.restarts += 1

    def look(self) -> None:
        self.keeper.look()
        self.clock.pass_(PERIOD_SECONDS)


def test_every_grant_with_a_directory_is_kept_with_its_pod_once_that_is_known() -> None:
    rig = Rig()
    rig.look()
    assert rig.injector.restored == {"d" * 32: HeldInjection(SHARES, None)}
    pod = Pod(PodUid("a"), "team", "a", (Container("c", ContainerKind.APP),))
    rig.pods.bind(pod)
    rig.look()
    assert rig.injector.restored == {"d" * 32: HeldInjection(SHARES, pod)}


def test_what_cannot_be_made_again_is_said_until_it_can() -> None:
    rig = Rig()
    rig.injector.broken = "no driver"
    rig.look()
    assert rig.keeper.trouble == "no driver"
    rig.injector.broken = ""
    rig.look()
    assert rig.keeper.trouble == ""
    assert rig.restarts == 0


def test_a_way_of_injection_that_gives_no_cards_any_more_ends_the_agent_once() -> None:
    rig = Rig()
    rig.look()
    assert rig.restarts == 0
    rig.outdated = "/etc/containerd/config.toml: enable_cdi is false"
    for _ in range(3):
        rig.look()
    assert rig.restarts == 1


def test_a_directory_that_the_node_removed_ends_the_agent_once_and_not_at_once() -> None:
    rig = Rig()
    rig.injector.removed, rig.injector.broken = True, "/var/run/cdi was removed on the node"
    looks = int(PATIENCE_SECONDS / PERIOD_SECONDS) + 1
    for _ in range(looks):
        rig.look()
    assert rig.restarts == 0
    for _ in range(3):
        rig.look()
    assert rig.restarts == 1
    assert "removed" in rig.keeper.trouble


def test_a_directory_that_is_back_in_time_ends_nothing() -> None:
    rig = Rig()
    rig.injector.removed = True
    rig.look()
    rig.injector.removed = False
    for _ in range(5):
        rig.look()
    assert rig.restarts == 0
