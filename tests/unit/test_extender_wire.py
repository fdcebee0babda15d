"""Golden files: what kube-scheduler sends and what it gets, to the letter (case 58 of spec/kubelet.md).

Each file of tests/data/extender is one exchange over the cluster that ``world`` builds; the names are Go's.
"""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.extender.wire import (
    ExtenderArgs,
    LastQuestion,
    NodeNames,
    Victims,
    filter_answer,
    preemption_answer,
    priority_answer,
    read_args,
    read_binding,
    read_preemption,
)
from gpu_manager.domain.errors import RequestInvalid
from tests.fakes.extender import World, args, node, pod

GOLDEN = sorted((Path(__file__).parent.parent / "data" / "extender").glob("*.json"))


def world():
    """n1 idle, n2 with a card nearly full, n3 without an inventory."""
    made = World(
        [node("n1"), node("n2", cards=1), node("n3", inventory=False)],
        [pod("x", 80, 40, on="n2", uid="uid-x")],
    )
    made.create(pod("train", 30, 8, uid="0d1e7c1a-0000-0000-0000-000000000001", priority=10))
    return made


def test_there_are_golden_files():
    assert len(GOLDEN) >= 8


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_exchange_is_to_the_letter(path):
    exchange = json.loads(path.read_text("utf-8"))
    made = world()
    for before in exchange.get("before", []):
        handle(made, before["path"], before["question"])
    reply = handle(made, exchange["path"], exchange["question"])
    assert reply.status == exchange.get("status", 200)
    said = json.loads(reply.body)
    assert said == exchange["answer"]
    assert list(said) == list(exchange["answer"])


def handle(made, path, question):
    route = next(route for route in made.extender.routes() if route.path == path)
    return route.handle(json.dumps(question).encode())


def test_bind_and_preempt_alone_need_loopback_or_a_client_certificate():
    assert {route.path for route in world().extender.routes() if route.guarded} == {
        "/scheduler/bind",
        "/scheduler/preempt",
    }


def test_five_hundred_names_are_answered_in_a_tenth_of_a_second():
    made = World(
        [node(f"n{i:03}", cards=8) for i in range(500)],
        [pod(f"x{i}", 1 + i % 90, 4, on=f"n{i:03}") for i in range(500)],
    )
    questions = [args(pod(f"a{i}", 30, 8), made.nodes) for i in range(10)]
    took = []
    for question in questions:
        began = time.thread_time()
        made.extender.filter(question)
        took.append(time.thread_time() - began)
    assert min(took) < 0.1  # five times what it takes; the bench has the bar


def test_a_body_beyond_all_measure_is_refused_unread():
    with pytest.raises(RequestInvalid, match="nodeCacheCapable"):
        read_args(b" " * ((64 << 20) + 1))


def test_victims_come_in_both_forms_and_go_back_in_one():
    meta = {"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}}
    full = {
        "Pod": {},
        "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "u"}}], "NumPDBViolations": 2}},
    }
    none = {
        "Pod": {},
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"n": {"Pods": None, "NumPDBViolations": 0}},
    }
    assert read_preemption(json.dumps(meta).encode()).victims == {"n": Victims(("u",), 2)}
    assert read_preemption(json.dumps(full).encode()).victims == {"n": Victims(("u",), 2)}
    assert read_preemption(json.dumps(none).encode()).victims == {"n": Victims((), 0)}
    assert json.loads(preemption_answer({"n": Victims(("u",), 2)})) == {
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}
    }


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_binding_without_one_of_its_parts_is_none(missing):
    whole = {"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "d"}
    with pytest.raises(RequestInvalid, match=missing):
        read_binding(json.dumps({**whole, missing: ""}).encode())


# Anybody may ask, with names that are none: quotes, control characters, halves of surrogate pairs.
any_names = st.lists(
    st.text(max_size=8) | st.text("n0-", max_size=3) | st.sampled_from(['"', "\\", "\ud800"])
)


@given(any_names, st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3))
def test_whatever_the_names_filter_answers_what_json_would_write(names, failed):
    whole = {
        "Nodes": None,
        "NodeNames": names,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    written = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    for more in ([], ["\n"]):  # of more names these were chosen
        fitting = NodeNames([*names, *more]).among(bytes([1] * len(names) + [0] * len(more)))
        assert filter_answer(ExtenderArgs({}, NodeNames(names)), fitting, failed, {}) == written


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 10))))
def test_whatever_the_names_prioritize_answers_what_json_would_write(scored):
    whole = [{"Host": name, "Score": score} for name, score in scored]
    written = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    assert priority_answer(NodeNames(name for name, _ in scored), [score for _, score in scored]) == written


_WORDS = st.sampled_from(["Pod", "NodeNames", "nodenames", "Nodes", "a", ',"NodeNames":["x"]}', '"', "\\"])
_values = st.recursive(
    st.none() | st.integers(0, 3) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=8,
)
_bodies = st.dictionaries(_WORDS, _values, max_size=4) | st.fixed_dictionaries(
    {"Pod": st.dictionaries(_WORDS, _values, max_size=3), "Nodes": st.none(), "NodeNames": st.lists(_WORDS)}
)


def _read(body: bytes, recent: LastQuestion | None) -> object:
    try:
        found = read_args(body, recent)
    except RequestInvalid as error:
        return str(error)
    return found.pod, found.names, found.nodes


@given(
    st.lists(_bodies, min_size=1, max_size=4), st.sampled_from(["", "]}", "}", " ", ',"NodeNames":["x"]}'])
)
def test_names_that_were_read_before_are_read_as_anew(bodies, end):
    recent = LastQuestion()
    recent.offered = NodeNames(["x"])
    for body in bodies:
        for text in (json.dumps(body, separators=(",", ":")), json.dumps(body)):
            for whole in (text.encode(), text.encode() + end.encode(), text[:-2].encode() + end.encode()):
                assert _read(whole, recent) == _read(whole, None)
                assert _read(whole, recent) == _read(whole, None)


def test_a_pod_that_is_asked_about_again_is_not_read_again():
    recent, body = LastQuestion(), b'{"Pod":{"a":%d},"Nodes":null,"NodeNames":["n%d"]}'
    first, again, other = (read_args(body % about, recent) for about in ((1, 1), (1, 2), (2, 2)))
    assert first.pod is again.pod
    assert (again.names, other.pod) == (("n2",), {"a": 2})
    assert read_args(body % (1, 2), recent).pod is not first.pod  # of the last question alone


def test_names_that_were_offered_are_not_read_again():
    last, body = LastQuestion(), b'{"Pod":{"a":%d},"Nodes":null,"NodeNames":["n1","n2"]}'
    asked = read_args(body % 1, last).names
    last.offered = asked.among(bytes([0, 1]))
    assert read_args(b'{"Pod":{"a":1},"NodeNames":["n2"]}', last).names is last.offered
    assert read_args(b'{"Pod":{"a":1},"NodeNames":["n1"]}', last).names == ("n1",)
