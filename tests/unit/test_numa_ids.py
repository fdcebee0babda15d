"""Device ids by NUMA node, where containers lie elsewhere than theirs: whom the kubelet's strict policy would fail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admission.extender.feasibility import Fit, Unfit
from admission.extender.refusal_lines import why
from gpu_manager.domain.cluster.accounting import cluster_books
from gpu_manager.domain.cluster.kubelet_ids import NumaIds, numa_ids
from gpu_manager.domain.cluster.node_json import NodeReport, read_node
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    MEMORY,
    Assignment,
    decode_assignment,
    encode_assignment,
)
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy
from sandbox.kubelet.topology import affinity, hints
from tests.fakes.direct import DirectRig
from tests.fakes.extender import World, node, on_numa_nodes, pod, uuid
from tests.fakes.node import container
from tests.fakes.node import pod as rig_pod
from tests.fakes.ports import FakeClock, cards
from tests.seeds import seeds

UNIT = DEFAULT_UNIT
STRICT = [NumaPolicy.RESTRICTED, NumaPolicy.SINGLE]


def lying(
    name: str, card: int, cores: int, ids: Mapping[int, tuple[int, int]] | None, units: int = 4
) -> dict[str, Any]:
    """A pod on a card of n1 whose ids are of these NUMA nodes, by the agent's annotation."""
    uid = f"uid-default-{name}"
    share = (uuid("n1", card), Amount(cores, units * UNIT))
    said = Assignment("n1", uid, {"main": (share,)}, numa_ids={"main": ids} if ids else {})
    return pod(name, cores, units, uid=uid, on="n1", annotations={ALLOCATION: encode_assignment(said)})


def world_of(policy: NumaPolicy, *pods: dict[str, Any]) -> World:
    """One node of four cards on NUMA nodes 0 and 3."""
    world = World([on_numa_nodes(node("n1", 4), policy, 0, 0, 3, 3)])
    for obj in pods:
        world.create(obj)
    return world


def verdict(world: World, core: int, memory: int | None = None) -> tuple[Fit | Unfit, str]:
    world.create(pod("late", core, memory))
    snapshot, occupant = world.cluster.snapshot(), world.cluster.named("default", "late")
    assert occupant is not None
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    view = snapshot.nodes["n1"]
    return check.on(view), why(check, view)


@pytest.mark.parametrize("policy", STRICT)
def test_idle_cards_whose_ids_are_held_from_elsewhere_are_no_room_for_a_strict_policy(
    policy: NumaPolicy,
) -> None:
    beside = lying("beside", 3, 30, None)
    found, words = verdict(world_of(policy, lying("away", 2, 40, {0: (40, 4)}), beside), 200)
    assert found is Unfit.ROOM
    assert words.startswith(f"the kubelet's NUMA policy {policy.value} wants ids of 200 cores")
    assert "170 cores are left there at most" in words, "node 3: the one beside holds 30 there"


def test_where_ids_are_those_of_the_cards_or_nothing_is_strict_the_cards_decide() -> None:
    beside = lying("beside", 3, 30, None)
    assert isinstance(verdict(world_of(NumaPolicy.SINGLE, lying("there", 2, 40, None), beside), 200)[0], Fit)
    for policy in (NumaPolicy.BEST_EFFORT, NumaPolicy.NONE):
        world = world_of(policy, lying("away", 2, 40, {0: (40, 4)}), beside)
        assert isinstance(verdict(world, 200)[0], Fit)


def test_ids_that_the_pod_does_not_ask_for_are_nobodys_word() -> None:
    beside = lying("beside", 3, 30, None)
    for told in ({0: (41, 4)}, {0: (40, 5)}, {0: (140, 4)}):
        world = world_of(NumaPolicy.SINGLE, lying("away", 2, 40, told), beside)
        assert isinstance(verdict(world, 200)[0], Fit), told


def test_the_ids_come_back_with_their_pod() -> None:
    away, beside = lying("away", 2, 40, {0: (40, 4)}), lying("beside", 3, 30, None)
    world = world_of(NumaPolicy.SINGLE, away, beside, lying("third", 2, 30, None))
    world.create(pod("late", 200, None))
    snapshot, occupant = world.cluster.snapshot(), world.cluster.named("default", "late")
    assert occupant is not None
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    view = snapshot.nodes["n1"]
    assert isinstance(check.on(view), Unfit)
    assert check.without(view, [PodUid("uid-default-away")]) is not None
    assert check.without(view, [PodUid("uid-default-beside")]) is None


def test_an_assignment_carries_the_ids_and_malformed_ones_are_no_assignment() -> None:
    said = Assignment("n1", "uid", {}, numa_ids={"a": {3: (40, 4)}})
    text = encode_assignment(said)
    assert decode_assignment(text) == said
    for wrong in ('{"a":{"3":[40]}}', '{"a":{"x":[40,4]}}', '{"a":{"3":[-1,4]}}', '{"a":[40,4]}'):
        assert decode_assignment(text.replace('{"a":{"3":[40,4]}}', wrong)) is None
    assert "numa" not in encode_assignment(Assignment("n1", "uid", {}))


def kubelet_admits(
    policy: NumaPolicy, free: Mapping[int, Amount], totals: Mapping[int, Amount], need: Amount
) -> bool:
    """As the stand-in kubelet judges a container, one device an id of cores, and of memory."""
    proposals = []
    for counts, asked in (
        ({n: (totals[n].cores, max(0, free[n].cores)) for n in totals}, need.cores),
        (
            {n: (totals[n].memory // UNIT, max(0, free[n].memory // UNIT)) for n in totals},
            need.memory // UNIT,
        ),
    ):
        if asked:
            everything = {
                f"{n}-{i}": frozenset({n}) for n, (total, _) in counts.items() for i in range(total)
            }
            available = [f"{n}-{i}" for n, (_, left) in counts.items() for i in range(left)]
            found = hints(everything, available, (), asked) if len(available) >= asked else []
            proposals.append(found)
    return affinity(policy, list(totals), proposals)[1]


@pytest.mark.parametrize("policy", STRICT)
def test_a_pod_lacks_ids_where_the_kubelet_would_fail_it(policy: NumaPolicy) -> None:
    admitted = failed = 0
    totals = {number: Amount(2 * CORES_PER_CARD, 8 * GIB) for number in (0, 1, 4)}
    for seed in seeds(200):
        dice = random.Random(seed)
        held = {
            PodUid(f"p{n}"): {dice.choice((0, 1, 4)): Amount(dice.randint(1, 90), dice.randint(0, 12) * UNIT)}
            for n in range(dice.randint(0, 8))
        }
        ids = NumaIds(policy, totals, held, strayed=True)
        free = dict(ids.left(list(held)))
        cores = dice.choice((dice.randint(1, 99), 100, 200))
        memory = 0 if cores >= 100 else dice.randint(1, 20) * UNIT
        request = PodRequest(
            PodUid("new"), (ContainerRequest("c", ContainerKind.APP, 0, Request(cores, memory)),)
        )
        admits = kubelet_admits(policy, free, totals, Amount(cores, memory))
        assert (not ids.lack(request, list(held))) is admits, (seed, free, cores, memory)
        admitted, failed = admitted + admits, failed + (not admits)
    assert min(admitted, failed) > 3, "one of ten fails"


def _pod_of(dice: random.Random, name: str) -> dict[str, Any]:
    def asks(each: str, *, sidecar: bool = False) -> dict[str, Any]:
        return container(each, dice.randint(1, 45), dice.randint(1, 12), sidecar=sidecar)

    shape = dice.choice(("whole", "one", "two", "init", "inits", "side"))
    if shape == "whole":
        return rig_pod(name, container("a", dice.choice((100, 200)), 0))
    init = {
        "init": [asks("i")],
        "inits": [asks("i"), asks("j")],
        "side": [asks("s", sidecar=True), asks("i")],
    }.get(shape, [])
    return rig_pod(name, asks("a"), *([asks("b")] if shape == "two" else []), init=init)


@pytest.mark.parametrize("policy", STRICT)
def test_pods_of_several_containers_lack_ids_where_the_kubelet_would_fail_them(
    tmp_path: Path, policy: NumaPolicy
) -> None:
    """Against the stand-in's own admission, with whatever ids pods hold by then."""
    verdicts: Counter[bool] = Counter()
    for seed in seeds(6):
        dice = random.Random(seed)
        nodes = (0, 0, 1, 1, 4, 4)
        states = tuple(replace(s, card=replace(s.card, numa=nodes[s.card.index])) for s in cards(6, 8 * GIB))
        with DirectRig(tmp_path / str(seed), states, clock=FakeClock(), numa=policy, seed=seed) as rig:
            totals = {number: Amount(200, 16 * GIB) for number in (0, 1, 4)}
            for n in range(14):
                obj = _pod_of(dice, f"p{n}")
                held = {pod: _counted(rig, pod) for pod in rig.state.view.ledger.pods}
                request = judged_request(rig.parsed(obj), UNIT)
                lacks = bool(NumaIds(policy, totals, held, strayed=True).lack(request, list(held)))
                result = rig.admit(obj)
                if not result.admitted:
                    rig.delete(obj, force=True)
                    rig.state.forget_pod(PodUid(result.uid))
                if result.reason in ("", "TopologyAffinityError"):
                    assert lacks is bool(result.reason), (seed, n, obj["spec"], held)
                    verdicts[lacks] += 1
                if result.admitted:
                    rig.start(obj)
    assert min(verdicts[True], verdicts[False]) > 2, verdicts


def _counted(rig: DirectRig, uid: PodUid) -> dict[int, Amount]:
    """The ids that a pod's containers hold, by NUMA node."""
    numa = {s.card.uuid: s.card.numa or 0 for s in rig.states}
    found = dict.fromkeys((0, 1, 4), Amount(0, 0))
    for resource, one in ((CORE, Amount(1, 0)), (MEMORY, Amount(0, UNIT))):
        grants = (g for key, g in rig.state.view.grants.items() if key[0] == uid)
        for device in frozenset().union(*(g.ids.get(resource, frozenset()) for g in grants)):
            found[numa[rig.state.node.ids.card_of[resource][device]]] += one
    return found


def test_containers_take_ids_one_after_the_other_and_an_init_container_hands_its_on() -> None:
    ids = NumaIds(NumaPolicy.SINGLE, {0: Amount(100, 4 * GIB), 1: Amount(100, 4 * GIB)}, {}, strayed=True)

    def lack(*asked: tuple[ContainerKind, int]) -> bool:
        containers = tuple(
            ContainerRequest(str(n), kind, n, Request(cores, GIB)) for n, (kind, cores) in enumerate(asked)
        )
        return bool(ids.lack(PodRequest(PodUid("new"), containers), ()))

    app, init = ContainerKind.APP, ContainerKind.INIT
    assert not lack((app, 60), (app, 60))
    assert lack((app, 60), (app, 60), (app, 60))
    assert not lack((init, 90), (app, 90), (app, 90))
    assert not lack((app, 0), (app, 90))


def report(policy: NumaPolicy, *numbers: int | None) -> NodeReport:
    obj = on_numa_nodes(node("n1", len(numbers)), policy, *numbers)  # type: ignore[arg-type]
    return read_node(obj)


def test_a_node_whose_numa_nodes_are_not_known_is_not_counted() -> None:
    for numbers, counted in (((0, 0, 3, 3), True), ((0, 0, 0, 0), False), ((0, None, 3, 3), False)):
        there = report(NumaPolicy.SINGLE, *numbers)
        obj = lying("away", 2, 40, {0: (40, 4)})
        (books,) = cluster_books([there], [parse_pod(obj)])
        found = numa_ids(books.node, books.charges)
        assert (found is not None) is counted
        if found is not None:
            left = found.left([PodUid("uid-default-away")])
            assert left == ((0, Amount(160, 31 * GIB)), (3, Amount(200, 32 * GIB)))
            assert found.left(()) == ((0, Amount(200, 32 * GIB)), (3, Amount(200, 32 * GIB)))
