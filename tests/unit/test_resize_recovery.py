"""Resized pods after losses: the ledger's file, the kubelet's listing, the pod that has to go for another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import node, pod
from tests.fakes.ports import cards
from tests.fakes.resize_answers import UNIT, Cluster
from tests.fakes.resizing import ResizingRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:2]) as node_:
        yield node_


def test_a_lost_ledger_comes_back_with_the_sizes_that_were_answered(rig: ResizingRig) -> None:
    """The kubelet's checkpoint has the sizes of the specs alone."""
    grown, shrunk = rig.run("grown", 30, 8), rig.run("shrunk", 60, 40)
    rig.answer(grown, 50, 20)
    rig.answer(shrunk, 20, 10)
    for _ in range(2):
        rig.second()
    before = rig.allocatable()
    rig.store.state = None
    rig.restart_agent()
    for _ in range(2):
        rig.second()
    assert rig.booked(grown) == rig.in_force(grown) == (50, 20)
    assert rig.booked(shrunk) == rig.in_force(shrunk) == (20, 10)
    assert rig.allocatable() == before


def test_a_program_that_runs_at_its_grown_size_keeps_its_memory_while_the_ledger_is_lost(
    rig: ResizingRig,
) -> None:
    one = rig.run("one", 30, 8)
    rig.answer(one, 50, 20)
    rig.program(one, 20)
    rig.second()
    written: list[int] = []
    write = rig.tenants.open

    def noted(name: str, limits: object) -> None:
        written.append(limits[0].memory)  # type: ignore[index]
        write(name, limits)  # type: ignore[arg-type]

    rig.tenants.open = noted  # type: ignore[method-assign, assignment]
    rig.store.state = None
    rig.restart_agent()
    rig.second()
    assert rig.in_force(one) == (50, 20)
    assert all(memory == 20 * UNIT for memory in written), "a lower limit would refuse it memory that it has"


def test_preemption_counts_a_grown_victim_at_its_real_size() -> None:
    world = Cluster(node=node("n1", cards=1))
    world.run("grown", 30, 4)
    world.run("small", 20, 4)
    world.ask("grown", cores=80)
    world.agent("grown", 80, 4)
    snapshot = world.cluster.snapshot()
    view = snapshot.nodes["n1"]
    uids = {o.pod.name: uid for uid, o in view.bound.items()}

    def fits_without(cores: int, *gone: str) -> bool:
        name = f"late-{cores}-{len(gone)}"
        world.create(pod(name, cores, 4))
        occupant = world.cluster.named("default", name)
        assert occupant is not None
        check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
        return check.without(view, [PodUid(uids[one]) for one in gone]) is not None

    assert not fits_without(10), "30 of its spec and 20 would have left 50"
    assert not fits_without(21, "small")
    assert fits_without(20, "small")
    assert fits_without(80, "grown")
    assert not fits_without(81, "grown")
