"""What is worked out between two questions: it makes the second one shorter, and changes no answer."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import pod_view
from admission.cluster.snapshot import NODES
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.verbs import Extender, Reply
from gpu_manager.domain.contract import PLACEMENT
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import UNIT, PlainPolicy, World, args, node, pod

_CORES = (10, 20, 30, 50, 70, 100, 200)
_pods = st.lists(
    st.tuples(st.sampled_from(_CORES), st.sampled_from([None, "spread", "topology"])), min_size=4, max_size=24
)


def deployed() -> World:
    world = World([node(f"n{at}", cards=4, model="A10" if at % 3 else "T4") for at in range(6)])
    policy = LeastFragmentation(world.cluster, aside=lambda job: job())
    world.extender = Extender(
        world.cluster, world.quota, world.judge, policy, world.binder, clock=world.clock
    )
    return world


def waiting(name: str, core: int, placement: str | None) -> dict:
    noted = {PLACEMENT: placement} if placement else None
    return pod(name, core, 4 if core < 100 else None, annotations=noted)


def done(reply: Reply, works: bool) -> bytes:
    if works and reply.after is not None:
        reply.after()
    return reply.body


@settings(max_examples=40)
@given(pods=_pods, leave=st.sets(st.integers(0, 23)), between=st.sets(st.integers(0, 23)))
def test_what_is_done_after_an_answer_changes_none(pods, leave, between):
    said = []
    for works in (True, False):
        world, answers = deployed(), []
        for at, (core, placement) in enumerate(pods):
            world.create(asking := waiting(f"p{at}", core, placement))
            answers.append(done(world.extender.filter(args(asking, world.nodes)), works))
            fitting = json.loads(answers[-1])["NodeNames"]
            if at in between:
                world.create(pod(f"elsewhere-{at}", 10, 4, on="n3"))
            if len(fitting) > 1:
                answers.append(done(world.extender.prioritize(args(asking, fitting)), works))
                given = json.loads(answers[-1])
                fitting = [max(given, key=lambda each: each["Score"])["Host"]]
            answers += [world.bind(asking, name) for name in fitting]
            if at in leave:
                world.delete(world.api.pods["default", f"p{at}"])
        said.append(answers)
    assert said[0] == said[1]


def test_between_filter_and_prioritize_the_costs_of_nodes_that_changed_are_worked_out():
    world, asked = deployed(), []
    policy = world.extender._choice._policy
    for core in (30, 30, 50, 30):
        world.create(asking := waiting(f"p{len(asked)}", core, None))
        reply = world.extender.filter(args(asking, world.nodes))
        priced = len(policy._epoch.known) if policy._epoch else 0
        if reply.after is not None:
            reply.after()
        prepared = len(policy._epoch.known) if policy._epoch else 0
        given = world.prioritize(asking, json.loads(reply.body)["NodeNames"])
        asked.append((prepared - priced, len(policy._epoch.known) - prepared))
        assert world.bind(asking, max(given, key=given.get)) == ""
    # At the very first question there is no mix yet. Then all is priced before it is asked for: of a new kind
    # of request the nodes' kinds, afterwards only what was taken since.
    assert asked[0][0] == 0
    assert asked[0][1] > 0
    assert asked[1] == (1, 0)
    assert asked[2][0] == 3  # by the former mix; the question begins with a new one
    assert asked[3] == (1, 0)


def test_many_costs_are_left_to_the_question_and_those_of_a_new_model_too():
    world = deployed()
    world.create(asking := waiting("first", 30, None))
    world.prioritize(asking)
    policy = world.extender._choice._policy
    known = len(policy._epoch.known)
    for at in range(20):
        world.cluster.apply(NODES, "ADDED", node(f"more-{at}", cards=4, model="A10"))
        world.create(pod(f"on-{at}", at + 1, at + 1, on=f"more-{at}"))
    world.cluster.apply(NODES, "ADDED", node("strange", cards=2, model="unheard-of"))
    occupant = pod_view(parse_pod(asking), asking)
    snapshot = world.cluster.snapshot()
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    for names, more in (([f"more-{at}" for at in range(20)], 0), (["strange"], 0), (["more-7"], 1)):
        policy.prepare(
            check.request, [(snapshot.nodes[name], check.on(snapshot.nodes[name])) for name in names]
        )
        assert len(policy._epoch.known) == known + more


def test_the_plain_policy_has_nothing_to_prepare():
    world = World([node("n1"), node("n2")], policy=PlainPolicy())
    world.create(asking := waiting("a", 30, None))
    world.filter(asking)
    reply = world.extender.filter(args(asking, world.nodes))
    assert reply.after is not None
    reply.after()
    assert sorted(world.prioritize(asking).values()) == [8, 10]
