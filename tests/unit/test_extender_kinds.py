"""Nodes of one kind are judged once: what is said of many at a time is what is said of each."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import pod_view
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit
from admission.extender.wire import priority_answer
from gpu_manager.domain.pod import parse_pod
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import UNIT, node, pod

_CLOSED = st.lists(st.integers(0, 1), max_size=2, unique=True)
_NODES = st.lists(st.tuples(st.integers(1, 3), _CLOSED, st.booleans(), st.booleans()), min_size=1, max_size=8)


def test_priorities_written_by_hand_are_the_json_of_the_list() -> None:
    for names in ((), ("n1",), ("n1", 'a"b\\c', "é\n", "\ud800")):
        scores = [(10, 0, 8, 3)[at] for at in range(len(names))]
        said = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        assert priority_answer(names, scores) == text.encode("utf-8", "replace")


@settings(max_examples=60, deadline=None)
@given(shapes=_NODES, core=st.sampled_from([20, 50, 100, 200]), own=st.booleans())
@example(shapes=[(1, [], False, True)] * 2, core=100, own=True)
def test_many_at_a_time_are_judged_as_each_alone(
    shapes: list[tuple[int, list[int], bool, bool]], core: int, own: bool
) -> None:
    cluster = ClusterState(UNIT)
    amount = Amount(core, 4 * GIB if core < 100 else 0)
    cluster.replace(
        NODES,
        [
            node(
                f"n{at}", cards, closed=[c for c in closed if c < cards],
                refused=[amount] if refused else [], inventory=inventory,
            )
            for at, (cards, closed, refused, inventory) in enumerate(shapes)
        ],
    )  # fmt: skip
    obj = pod("p", core, 16 if core < 100 else None)
    other = pod("q", core, 16 if core < 100 else None)
    cluster.replace(PODS, [obj, other])
    asked = parse_pod(obj)
    request = judged_request(asked, UNIT)

    def ask() -> FeasibilityCheck:
        return FeasibilityJudge().ask(pod_view(asked, obj), request, cluster.snapshot(), None)

    views = [*cluster.snapshot().nodes.values()]
    for uid, view in zip((asked.uid, parse_pod(other).uid), views, strict=False):
        if own and isinstance(fit := ask().on(view), Fit):  # the other lies on a node that may look the same
            cluster.expect(uid, view.name, ask().placement(view, fit), 1.0)
    views = [*cluster.snapshot().nodes.values()]
    verdicts = ask().over([*views, None])
    for view, kind in zip(views, verdicts.kinds, strict=False):
        alone, together = ask().on(view), verdicts.found[kind][1]
        if isinstance(alone, Fit) and isinstance(together, Fit):
            assert (alone.positions, alone.taken, alone.charge) == (
                together.positions,
                together.taken,
                together.charge,
            )
        else:
            assert alone is together
    assert verdicts.found[verdicts.kinds[-1]][0] is None
