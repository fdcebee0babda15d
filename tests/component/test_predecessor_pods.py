"""An upgrade in place over the predecessor: its checkpoint, its ids in the kubelet's books, its containers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.kubelet.checkpoint import OLD_FILE_NAME as FILE_NAME
from gpu_manager.adapters.kubelet.checkpoint import read_old_checkpoint
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.ports.records import PredecessorPod
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.plugin import Plugin, device
from tests.fakes.ports import FakeClock, cards

UNIT = 268435456


def row(minors: list[int], cores: int, memory: int) -> dict[str, Any]:
    return {"Devices": [f"/dev/nvidia{n}" for n in minors], "Cores": cores, "Memory": memory}


def write(directory: Path, mapping: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / FILE_NAME).write_text(json.dumps({"PodGPUMapping": mapping}))
    return directory


def predecessors(rig: NodeRig, *objects: dict[str, Any]) -> None:
    """The predecessor admits these pods, starts their containers and is then stopped."""
    rig.kubelet.start()
    ids = {
        CORE: [f"{CORE}-{n}" for n in range(800)],
        MEMORY: [f"{MEMORY}-{UNIT}-{n}" for n in range(512)],
    }
    plugins = [
        Plugin(resource, [device(name) for name in names], endpoint=resource.replace("/", "-") + ".sock")
        for resource, names in ids.items()
    ]
    for plugin in plugins:
        plugin.serve(rig.kubelet.device_plugins).register(rig.kubelet.device_plugins)
    rig.kubelet.wait({CORE: 800, MEMORY: 512})
    rig.kubelet.publish_node()
    for obj in objects:
        assert rig.admit(obj).admitted
        rig.start(obj)
        rig.pods.bind(parse_pod(rig.kubelet.pod(obj["metadata"]["uid"])))
    for plugin in plugins:
        plugin.stop()


@contextmanager
def upgraded(tmp_path: Path, mapping: object, *objects: dict[str, Any]) -> Iterator[NodeRig]:
    rig = NodeRig(tmp_path, clock=FakeClock())
    predecessors(rig, *objects)
    if mapping is not None:
        write(rig.old_checkpoint, mapping)
    rig.start_agent()
    try:
        yield rig
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def uid(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def test_running_containers_are_booked_on_the_cards_of_the_old_checkpoint(tmp_path: Path) -> None:
    part, whole = pod("part", container("c", 30, 20)), pod("whole", container("c", 200, 0))
    mapping = {
        uid(part): {"c": row([5], 30, 5 * GIB)},
        uid(whole): {"c": row([2, 3], 200, 0)},
        "ended-long-ago": {"c": row([0], 100, 0)},
    }
    with upgraded(tmp_path, mapping, part, whole) as rig:
        assert (rig.cards_of(part, "c"), rig.cards_of(whole, "c")) == ((5,), (2, 3))
        booked = rig.state.view.ledger.booked(rig.states[5].card.uuid)
        assert booked == Amount(30, 5 * GIB)
        new = [pod(f"new{i}", container("c", 100, 0)) for i in range(6)]
        results = [rig.admit(one).admitted for one in new]
        assert results == [True] * 5 + [False], "card 5 is shared, cards 2 and 3 are taken"
        assert rig.admit(pod("beside", container("c", 70, 4))).admitted


def test_without_the_checkpoint_the_annotated_index_and_the_ids_say_it(tmp_path: Path) -> None:
    told = {"tencent.com/predicate-gpu-idx-0": "4", "tencent.com/gpu-assigned": "true"}
    part = pod("part", container("c", 30, 20), annotations=told)
    lost = pod("lost", container("c", 30, 20))
    with upgraded(tmp_path, None, part, lost) as rig:
        assert rig.cards_of(part, "c") == (4,)
        held = rig.state.view.ledger.get(PodUid(uid(part)), "c")
        assert held is not None
        assert held.shares[0].amount == Amount(30, 5 * GIB)
        assert rig.cards_of(lost, "c") == ()
        with pytest.raises(NodeUnready, match="no record says on which card"):
            rig.kubelet.start_container(uid(lost), "c")


def test_a_fraction_of_the_predecessor_does_not_start_again_and_its_pod_is_evicted(tmp_path: Path) -> None:
    """Its library would wait for the predecessor's manager, which is gone."""
    bare, owned = pod("bare", container("c", 30, 20)), pod("owned", container("c", 30, 20), controlled=True)
    mapping = {uid(one): {"c": row([1], 30, 5 * GIB)} for one in (bare, owned)}
    with upgraded(tmp_path, mapping, bare, owned) as rig:
        for one in (bare, owned):
            with pytest.raises(NodeUnready, match="delete the pod"):
                rig.kubelet.start_container(uid(one), "c")
        assert rig.pods.evicted == [PodUid(uid(owned))]
        told = [text for _, reason, text in rig.pods.events if reason == "VcudaStartRefused"]
        assert len(told) == 2
        assert "predecessor" in told[0]
        assert rig.tenants.limits == {}


def test_a_whole_card_of_the_predecessor_starts_again(tmp_path: Path) -> None:
    whole = pod("whole", container("c", 100, 0))
    with upgraded(tmp_path, {uid(whole): {"c": row([6], 100, 0)}}, whole) as rig:
        rig.kubelet.start_container(uid(whole), "c")
        rig.kubelet.start_container(uid(whole), "c")
        assert rig.cards_of(whole, "c") == (6,)
        assert rig.tenants.limits == {}
        assert rig.pods.annotations[PodUid(uid(whole))]["tencent.com/predicate-gpu-idx-0"] == "6"


def test_inherited_books_survive_a_restart_and_end_with_their_pod(tmp_path: Path) -> None:
    part = pod("part", container("c", 30, 20))
    with upgraded(tmp_path, {uid(part): {"c": row([5], 30, 5 * GIB)}}, part) as rig:
        assert rig.admit(pod("new", container("c", 10, 4))).admitted
        (rig.old_checkpoint / FILE_NAME).unlink()
        rig.restart_agent()
        assert rig.cards_of(part, "c") == (5,)
        rig.delete(part)
        assert isinstance(rig.clock, FakeClock)
        rig.clock.pass_(SETTLE_SECONDS + 5)
        rig.reclaimer.round()
        rig.reclaimer.round()
        assert rig.cards_of(part, "c") == ()


def test_records_of_ended_pods_are_not_booked(tmp_path: Path) -> None:
    with upgraded(tmp_path, {"ended": {"c": row([0], 100, 0)}}) as rig:
        assert len(rig.state.view.ledger) == 0


def booked(rig: NodeRig) -> dict[int, tuple[int, int]]:
    """Card → what is booked of it, of cards of which anything is."""
    found = {
        s.card.index: rig.state.view.ledger.booked(s.card.uuid)  # type: ignore[misc]
        for s in rig.states
    }
    return {index: (amount.cores, amount.memory) for index, amount in found.items() if amount.cores}


def test_a_card_that_is_away_is_held_by_its_number_and_found_held_when_it_is_back(tmp_path: Path) -> None:
    """The driver lists it late, or the upgrade came while it was lost: nobody else may have it then."""
    part, wide = pod("part", container("c", 30, 20)), pod("wide", container("c", 200, 0))
    mapping = {uid(part): {"c": row([9], 30, 5 * GIB)}, uid(wide): {"c": row([1, 8], 200, 0)}}
    with upgraded(tmp_path, mapping, part, wide) as rig:
        assert booked(rig) == {1: (100, 16 * GIB)}, "the card that is here is held"
        assert rig.admit(pod("new", container("c", 10, 4))).admitted
        (rig.old_checkpoint / FILE_NAME).unlink()
        rig.restart_agent()
        rig.states = cards(10)
        rig.state.refit(rig.states, Topology.uniform(10, Link(LinkKind.SYS)))
        held = booked(rig)
        assert (held[1], held[8], held[9]) == ((100, 16 * GIB), (100, 16 * GIB), (30, 5 * GIB))
        assert rig.cards_of(wide, "c") == (1, 8)
        rig.restart_agent()
        assert booked(rig) == held


def test_a_checkpoint_is_read_as_the_predecessor_wrote_it(tmp_path: Path) -> None:
    write(tmp_path, {"u": {"a": row([0], 30, 5 * GIB), "b": row([1, 2], 200, 0)}})
    assert read_old_checkpoint(tmp_path) == (
        PredecessorPod(PodUid("u"), "a", (0,), Amount(30, 5 * GIB)),
        PredecessorPod(PodUid("u"), "b", (1, 2), Amount(200, 0)),
    )


def test_an_absent_checkpoint_is_nothing_to_speak_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_old_checkpoint(tmp_path / "nowhere") == ()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"PodGPUMapping":[1]}', '{"PodGPUMapping":{"u":3}}', "[" * 100_000, "\x00\xff"],
)
def test_a_torn_or_foreign_file_is_a_warning(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert read_old_checkpoint(tmp_path) == ()
    assert "predecessor_checkpoint_ignored" in capsys.readouterr().out


@pytest.mark.parametrize(
    "bad",
    [
        {"Devices": [], "Cores": 30, "Memory": 1},
        {"Devices": ["/dev/sda"], "Cores": 30, "Memory": 1},
        {"Devices": [7], "Cores": 30, "Memory": 1},
        {"Devices": "/dev/nvidia0", "Cores": 30, "Memory": 1},
        {"Devices": ["/dev/nvidia0", "/dev/nvidia1"], "Cores": 30, "Memory": 1},
        {"Devices": ["/dev/nvidia0", "/dev/nvidia0"], "Cores": 200, "Memory": 1},
        {"Devices": ["/dev/nvidia0"], "Cores": -30, "Memory": 1},
        {"Devices": ["/dev/nvidia0"], "Cores": 1e99, "Memory": 1},
        {"Devices": ["/dev/nvidia0"], "Cores": 10**40, "Memory": 1},
        {"Devices": ["/dev/nvidia0"], "Cores": 30},
        "text",
    ],
)
def test_one_bad_record_does_not_take_the_others_with_it(
    tmp_path: Path, bad: object, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"u": {"bad": bad, "good": row([0], 30, GIB)}})
    assert [one.container for one in read_old_checkpoint(tmp_path)] == ["good"]
    assert "predecessor_checkpoint_record_ignored" in capsys.readouterr().out


def test_a_link_or_a_pipe_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps({"PodGPUMapping": {"u": {"c": row([0], 30, GIB)}}}))
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "secret")
    assert read_old_checkpoint(tmp_path) == ()
    (tmp_path / FILE_NAME).unlink()
    os.mkfifo(tmp_path / FILE_NAME)
    assert read_old_checkpoint(tmp_path) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(mapping=st.dictionaries(st.text(max_size=6), st.dictionaries(st.text(max_size=6), JSON, max_size=3)))
def test_whatever_it_holds_nothing_is_raised(
    tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any]
) -> None:
    directory = write(tmp_path_factory.mktemp("old"), mapping)
    assert read_old_checkpoint(directory) == ()
