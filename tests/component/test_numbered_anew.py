"""A driver numbers its cards at boot. The kubelet repeats an old answer, device nodes and all, for as long as a
pod lives: with a card lost, the nodes of those behind it are other cards'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.services.cards.health import VANISHED
from tests.fakes.node import NodeRig, container, pod


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        node.injector.minors = {s.card.uuid: s.card.minor or 0 for s in node.states}
        yield node


def running(rig: NodeRig, name: str, card: int, **more: Any) -> dict[str, Any]:
    one = pod(name, container("c", 30, 8), on={"c": [(rig.states[card], 30, 2 * GIB)]}, **more)
    assert rig.admit(one).admitted
    rig.start(one)
    return one


def without(states: tuple[CardState, ...], lost: int) -> tuple[CardState, ...]:
    """After a boot without that card: it is remembered, and those behind it have moved up."""
    return tuple(
        replace(s, healthy=False, missing=True, reason=VANISHED)
        if s.card.index == lost
        else replace(s, card=replace(s.card, minor=n - (n > lost)))
        for n, s in enumerate(states)
    )


def reboot(rig: NodeRig, states: tuple[CardState, ...]) -> None:
    rig.stop_agent()
    rig.states = states
    rig.kubelet.restart(reboot=True)
    rig.start_agent()
    rig.kubelet.resume()


def start(rig: NodeRig, obj: dict[str, Any]) -> None:
    rig.kubelet.start_container(obj["metadata"]["uid"], "c")


def test_a_container_does_not_start_on_another_card_than_its_own(rig: NodeRig) -> None:
    """Card 2 is dead: what was /dev/nvidia3 is /dev/nvidia2 now, and /dev/nvidia3 is card 4."""
    before, behind = running(rig, "before", 1), running(rig, "behind", 3, controlled=True)
    reboot(rig, without(rig.states, 2))
    start(rig, before)
    with pytest.raises(NodeUnready, match="/dev/nvidia3"):
        start(rig, behind)
    (said,) = [text for _, reason, text in rig.pods.events if reason == "VcudaStartRefused"]
    assert "card 3" in said
    assert "/dev/nvidia2" in said
    assert rig.pods.evicted == [PodUid(behind["metadata"]["uid"])]


def test_a_container_whose_card_is_lost_does_not_start_on_the_one_with_its_number(rig: NodeRig) -> None:
    """The card went while the node ran, and its pod crashes: the kubelet asks for nothing but the start."""
    lost = running(rig, "lost", 2)
    rig.state.refit(without(rig.states, 2), rig.topology)
    with pytest.raises(NodeUnready, match="no longer there"):
        start(rig, lost)
    assert rig.pods.evicted == [], "nobody would make it anew"


def test_a_start_waits_for_a_driver_that_has_told_no_cards_yet(rig: NodeRig) -> None:
    one = running(rig, "one", 2)
    rig.state.refit((), rig.topology)
    with pytest.raises(NodeUnready, match="tried again"):
        start(rig, one)
    rig.state.refit(rig.states, rig.topology)
    start(rig, one)
    assert not [e for e in rig.pods.events if e[1] == "VcudaStartRefused"]


def test_cards_that_are_given_by_their_uuid_may_be_numbered_as_they_like(rig: NodeRig) -> None:
    """As NVIDIA's runtime takes them."""
    rig.injector.minors = {}
    one = running(rig, "one", 3)
    reboot(rig, without(rig.states, 2))
    start(rig, one)
