"""Names that the routine in C reads and writes are those of the JSON, in their order; the rest is left to JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.extender.node_names import LastQuestion, NameIndex, NamesRoutine, NodeNames, NodeReasons
from admission.extender.node_table import NodeTable
from admission.extender.wire import ExtenderArgs, filter_answer, priority_answer, read_args
from gpu_manager.adapters.score_routine import names_routine
from tests.fakes.extender import World, args, node, pod
from tests.unit.test_extender_kinds import asked, part_used

KNOWN = [*(f"n{at}" for at in range(40)), "", "ip-10-0-0-1.ec2.internal", "a", "ab" * 40, "ünïcödé"]
some_names = st.lists(st.sampled_from([name for name in KNOWN if name]), min_size=1, unique=True)


@pytest.fixture(scope="module")
def routine() -> NamesRoutine:
    found = names_routine()
    assert found is not None, "the project is built with it: make setup"
    return found


@pytest.fixture(scope="module")
def index(routine: NamesRoutine) -> NameIndex:
    return NameIndex(KNOWN, routine)


def written(names: list[str]) -> bytes:
    return json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()


@given(names=some_names, dice=st.randoms())
def test_names_by_place_are_what_the_same_texts_are(index, names, dice):
    found, texts = index.read(written(names)), NodeNames(names)
    assert found is not None
    assert (list(found), found.json, found == texts, texts == found) == (names, written(names), True, True)
    chosen = bytes(dice.choice((0, 1)) for _ in names)
    assert list(found.among(chosen)) == list(texts.among(chosen))
    assert found.among(chosen).json == texts.among(chosen).json
    places = np.array(dice.sample(range(len(names)), dice.randint(1, len(names))))
    assert (found.least(places), list(found.at(places))) == (texts.least(places), list(texts.at(places)))
    assert [name in found for name in KNOWN] == [name in texts for name in KNOWN]
    assert ([found[at] for at in range(len(names))], found.index(names[-1])) == (names, len(names) - 1)
    scores = np.array([dice.randint(0, 10) for _ in names], np.uint8)
    assert priority_answer(found, scores) == priority_answer(texts, scores)


@given(names=some_names, dice=st.randoms())
def test_reasons_by_place_are_what_the_same_texts_have(index, names, dice):
    answers = []
    for read in (index.read(written(names)), NodeNames(names)):
        assert read is not None
        failed, lasting, turn = NodeReasons(read), NodeReasons(read), dice.getstate()
        for text in ("full", 'closed for "x"', "é\\"):
            (failed if dice.random() < 0.5 else lasting).add(
                np.flatnonzero([at % 3 == len(text) % 3 for at in range(len(names))]), text
            )
        first = failed.change(0, "card by card") or lasting.change(0, "card by card")
        dice.setstate(turn)
        answers.append((filter_answer(ExtenderArgs({}, read), read, failed, lasting), dict(failed), first))
        said = json.loads(answers[-1][0])
        assert (said["FailedNodes"], said["FailedAndUnresolvableNodes"]) == (dict(failed), dict(lasting))
    assert answers[0] == answers[1]


@given(
    names=some_names, cut=st.integers(0, 12), more=st.sampled_from(["", " ", '"', "\\", ",", "[", "]", "\0"])
)
def test_what_kube_scheduler_does_not_write_is_left_to_json(index, names, cut, more):
    text = written(names)
    at = min(cut, len(text))
    changed = text[:at] + more.encode() + text[at:]
    found = index.read(changed)
    if found is not None:
        assert list(found) == json.loads(changed)
    for other in (
        text[:cut],
        text[cut:],
        written([*names, names[0]]),
        written([*names, "unknown"]),
        b"[]",
        b"",
    ):
        found = index.read(other)
        assert found is None or list(found) == json.loads(other)


def test_names_are_read_by_place_from_a_question_and_by_json_where_they_are_not_known(index):
    last = LastQuestion()
    last.index = index
    for names, by_place in ((["n3", "n1"], True), (["n3", "other"], False), (["n3", "n3"], False)):
        body = b'{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":%b}' % written(names)
        found = read_args(body, last).names
        assert list(found) == names
        assert (found.places_in(index) is not None) is by_place
    assert [list(NodeNames(("a", "b", "a")).first), list(NodeNames(("a", "b")).first)] == [[1, 1, 0], [1, 1]]


def test_an_index_that_is_out_of_date_is_not_judged_by(routine):
    cluster = part_used(6, 1)
    table = NodeTable(cluster, routine=routine)
    question, _ = asked(cluster, 30, 4)
    names = sorted(cluster.snapshot().nodes)
    assert table.index is None, "no question was judged yet"
    assert table.verdicts(question, names, cluster.snapshot(), lambda: False) is not None
    read = table.index.read(written(names))
    cluster.apply("nodes", "DELETED", node("n0"))
    cluster.apply("nodes", "ADDED", node("n00"))
    now = cluster.snapshot()
    rest = read.among(bytes(name != "n0" for name in names))
    question, _ = asked(cluster, 30, 4)
    verdicts = table.verdicts(question, rest, now, lambda: False)
    assert [view.name for view in map(verdicts.views.__getitem__, verdicts.numbers)]
    assert len(verdicts.numbers) == 5
    assert (rest.places_in(table.index), "n00" in table.index.place) == (None, True)


def test_an_extender_with_the_routine_answers_as_one_without(routine):
    worlds = [World([node(f"n{at}", cards=1 + at % 3) for at in range(12)]) for _ in range(2)]
    worlds[1].extender._table._routine = routine
    for step in range(30):
        asks = pod(f"p{step}", 10 + step * 7 % 90, 4)
        answers = []
        for world in worlds:
            world.create(asks)
            question = json.loads(args(asks, list(world.nodes)))
            body = json.dumps(question, separators=(",", ":")).encode()
            first = world.extender.filter(body).body
            question["NodeNames"] = json.loads(first)["NodeNames"]
            second = world.extender.prioritize(json.dumps(question, separators=(",", ":")).encode()).body
            answers.append((first, second))
        assert answers[0] == answers[1]
    assert worlds[1].extender._table.index is not None
