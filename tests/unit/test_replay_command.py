"""The command that judges recorded decisions again: what it says, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.cli.main import PROGRAM
from gpu_manager.domain.contract import PLACEMENT
from tests.fakes.extender import UNIT, World, answer, args, binding, node, pod
from tests.unit.test_draining import unschedulable
from tests.unit.test_replay import MIB, entries_in, recorder_in, scheduled
from tests.unit.test_requeue import running


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()  # what the service has logged
    code = PROGRAM.run(["replay", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_command_says_that_nothing_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled(tmp_path)
    assert run(capsys, str(tmp_path)) == (
        0,
        "18 decisions (bind 6, filter 6, prioritize 6); none differs\n",
    )


def test_a_segment_is_replayed_alone_though_those_before_it_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(tmp_path, limit=40_000, pods=24)
    files = segments(tmp_path)
    assert len(files) > 2
    for path in files:
        code, said = run(capsys, str(path))
        assert (code, said.count("not judged")) == (0, 0), said


def test_a_line_that_a_kill_has_cut_off_ends_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(tmp_path)
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert run(capsys, str(path)) == (0, "15 decisions (bind 5, filter 5, prioritize 5); none differs\n")


def changed(path: Path, kind: str, change: Callable[[dict[str, Any]], None]) -> None:
    """The record with the last entry of the kind changed."""
    entries = entries_in(path.parent)
    change([entry for entry in entries if entry["k"] == kind][-1])
    path.write_text(json.dumps(entries) + "\n")


def test_the_first_decision_that_differs_is_shown_with_both_answers_and_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(tmp_path)
    (path,) = segments(tmp_path)
    changed(path, "bind", lambda line: line.update(answer={"refusal": "it was full"}))
    code, said = run(capsys, str(path))
    assert code == 1
    lines = said.splitlines()
    assert re.search(r"bind of default/p5, by the state of generation \d+$", lines[0])
    assert lines[1] == '  recorded: {"refusal": "it was full"}'
    assert lines[2].startswith('  now: {"placement": {"main": [{"card": "GPU-n')
    assert lines[3].startswith('  input: {"at": 1000.0, "turn": ')
    assert ": it was full -> main on GPU-n" in lines[4]
    assert lines[5] == "18 decisions (bind 6, filter 6, prioritize 6); 1 differ: bind 1"


def test_a_pod_that_is_not_booked_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled(tmp_path)
    (path,) = segments(tmp_path)
    lines = entries_in(tmp_path)
    first: set[int] = set()
    for line in lines:
        if line["k"] == "pod" and (line["v"]["pod"].get("name") == "p0" or line.get("of") in first):
            first.add(line["n"])
        elif line["k"] == "node":
            line["pods"] = [one for one in line["pods"] if one not in first]
    path.write_text(json.dumps(lines) + "\n")
    code, said = run(capsys, str(path))
    assert code == 1
    assert "of default/p1" in said.splitlines()[0]


def test_what_another_policy_would_have_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled(tmp_path)
    code, said = run(capsys, str(tmp_path), "--what-if", "policy=spread", "--most", "1")
    assert code == 1
    assert "prioritize of default/p1: n0 -> n1" in said
    assert run(capsys, str(tmp_path), "--what-if", "policy=binpack")[0] == 0


def test_decisions_under_spread_have_no_prices_for_another_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = recorder_in(tmp_path)
    world = World([node("n0"), node("n1")], recorder=recorder, deployed=True)
    world.create(asking := pod("p", 40, 4, annotations={PLACEMENT: "spread"}))
    world.schedule(asking)
    recorder.write()
    assert run(capsys, str(tmp_path))[0] == 0
    assert (
        "3 more not judged: it was made under spread"
        in run(capsys, str(tmp_path), "--what-if", "policy=binpack")[1]
    )


def test_a_timeline_tells_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled(tmp_path, pods=1)
    code, said = run(capsys, str(tmp_path), "--timeline")
    assert code == 0
    assert said.splitlines() == [
        "1970-01-01T00:16:40.000Z filter of default/p0: fits 3",
        "1970-01-01T00:16:40.000Z prioritize of default/p0: n0",
        "1970-01-01T00:16:40.000Z bind of default/p0: main on GPU-n0-0",
        "3 decisions (bind 1, filter 1, prioritize 1)",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"k":"node","turn":1}]\n', "malformed"),
        ('[{"k":"ring","format":2}]\n', "replay it with the release that wrote it"),
        ('{"a":1}\n', "no record of decisions"),
    ],
)
def test_what_is_no_record_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    code, said = run(capsys, str(path))
    assert code == 2
    assert why in said


def test_places_and_policies_that_do_not_exist_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, str(tmp_path / "nowhere"))[0] == 2
    assert "holds no decisions-*.jsonl" in run(capsys, str(tmp_path))[1]
    assert "policy= with one of binpack" in run(capsys, str(tmp_path), "--what-if", "policy=best")[1]


def test_a_decision_whose_state_is_not_in_the_record_is_counted_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(tmp_path)
    (path,) = segments(tmp_path)
    changed(path, "bind", lambda line: line.update(turn=10_000))
    assert (
        "1 more not judged: the state that it was judged by is not in the record" in run(capsys, str(path))[1]
    )


def test_a_service_that_ends_has_written_what_it_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = pod("p", 30)
    with running([node("n1"), node("n2")], [waits], records=RecordRing(tmp_path, 16 * MIB)) as (one, *_):
        given = answer(one.extender.filter(args(waits, ["n1", "n2"])))["NodeNames"]
        one.extender.prioritize(args(waits, given))
        assert answer(one.extender.bind(json.dumps(binding(waits, "n1")).encode())) == {"Error": ""}
    assert run(capsys, str(tmp_path)) == (0, "3 decisions (bind 1, filter 1, prioritize 1); none differs\n")
    first = entries_in(tmp_path)[0]
    assert (first["k"], first["unit"], first["minimum_cores"]) == ("ring", UNIT, 1)


@pytest.mark.parametrize("unknown", [0, 2100])
def test_drained_nodes_and_nodes_that_nobody_knows_are_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unknown: int
) -> None:
    """A fraction leaves the node alone that drains for a pod of four cards; also among thousands of names."""
    recorder = recorder_in(tmp_path)
    held = [pod("x", 60, 20, on="n1"), pod("y", 200, None, on="n2"), pod("z", 70, 20, on="n2")]
    world = World([node("n1", 4), node("n2", 4)], held, recorder=recorder, deployed=True)
    world.create(unschedulable(pod("big", 400, None)))
    world.create(asking := pod("a", 40, 4))
    names = [*(f"gone-{at}" for at in range(unknown)), "n1", "n2"]
    scores = world.prioritize(asking, names)
    assert max(scores, key=lambda name: scores[name]) == "n2"
    assert world.filter(asking, names)["NodeNames"] == ["n1", "n2"]
    recorder.write()
    (rank,) = [entry for entry in entries_in(tmp_path) if entry["k"] == "rank"]
    assert rank["drained"] == {"n1": 4}
    assert run(capsys, str(tmp_path)) == (0, "2 decisions (filter 1, prioritize 1); none differs\n")
