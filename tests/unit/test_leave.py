"""An agent that is told to end: schedulers hear of it, and who is on the way here is still served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admission.cluster.snapshot import NODES
from gpu_manager.domain.contract import INVENTORY, decode_inventory
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.services.allocation.prestart import LEAVE_SECONDS, QUIET_SECONDS, serve_the_last
from tests.fakes.direct import DirectRig
from tests.fakes.extender import World, node
from tests.fakes.extender import pod as extenders_pod
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_inventory import Board


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    with DirectRig(tmp_path, clock=FakeClock()) as rig:
        yield rig


class Waiting:
    """Each pause passes on the modelled clock; at its end ``happens`` is told the seconds gone so far."""

    def __init__(
        self,
        rig: DirectRig,
        happens: Callable[[float], object] = lambda _: None,
        told: Callable[[], bool] = lambda: True,
    ) -> None:
        assert isinstance(rig.clock, FakeClock)
        self.rig, self.clock, self.began, self._happens = rig, rig.clock, rig.clock.time, happens
        self._told = told

    def pause(self, seconds: float) -> None:
        self.clock.pass_(seconds)
        self._happens(self.seconds)

    @property
    def seconds(self) -> float:
        return self.clock.time - self.began

    def served(self) -> bool:
        return serve_the_last(self.rig.state, self.rig.pods, self.clock, self._told, pause=self.pause)


def coming(name: str = "coming") -> dict[str, Any]:
    return pod(name, container("c", 30, 20))


def test_an_idle_node_is_left_as_soon_as_schedulers_have_heard(rig: DirectRig) -> None:
    waiting = Waiting(rig)
    assert waiting.served()
    assert QUIET_SECONDS <= waiting.seconds < QUIET_SECONDS + 0.5


def test_the_quiet_begins_when_the_api_server_shows_that_the_agent_leaves(rig: DirectRig) -> None:
    """Until then pods are bound here, and a busy API server takes seconds."""
    board = Board(rig)
    board.node.behind = True
    assert board.inventory.publish()
    assert not board.inventory.told_leaving()

    def happens(seconds: float) -> None:
        if seconds > 1 and board.inventory.publish():
            assert not board.inventory.told_leaving(), "it is on its way"
        board.node.behind = seconds <= 7

    board.inventory.leave()
    waiting = Waiting(rig, happens, board.inventory.told_leaving)
    assert waiting.served()
    assert 6.5 + QUIET_SECONDS < waiting.seconds < 7.5 + QUIET_SECONDS


def test_an_api_server_that_takes_nothing_is_not_waited_for_without_end(rig: DirectRig) -> None:
    waiting = Waiting(rig, told=lambda: False)
    assert not waiting.served()
    assert LEAVE_SECONDS <= waiting.seconds < LEAVE_SECONDS + 1


def test_a_pod_that_shows_late_is_served_and_the_quiet_begins_anew(rig: DirectRig) -> None:
    one = coming()

    def happens(seconds: float) -> None:
        if one["metadata"]["name"] not in str(rig.pods.there) and seconds > 1:
            rig.pods.bind(parse_pod(one))
        elif seconds > 5 and not rig.state.view.ledger.granted(parse_pod(one).uid):
            assert rig.admit(one).admitted

    waiting = Waiting(rig, happens)
    assert waiting.served()
    assert 4.5 + QUIET_SECONDS < waiting.seconds < 5.5 + QUIET_SECONDS


def test_a_pod_that_never_comes_is_not_waited_for_without_end(rig: DirectRig) -> None:
    rig.pods.bind(parse_pod(coming()))
    waiting = Waiting(rig)
    assert not waiting.served()
    assert LEAVE_SECONDS <= waiting.seconds < LEAVE_SECONDS + 1


def test_who_runs_ends_leaves_or_asks_for_nothing_is_not_waited_for(rig: DirectRig) -> None:
    one = parse_pod(coming())
    for name, other in (
        ("runs", replace(one, phase="Running", started=True)),
        ("ended", replace(one, phase="Failed")),
        ("leaves", replace(one, deleting=True)),
        ("plain", parse_pod(pod("plain", container("c", 0, 0)))),
    ):
        rig.pods.bind(replace(other, name=name))
    waiting = Waiting(rig)
    assert waiting.served()
    assert waiting.seconds < QUIET_SECONDS + 0.5


def test_a_scheduler_keeps_pods_from_a_node_whose_agent_leaves() -> None:
    world, one = World([node("here", serving=False)]), extenders_pod("one", 30, 20)
    world.create(one)
    assert world.filter(one)["NodeNames"] == []
    world.cluster.replace(NODES, [node("here")])
    assert world.filter(one)["NodeNames"] == ["here"]


def test_the_inventory_says_when_pods_may_come(rig: DirectRig) -> None:
    board, offering = Board(rig), False
    service = board.inventory_of(lambda: offering)

    def serving() -> bool:
        assert service.publish()
        inventory = decode_inventory(board.node.published[-1][0][INVENTORY])
        assert inventory is not None
        return inventory.serving

    assert not serving(), "the kubelet has not been sent the devices yet"
    offering = True
    assert serving()
    offering = False
    assert not serving(), "a kubelet that comes back has no devices yet"
    offering = True
    assert serving()
    service.leave()
    assert not serving()
