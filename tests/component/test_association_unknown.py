"""A listed pod that nobody can tell us about: then whoever else would fit is not it for that reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from sandbox.kubelet import Step
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod


@contextmanager
def beside_a_stranded(tmp_path: Path, *, assigned: bool = True) -> Iterator[tuple[NodeRig, dict[str, Any]]]:
    """A node whose one pod was admitted before our resources existed: it lacks its share for ever."""
    rig = NodeRig(tmp_path)
    on = {"c": [(rig.states[2], 30, 5 * GIB)]} if assigned else None
    old = pod("old", container("c", 30, 20), on=on)
    rig.kubelet.start()
    try:
        assert rig.kubelet.admit(old).admitted
        rig.pods.bind(replace(rig.parsed(old), phase="Running", started=True))
        rig.start_agent()
        yield rig, old
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_a_pod_without_a_card_does_not_get_the_grant_of_one_that_cannot_be_read(tmp_path: Path) -> None:
    """It was admitted before the resource existed, so it lacks the same; the API server is away."""
    with beside_a_stranded(tmp_path) as (rig, old):
        rig.pods.away = True
        new = pod("new", container("c", 30, 20))
        result = rig.admit(new, watched=False)
        assert result.admitted, result.message
        assert counts(rig.metrics.preferred_allocation_unidentified) == {CORE: 1, MEMORY: 1}
        holders = {uid for uid, _ in rig.state.view.grants}
        assert PodUid(old["metadata"]["uid"]) not in holders
        rig.start(new)
        assert {uid for uid, _ in rig.state.view.grants} == {new["metadata"]["uid"]}
        (limit,) = rig.limits(result, "c")
        assert (limit.cores, limit.memory) == (30, 5 * GIB)


def test_a_pod_that_is_known_too_late_does_not_run_on_a_card_that_it_excludes(tmp_path: Path) -> None:
    """Its cores were granted while it could not be read; its memory is asked for once it can be."""
    with beside_a_stranded(tmp_path) as (rig, _):
        wanted = rig.states[7].card.uuid
        new = pod("new", container("c", 30, 20), annotations={"tencent.com/gpu-uuid": wanted})

        def reads_again(step: Step) -> None:
            if (step.name, step.resource) == ("GetPreferredAllocation", MEMORY):
                rig.pods.away = False
                rig.pods.bind(rig.parsed(new))

        rig.kubelet.hooks.order = sorted  # cores first
        rig.kubelet.hooks.before = reads_again
        rig.pods.away = True
        result = rig.admit(new, watched=False)
        assert not result.admitted
        assert "gpu-uuid" in result.message, result.message
        assert PodUid(new["metadata"]["uid"]) not in {uid for uid, _ in rig.state.view.grants}


def test_a_pod_under_first_admission_is_named_although_another_cannot_be_read(tmp_path: Path) -> None:
    with NodeRig(tmp_path) as rig:
        assert rig.admit(pod("stranger", {"name": "c"}), watched=False).admitted
        rig.pods.away = True
        new = pod("new", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
        rig.pods.known[f"default/{new['metadata']['name']}"] = [KnownPod(rig.parsed(new))]
        assert rig.kubelet.admit(new).admitted
        assert rig.cards_of(new, "c") == (5,)
        assert counts(rig.metrics.preferred_allocation_unidentified) == {}


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_pod_without_a_card_does_not_get_the_grant_of_one_that_the_api_forgot(
    tmp_path: Path, asked_before: bool
) -> None:
    """Deleted by force before the watch showed it: the kubelet, behind the API, admits it all the same. That
    nobody has a pod of that name is remembered for a while, and one of that name may come meanwhile.
    """
    with beside_a_stranded(tmp_path) as (rig, old):
        if asked_before:
            gone = pod("new", {"name": "c"})
            assert rig.kubelet.admit(gone).admitted
            assert rig.admit(pod("other", container("c", 10, 4))).admitted
            rig.kubelet.delete(gone["metadata"]["uid"])
        new = pod("new", container("c", 30, 20))
        result = rig.kubelet.admit(new)
        assert result.admitted, result.message
        holders = {uid for uid, _ in rig.state.view.grants}
        assert PodUid(old["metadata"]["uid"]) not in holders
        rig.start(new)
        (limit,) = rig.limits(result, "c")
        assert (limit.cores, limit.memory) == (30, 5 * GIB)
        holders = {uid for uid, _ in rig.state.view.grants}
        assert PodUid(new["metadata"]["uid"]) in holders
        assert not any(map(is_unidentified, holders))


def test_a_pod_without_a_card_does_not_get_the_grant_of_a_namesake_that_the_watch_has_yet_to_show(
    tmp_path: Path,
) -> None:
    """The one that the watch shows asked for less; the one without a card lacks just as much as the new one."""
    with beside_a_stranded(tmp_path, assigned=False) as (rig, old):
        first = pod("again", container("c", 10, 4))
        assert rig.admit(first).admitted
        rig.start(first)
        rig.kubelet.delete(first["metadata"]["uid"])
        second = pod("again", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
        result = rig.admit(second, watched=False)
        assert result.admitted, result.message
        assert counts(rig.metrics.preferred_allocation_unidentified) == {}
        assert rig.cards_of(second, "c") == (5,)
        assert rig.cards_of(old, "c") == ()


def test_a_pod_gets_its_card_whose_name_nobody_had_seconds_ago(tmp_path: Path) -> None:
    """The watch has yet to show it, and the API was asked for its name while the kubelet had an older one."""
    with NodeRig(tmp_path) as rig:
        gone = pod("again", {"name": "c"})
        assert rig.kubelet.admit(gone).admitted
        assert rig.admit(pod("other", container("c", 10, 4))).admitted
        rig.kubelet.delete(gone["metadata"]["uid"])
        new = pod("again", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
        rig.pods.bind(rig.parsed(new), watched=False)
        assert rig.kubelet.admit(new).admitted
        assert rig.cards_of(new, "c") == (5,)
        assert counts(rig.metrics.preferred_allocation_unidentified) == {}
