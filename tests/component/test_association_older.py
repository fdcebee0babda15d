"""Kubelets before 1.34 list pods that they have rejected too, without ids, until the API has let them go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import GIB
from sandbox.kubelet import Step
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, lists_ended=True) as node:
        yield node


def refused_at(rig: NodeRig, resource: str, obj: dict[str, Any]) -> None:
    """Another manager of the kubelet refuses the pod when it comes to this resource."""

    def refuse(step: Step) -> None:
        if step.name == "resource" and step.resource == resource and step.pod == obj["metadata"]["uid"]:
            raise NodeUnready("the CPU manager has no room")

    rig.kubelet.hooks.before = refuse


def rejected(rig: NodeRig) -> dict[str, Any]:
    """A pod that was refused before it had anything; the API knows, the watch has yet to say so."""
    ghost = pod("ghost", container("c", 30, 8))
    rig.kubelet.hooks.order = sorted
    refused_at(rig, CORE, ghost)
    assert not rig.admit(ghost).admitted
    rig.pods.there["default/ghost"] = replace(rig.parsed(ghost), phase="Failed")
    return ghost


@pytest.mark.parametrize("first", [CORE, MEMORY])
@pytest.mark.parametrize("same_order", [True, False])
def test_the_heir_of_a_rejected_pod_gets_its_own_card(rig: NodeRig, first: str, same_order: bool) -> None:
    """Both look as if they were under their first admission: the watch is not quicker than the kubelet."""

    def begin_with(resource: str) -> None:
        def order(names: Sequence[str]) -> list[str]:
            return sorted(names, key=lambda name: name != resource)

        rig.kubelet.hooks.order = order

    second = MEMORY if first == CORE else CORE
    ghost = pod("ghost", container("c", 30, 8), on={"c": [(rig.states[1], 30, 2 * GIB)]})
    heir = pod("heir", container("c", 30, 8), on={"c": [(rig.states[2], 30, 2 * GIB)]})
    begin_with(first)
    refused_at(rig, second, ghost)
    assert not rig.admit(ghost).admitted
    begin_with(first if same_order else second)
    result = rig.admit(heir)
    assert result.admitted, result.message
    assert rig.cards_of(heir, "c") == (2,)
    rig.start(heir)
    (limit,) = rig.limits(result, "c")
    assert (limit.card, limit.cores, limit.memory) == (rig.states[2].card.uuid, 30, 2 * GIB)
    assert counts(rig.metrics.association_corrected) == {}


def test_a_pod_rejected_before_it_had_anything_is_told_from_its_heir_by_asking(rig: NodeRig) -> None:
    """The watch shows both Pending, the kubelet's own list or the API server knows better."""
    ghost, heir = rejected(rig), pod("heir", container("c", 30, 8))
    assert rig.admit(heir, watched=False).admitted
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}
    assert rig.cards_of(heir, "c") != ()
    assert rig.cards_of(ghost, "c") == ()


def test_a_rejected_pod_does_not_get_the_grant_of_one_that_cannot_be_seen(rig: NodeRig) -> None:
    rejected(rig)
    heir = pod("heir", container("c", 30, 8))
    result = rig.kubelet.admit(heir)  # deleted by force before the watch showed it
    assert result.admitted, result.message
    assert counts(rig.metrics.preferred_allocation_unidentified) == {CORE: 1, MEMORY: 1}
    rig.start(heir)
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (30, 2 * GIB)
