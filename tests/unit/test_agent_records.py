"""The agent's decisions, recorded and judged again."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.agent.backends import recorder_of
from gpu_manager.agent.config import Config
from gpu_manager.cli.kubectl import report
from gpu_manager.cli.main import PROGRAM
from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.preferred_ids import IdChoice
from gpu_manager.services.allocation.record import AgentPlayer, AgentRecorder, JudgedOnNode
from tests.fakes.metrics import service_metrics
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, FakeStore, cards
from tests.fakes.state import node_of
from tests.seeds import seeds

MIB = 1 << 20


def real_cards() -> tuple[CardState, ...]:
    uuids = ("GPU-9f3b6c1a", "GPU-0c77d2e4", "GPU-5ab01f9e")
    return tuple(
        replace(one, card=replace(one.card, uuid=CardUuid(f"{uuid}-1111-4222-8333-abcdefabcdef")))
        for one, uuid in zip(cards(3), uuids, strict=True)
    )


class Node:
    """A node whose pods come and go, as its kubelet asks."""

    def __init__(self, directory: Path, seed: int, *, limit: int = 16 * MIB, recorded: bool = True) -> None:
        self.dice, self.pods, self.number = Random(seed), list[Any](), 0
        self.seen: list[Any] = []
        self.recorder = AgentRecorder(RecordRing(directory, limit), FakeClock(), "1.2.3")
        note = self.recorder.decided if recorded else None
        self.state = NodeState(Books(node_of(real_cards())), FakeStore(), service_metrics(), note)

    def go_on(self) -> None:
        """A pod comes, whose containers are admitted, or one goes."""
        if self.pods and self.dice.random() < 0.3:
            gone = self.pods.pop(self.dice.randrange(len(self.pods)))
            self.state.release((gone.uid, one.name) for one in gone.containers)
            return
        self.number += 1
        names = ("a", "b")[: self.dice.choice((1, 1, 2))]
        made = pod(
            f"payroll-{self.number}-x",
            *(container(n, *self.dice.choice(((30, 8), (60, 20), (100, 0)))) for n in names),
        )
        made["metadata"]["labels"] = {"team": "kept-private"}
        found = parse_pod(made)
        self.pods.append(found)
        self.seen.append(found)
        for one in found.containers:
            for resource in (CORE, MEMORY):
                if one.wants(resource) and not self._admit(ContainerCandidate(found, one), resource):
                    return

    def _admit(self, candidate: ContainerCandidate, resource: str) -> bool:
        size, held = candidate.container.wants(resource), self.state.view.grants.values()
        taken = {device for one in held for ids in one.ids.values() for device in ids}
        free = [d for d in self.state.node.ids.card_of[resource] if d not in taken]
        if len(free) < size:
            return False
        self.state.ask(resource)
        grant = self.state.view.grants.get(candidate.key)
        answer = Identification(candidate, frozenset(), frozenset(), has={} if grant is None else grant.ids)
        ids = self.state.decide(IdChoice(resource, free, (), size), answer, {})
        if len(ids) < size or self.dice.random() < 0.2:  # the kubelet takes others
            ids = tuple(self.dice.sample(free, size))
        decision = self.state.whose(resource, frozenset(ids), {})
        try:
            with self.state.allocate(resource, frozenset(ids), decision):
                return True
        except VcudaError:
            return False


def played(directory: Path) -> tuple[list[JudgedOnNode], AgentPlayer]:
    player = AgentPlayer()
    lines = (line for path in segments(directory) for line in path.read_bytes().splitlines())
    return list(player.play(lines)), player


@pytest.mark.parametrize("seed", seeds(6))
def test_what_the_agent_decided_is_the_same_again(tmp_path: Path, seed: int) -> None:
    node = Node(tmp_path, seed)
    for _ in range(40):
        node.go_on()
    node.recorder.write()
    judged, player = played(tmp_path)
    assert [(one.line["k"], one.recorded, one.now) for one in judged if one.recorded != one.now] == []
    assert not player.passed
    assert {one.line["k"] for one in judged} == {"prefer", "allocate"}
    assert any("refusal" in one.recorded for one in judged)
    assert b"kept-private" not in b"".join(path.read_bytes() for path in segments(tmp_path))


@pytest.mark.parametrize("seed", seeds(4))
def test_it_is_the_same_again_under_pseudonyms(tmp_path: Path, seed: int) -> None:
    node = Node(tmp_path / "ring", seed)
    for _ in range(40):
        node.go_on()
    node.recorder.write()
    lines = [
        json.loads(line) for path in segments(tmp_path / "ring") for line in path.read_bytes().splitlines()
    ]
    report.write(tmp_path / "r.tar.gz", {"records": lambda: iter(lines)}, plain=False)
    with tarfile.open(tmp_path / "r.tar.gz") as archive:
        stream = archive.extractfile("records")
        assert stream is not None
        hidden = stream.read().splitlines()
    player = AgentPlayer()
    judged = list(player.play(hidden))
    assert [(one.line, one.now) for one in judged if one.recorded != one.now] == []
    assert not player.passed
    assert judged
    text = b"".join(hidden).decode()
    assert [one.name for one in node.seen if one.name in text or one.uid in text] == []
    assert [
        str(card) for card in node.state.node.ids.of_card[CORE] if card in text or card[4:12] in text
    ] == []


def test_each_segment_is_judged_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, limit=40_000)
    for _ in range(60):
        node.go_on()
        node.recorder.write()
    assert len(segments(tmp_path)) > 2
    (last,) = segments(tmp_path)[-1:]
    judged = list(AgentPlayer().play(last.read_bytes().splitlines()))
    assert judged
    assert all(one.recorded == one.now for one in judged)


def test_a_wrong_booking_is_found(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    for _ in range(20):
        node.go_on()
    node.recorder.write()
    (path,) = segments(tmp_path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for entry in (entry for line in lines for entry in line if entry["k"] == "state"):
        entry["rows"] = []
    player = AgentPlayer()
    differ = [
        one for one in player.play(json.dumps(line).encode() for line in lines) if one.recorded != one.now
    ]
    assert differ
    assert not player.passed


def test_the_command_prints_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(tmp_path / "ring", 2)
    for _ in range(20):
        node.go_on()
    node.recorder.write()
    capsys.readouterr()
    assert PROGRAM.run(["replay-node", str(tmp_path / "ring"), "--timeline"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ decisions \(allocate \d+, prefer \d+\); none differs", said[-1])
    assert "prefer of default/payroll-1-x, container a, tencent.com/vcuda-core: " in said[0]
    (path,) = segments(tmp_path / "ring")
    path.write_bytes(path.read_bytes().replace(b'"cores":30', b'"cores":31'))
    assert PROGRAM.run(["replay-node", str(path)]) == 1
    assert " differs: " in capsys.readouterr().out
    assert PROGRAM.run(["replay-node", str(tmp_path)]) == 2
    assert PROGRAM.run(["replay-node", str(tmp_path / "nowhere")]) == 2


def test_an_agent_without_room_for_records_decides_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("")
    assert recorder_of(Config(state=tmp_path, records_mib=8), FakeClock()) is None
    assert recorder_of(Config(state=tmp_path / "other"), FakeClock()) is None
    assert recorder_of(Config(state=tmp_path / "other", records_mib=8), FakeClock()) is not None
    node = Node(tmp_path / "ring", 1, limit=100)
    for _ in range(20):
        node.go_on()
        node.recorder.write()
    assert node.state.view.grants


def test_what_is_no_record_of_an_agent_is_refused() -> None:
    for text in (b'[{"k":"ring","format":1}]', b'{"a":1}', b'[{"k":"row"}]'):
        with pytest.raises(RequestInvalid):
            list(AgentPlayer().play([text]))
