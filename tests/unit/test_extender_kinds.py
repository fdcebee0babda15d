"""Nodes of one kind are judged once: what is said of many at a time is what is said of each."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import pod_view
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.feasibility import SOMEWHERE, FeasibilityCheck, FeasibilityJudge, Fit, Unfit
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.free_cards import FreeCards
from admission.extender.many_nodes import SEVERAL, candidates, judge_nodes
from admission.extender.ranking import MOST_PRICED, most_priced
from admission.extender.wire import ExtenderArgs, NodeNames, filter_answer, priority_answer
from gpu_manager.domain.contract import GPU_MODEL, PLACEMENT
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import NumaPolicy
from tests.fakes.extender import UNIT, node, pod
from tests.seeds import seeds

_CLOSED = st.lists(st.integers(0, 1), max_size=2, unique=True)
_NODES = st.lists(st.tuples(st.integers(1, 3), _CLOSED, st.booleans(), st.booleans()), min_size=1, max_size=8)


def test_priorities_written_by_hand_are_the_json_of_the_list() -> None:
    for names in ((), ("n1",), ("n1", 'a"b\\c', "é\n", "\ud800")):
        scores = [(10, 0, 8, 3)[at] for at in range(len(names))]
        said = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        assert priority_answer(NodeNames(names), scores) == text.encode("utf-8", "replace")


def test_reasons_written_by_hand_are_the_json_of_the_map() -> None:
    odd = {"n1": "full", 'a"b\\c': "no", "é\n": 'say "no"', "\ud800": "full"}
    for failed, lasting in (({}, {}), (odd, {}), ({"n2": "full"}, odd)):
        said = {"Nodes": None, "NodeNames": ["x"], "FailedNodes": failed}
        said |= {"FailedAndUnresolvableNodes": lasting, "Error": ""}
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        assert filter_answer(
            ExtenderArgs({}, NodeNames(("x",))), NodeNames(["x"]), failed, lasting
        ) == text.encode("utf-8", "replace")


def test_in_a_large_cluster_one_question_works_out_fewer_nodes() -> None:
    assert [most_priced(nodes) for nodes in (0, 1, 1250, 2500, 5000, 50_000)] == [256, 256, 256, 64, 16, 16]


def test_what_was_read_beside_the_questions_is_not_read_by_one() -> None:
    cluster, cards = part_used(3, 1), FreeCards()
    _, request = asked(cluster, 10, 1)
    views = [*cluster.snapshot().nodes.values()]
    cards.read(views)
    unreadable = [replace(view, ledger=None) for view in views]  # whoever reads it fails
    assert cards.with_room(request, unreadable).tolist() == FreeCards().with_room(request, views).tolist()


@settings(max_examples=60)
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
            cluster.expect(cluster.pod(uid), view.name, ask().placement(view, fit), 1.0)
    views = [*cluster.snapshot().nodes.values()]
    verdicts = judge_nodes(ask(), [*views, None])
    for view, together in zip(views, verdicts.answers, strict=False):
        alone = ask().on(view)
        if isinstance(alone, Fit) and isinstance(together, Fit):
            assert (alone.positions, alone.taken, alone.charge) == (
                together.positions,
                together.taken,
                together.charge,
            )
        else:
            assert alone is together
    assert verdicts.answers[-1] is Unfit.NODE


def part_used(nodes: int, seed: int) -> ClusterState:
    """Nodes of one to six cards of two models, hardly two of them alike."""
    dice, cluster = random.Random(seed), ClusterState(UNIT)
    sizes = [dice.randint(1, 6) for _ in range(nodes)]
    cluster.replace(
        NODES,
        [
            node(
                f"n{at}",
                size,
                model=dice.choices(("T4", "A100"), k=size),
                closed=dice.choices(range(size), k=at % 2),
            )
            for at, size in enumerate(sizes)
        ],
    )
    shapes = [(dice.randint(1, 99), dice.randint(1, 60)) for _ in range(4 * nodes)]
    held = [pod(f"p{n}", *shape, on=f"n{dice.randrange(nodes)}") for n, shape in enumerate(shapes)]
    cluster.replace(PODS, held)
    return cluster


def asked(
    cluster: ClusterState, core: int, memory: int | None, **annotations: str
) -> tuple[FeasibilityCheck, PodRequest]:
    obj = pod("new", core, memory, annotations=annotations)
    one = parse_pod(obj)
    request = judged_request(one, UNIT)
    return FeasibilityJudge().ask(pod_view(one, obj), request, cluster.snapshot(), None), request


def test_many_new_nodes_are_judged_in_one_go_as_each_alone() -> None:
    fits = 0
    for seed in seeds(12):
        dice, cluster = random.Random(seed), part_used(SEVERAL + 30, seed)
        views = [*cluster.snapshot().nodes.values()]
        for _ in range(6):
            core, memory = dice.choice(
                [(100, None), (200, None), (300, None)] + [(dice.randint(1, 99), dice.randint(1, 64))] * 4
            )
            wishes = dice.choice([{}, {}, {GPU_MODEL: "A100"}, {GPU_MODEL: "T4,V100"}, {PLACEMENT: "spread"}])
            question, _ = asked(cluster, core, memory, **wishes)
            alone, _ = asked(cluster, core, memory, **wishes)
            verdicts = judge_nodes(question, views)
            chosen = candidates(question, verdicts, 1 << 20)
            for view, kind, said in zip(views, verdicts.numbers, verdicts.answers, strict=True):
                here = alone.on(view)
                if isinstance(here, Fit):
                    fits += 1
                    assert said is SOMEWHERE, "it fits; where was not asked"
                    assert chosen[kind][1].positions == here.positions
                else:
                    assert said is here
                    assert kind not in chosen
    assert fits > 1000, "the clusters are neither full nor empty"


def test_many_nodes_under_a_strict_numa_policy_are_judged_by_more_than_a_count() -> None:
    cluster, fits = part_used(SEVERAL + 30, 3), 0
    views = []
    for at, view in enumerate(cluster.snapshot().nodes.values()):
        cards = tuple(replace(s, card=replace(s.card, numa=n // 2)) for n, s in enumerate(view.node.cards))
        links = replace(view.node.topology, numa_policy=(NumaPolicy.NONE, NumaPolicy.SINGLE)[at % 2])
        views.append(replace(view, node=replace(view.node, cards=cards, topology=links)))
    for core in (100, 200, 300, 30):
        question, _ = asked(cluster, core, None if core >= 100 else 4)
        alone, _ = asked(cluster, core, None if core >= 100 else 4)
        for view, said in zip(views, judge_nodes(question, views).answers, strict=True):
            here = alone.on(view)
            assert isinstance(here, Fit) is isinstance(said, Fit)
            fits += isinstance(here, Fit)
            if view.node.topology.numa_policy.strict and core == 300:
                assert isinstance(here, Unfit), "two cards a NUMA node"
    assert fits > 50


def test_of_a_new_kind_of_request_so_many_nodes_are_priced_at_once_and_all_in_the_end() -> None:
    cluster = part_used(2 * MOST_PRICED, 1)
    views, policy = [*cluster.snapshot().nodes.values()], LeastFragmentation(cluster)
    question, request = asked(cluster, 17, 3)

    def costs() -> list[object]:
        found = candidates(question, judge_nodes(question, views), MOST_PRICED).values()
        return list(policy.costs(request, list(found)))

    first = costs()
    assert len(first) == MOST_PRICED
    assert None not in first
    left = [costs() for _ in range(8)][-1]
    assert len(left) > MOST_PRICED
    assert None not in left
    best = min(cost for cost in left if isinstance(cost, tuple))
    found = min(cost for cost in first if isinstance(cost, tuple))
    assert sum(cost < found for cost in left if isinstance(cost, tuple)) <= len(left) // 20, (found, best)
