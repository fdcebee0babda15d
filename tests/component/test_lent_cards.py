"""Whole cards under NVIDIA's name beside fractions under ours: one ledger, no card promised twice (ADR 4)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA, NVIDIA_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import AdmissionResult, Step
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, FakeInjector, cards
from tests.seeds import seeds

Held = dict[str, tuple[int, ...]]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, cards(4), lending=True, clock=FakeClock()) as node:
        yield node


def nvidia(name: str, *counts: int, init: int = 0, **more: Any) -> dict[str, Any]:
    """A pod as it is written for NVIDIA's plugin: containers ``c0``, ``c1``, …"""
    return pod(
        name,
        *(_asking(f"c{n}", count) for n, count in enumerate(counts)),
        init=[_asking("init", init)] if init else (),
        **more,
    )


def _asking(name: str, count: int) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {NVIDIA: count}} if count else {}}


def offered(rig: NodeRig) -> dict[str, int]:
    return {resource: rig.kubelet.allocatable().get(resource, 0) for resource in (CORE, MEMORY, NVIDIA)}


def awaits(rig: NodeRig, **wanted: int) -> None:
    """Healthy ids at the kubelet: cores of which the cards are free of NVIDIA's pods, and idle cards."""
    rig.until(lambda: (offered(rig)[CORE], offered(rig)[NVIDIA]) == (wanted["core"], wanted["gpu"]))
    rig.kubelet.publish_node()


def run(rig: NodeRig, obj: dict[str, Any]) -> AdmissionResult:
    result = rig.admit(obj)
    assert result.admitted, result.message
    for name in result.containers:
        rig.kubelet.start_container(obj["metadata"]["uid"], name)
    rig.pods.bind(rig.parsed(rig.kubelet.pod(obj["metadata"]["uid"])))
    return result


def exclusive(rig: NodeRig) -> None:
    """No card has a holder under NVIDIA's name and any other; and the kubelet is offered no such card."""
    books = [
        (g.allocation.pod, c, NVIDIA in g.ids)
        for g in rig.state.view.grants.values()
        for c in g.allocation.cards
    ]
    for state in rig.states:
        here = {(uid, lent) for uid, card, lent in books if card == state.card.uuid}
        assert len(here) <= 1 or not any(lent for _, lent in here), here
        free = rig.state.view.ledger.free(state.card.uuid)  # type: ignore[misc]
        assert free.cores >= 0
        assert free.memory >= 0


def test_a_pod_of_each_kind_runs_and_the_kubelet_counts_each_card_once(rig: NodeRig) -> None:
    assert (rig.kubelet.capacity()[CORE], rig.kubelet.capacity()[NVIDIA]) == (400, 4)
    fraction = pod("fraction", container("c", 30, 8))
    run(rig, fraction)
    (part,) = rig.cards_of(fraction, "c")
    awaits(rig, core=400, gpu=3)
    old = nvidia("written-for-nvidia", 2)
    result = run(rig, old)
    whole = rig.cards_of(old, "c0")
    assert len(whole) == 2
    assert part not in whole
    named = {rig.states[i].card.uuid for i in whole}
    assert result.ids["c0"] == {NVIDIA: named}, "the id is the card's UUID, as NVIDIA's own plugin has it"
    assert set(result.containers["c0"].envs["VCUDA_CARDS"].split(",")) == named
    awaits(rig, core=200, gpu=3)  # the idle one and the two in use; those of the pod stay healthy
    rig.until(lambda: offered(rig)[MEMORY] == 2 * 64)  # a list of its own, that may come last
    exclusive(rig)
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}
    third = nvidia("third", 1)
    run(rig, third)
    assert not rig.admit(nvidia("fourth", 1)).admitted
    full = rig.admit(pod("whole", container("c", 100, 0)))
    assert not full.admitted
    exclusive(rig)


def test_fractions_never_go_to_a_card_that_an_nvidia_pod_has(rig: NodeRig) -> None:
    old = nvidia("old", 3)
    run(rig, old)
    awaits(rig, core=100, gpu=4)
    (left,) = {0, 1, 2, 3} - set(rig.cards_of(old, "c0"))
    for n in range(3):
        one = pod(f"p{n}", container("c", 30, 8), on={"c": [(rig.states[(left + 1) % 4], 30, 2 * GIB)]})
        run(rig, one)
        assert rig.cards_of(one, "c") == (left,), "the assignment to a card that is lent yields"
    assert not rig.admit(pod("p3", container("c", 30, 8))).admitted
    exclusive(rig)


def test_a_card_goes_over_to_the_other_name_when_its_pods_are_gone(rig: NodeRig) -> None:
    old, fractions = nvidia("old", 4), [pod(f"p{n}", container("c", 60, 8)) for n in range(4)]
    run(rig, old)
    awaits(rig, core=0, gpu=4)
    rig.delete(old)
    _rounds(rig)
    awaits(rig, core=400, gpu=4)
    for one in fractions:
        run(rig, one)
    awaits(rig, core=400, gpu=0)
    for one in fractions[:2]:
        rig.delete(one)
    _rounds(rig)
    awaits(rig, core=400, gpu=2)
    run(rig, nvidia("new", 1, 1))
    exclusive(rig)


def _rounds(rig: NodeRig) -> None:
    assert isinstance(rig.clock, FakeClock)
    rig.clock.pass_(SETTLE_SECONDS + 5)
    for _ in range(3):
        rig.reclaimer.round()


def test_the_kubelets_choice_of_a_card_in_use_is_refused_with_the_reason(rig: NodeRig) -> None:
    """Between the booking and the kubelet's next look at our list it may still choose such a card."""
    fraction = pod("fraction", container("c", 30, 8), on={"c": [(rig.states[2], 30, 2 * GIB)]})
    run(rig, fraction)
    ids = [rig.states[2].card.uuid]
    channel = grpc.insecure_channel(unix_target(rig.kubelet.device_plugins / NVIDIA_SOCKET))
    with channel, pytest.raises(grpc.RpcError) as refused:
        api_pb2_grpc.DevicePluginStub(channel).Allocate(
            api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)])
        )
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "card 2" in refused.value.details()
    exclusive(rig)


def test_a_pod_whose_card_was_taken_between_question_and_grant_is_refused(rig: NodeRig) -> None:
    """Another pod is booked there meanwhile, from the API: the ledger decides, not the id."""
    old = nvidia("old", 4)
    rival = pod("rival", container("c", 30, 8), on={"c": [(rig.states[1], 30, 2 * GIB)]})

    def book(step: Step) -> None:
        if step.name == "resource" and step.resource == NVIDIA:
            rig.pods.bind(parse_pod(rival))
            rig.state.introduce(parse_pod(rival))

    rig.kubelet.hooks.before = book
    result = rig.admit(old)
    assert not result.admitted
    assert "card 1" in result.message
    exclusive(rig)


@pytest.mark.parametrize("lost", [False, True])
def test_restarts_of_agent_and_kubelet_change_nothing(rig: NodeRig, lost: bool) -> None:
    old, fraction = nvidia("old", 2), pod("fraction", container("c", 30, 8))
    run(rig, old)
    run(rig, fraction)
    before = rig.cards_of(old, "c0"), rig.cards_of(fraction, "c")
    for _ in range(2):
        if lost:
            rig.store.state = None
        rig.restart_agent()
        assert (rig.cards_of(old, "c0"), rig.cards_of(fraction, "c")) == before
        awaits(rig, core=200, gpu=3)
    rig.kubelet.restart()
    rig.await_registered()
    assert all(result.admitted for result in rig.kubelet.resume())
    assert (rig.cards_of(old, "c0"), rig.cards_of(fraction, "c")) == before
    rig.kubelet.start_container(old["metadata"]["uid"], "c0")  # a restart of the container is proven too
    exclusive(rig)


def test_books_lost_with_the_checkpoint_come_back_from_the_listing(rig: NodeRig) -> None:
    old = nvidia("old", 2)
    run(rig, old)
    before = rig.cards_of(old, "c0")
    rig.store.state = None
    rig.stop_agent()
    rig.kubelet.checkpoint_path.unlink()
    rig.start_agent()
    assert rig.cards_of(old, "c0") == before
    assert rig.state.offer.lent == {rig.states[i].card.uuid for i in before}


def test_containers_of_one_pod_wait_for_their_cards_in_turn(rig: NodeRig) -> None:
    """What is planned for the second one does not look taken to the kubelet while the first one is granted."""
    old = nvidia("old", 1, 1, 2)

    def wait(step: Step) -> None:
        if step.name == "Allocate":
            rig.plugin.announce()
            rig.kubelet.wait({NVIDIA: 4})

    rig.kubelet.hooks.after = wait
    run(rig, old)
    assert sorted(c for n in ("c0", "c1", "c2") for c in rig.cards_of(old, n)) == [0, 1, 2, 3]


def test_an_init_container_hands_its_card_on(rig: NodeRig) -> None:
    old = nvidia("old", 1, init=1)
    run(rig, old)
    assert rig.cards_of(old, "c0") == rig.cards_of(old, "init")
    exclusive(rig)


def test_a_cordoned_card_is_offered_under_neither_name_to_newcomers(rig: NodeRig) -> None:
    rig.state.refit([replace(s, cordoned=s.card.index == 0) for s in rig.states], rig.state.node.topology)
    rig.plugin.announce()
    rig.until(lambda: offered(rig)[NVIDIA] == 3)
    rig.kubelet.publish_node()
    run(rig, nvidia("old", 3))
    assert not rig.admit(nvidia("more", 1)).admitted


def test_a_pod_that_mixes_both_names_is_refused(rig: NodeRig) -> None:
    mixed = nvidia("mixed", 1)
    mixed["spec"]["containers"].append(container("ours", 30, 8))
    result = rig.admit(mixed)
    assert not result.admitted
    _rounds(rig)
    assert len(rig.state.view.ledger) == 0


def test_without_the_option_nvidias_pods_are_none_of_our_business(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(2), clock=FakeClock()) as rig:
        assert NVIDIA not in rig.kubelet.capacity()
        assert not (rig.kubelet.device_plugins / NVIDIA_SOCKET).exists()
        rig.kubelet.set_foreign(NVIDIA, 2)
        rig.kubelet.publish_node()
        other = nvidia("other", 1)
        assert rig.admit(other).admitted
        rig.start(other)
        rig.pods.bind(rig.parsed(rig.kubelet.pod(other["metadata"]["uid"])))
        _rounds(rig)
        assert len(rig.state.view.ledger) == 0
        assert rig.pods.events == []


@pytest.mark.parametrize("seed", seeds(3))
def test_any_mix_of_both_names_with_faults_books_no_card_twice(tmp_path: Path, seed: int) -> None:
    """Pods of both kinds come and go, calls fail in between, agent and kubelet restart; the judge is the
    kubelet's side: the cards in the answers that it was handed.
    """
    chance = random.Random(seed)
    with NodeRig(tmp_path, cards(4), lending=True, clock=FakeClock(), seed=seed) as rig:
        alive: dict[str, tuple[dict[str, Any], Held, bool]] = {}
        for number in range(40):
            lent = chance.random() < 0.4
            shape = chance.choice((10, 30, 60, 100))
            one = (
                nvidia(f"n{number}", *chance.choice(((1,), (2,), (1, 1))))
                if lent
                else pod(f"f{number}", container("c", shape, 8 if shape < 100 else 0))
            )
            if chance.random() < 0.15:
                rig.kubelet.hooks.before = _refusing(one, chance.randrange(3))
            result = rig.admit(one)
            rig.kubelet.hooks.before = lambda _step: None
            if result.admitted:
                rig.start(one)
                answers = {n: c.envs["VCUDA_CARDS"].split(",") for n, c in result.containers.items()}
                index = {s.card.uuid: s.card.index for s in rig.states}
                held = {n: tuple(index[u] for u in uuids) for n, uuids in answers.items()}  # type: ignore[index]
                alive[one["metadata"]["uid"]] = (one, held, lent or shape == 100)
            else:
                rig.delete(one)
            _judge(alive)
            exclusive(rig)
            for uid in [uid for uid in alive if chance.random() < 0.2]:
                rig.delete(alive.pop(uid)[0])
            if chance.random() < 0.2:
                rig.restart_agent()
            elif chance.random() < 0.1:
                rig.kubelet.restart()
                rig.await_registered()
                assert all(one.admitted for one in rig.kubelet.resume())
            if chance.random() < 0.5:
                _rounds(rig)
            rig.kubelet.publish_node()
        for uid in list(alive):
            rig.delete(alive.pop(uid)[0])
        _rounds(rig)
        awaits(rig, core=400, gpu=4)


def _refusing(obj: dict[str, Any], after: int) -> Any:
    left = [after]

    def refuse(step: Step) -> None:
        if step.name == "resource" and step.pod == obj["metadata"]["uid"]:
            left[0] -= 1
            if left[0] < 0:
                raise NodeUnready("another manager has no room")

    return refuse


def _judge(alive: dict[str, tuple[dict[str, Any], Held, bool]]) -> None:
    whole: list[int] = []
    parts: set[int] = set()
    for _, held, alone in alive.values():
        for found in held.values():
            whole += found if alone else ()
            parts |= set() if alone else set(found)
    assert len(whole) == len(set(whole)), "a whole card has one holder"
    assert not parts & set(whole), "and no fraction"


def test_uids_stay_apart(rig: NodeRig) -> None:
    """The grant of a pod written for NVIDIA's plugin is proven by its own resource."""
    old = nvidia("old", 1)
    run(rig, old)
    (key,) = list(rig.state.view.grants)
    assert key == (PodUid(old["metadata"]["uid"]), "c0")
    assert [g.proven for g in rig.state.view.grants.values()] == [True]
    assert [reason for _, reason, _ in rig.pods.events] == ["VcudaAllocated"]


class NvidiasOwn(FakeInjector):
    """Answers as NVIDIA's plugin does: nothing of ours is in it."""

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        return replace(super().inject(name, shares, pod, annotation), annotations={})


def test_a_container_that_nvidias_own_plugin_started_can_start_again(rig: NodeRig) -> None:
    """The node went over to the option with pods on it: the kubelet's checkpoint has that plugin's answer."""
    ours, rig.injector = rig.injector, NvidiasOwn()
    rig.restart_agent()
    awaits(rig, core=400, gpu=4)
    old = nvidia("old", 2)
    assert rig.admit(old).admitted
    held = {rig.states[i].card.uuid for i in rig.cards_of(old, "c0")}
    rig.injector, rig.store.state = ours, None
    rig.restart_agent()
    assert [g.directory for g in rig.state.view.grants.values()] == [""]
    rig.kubelet.start_container(old["metadata"]["uid"], "c0")
    assert rig.state.offer.lent == held
    exclusive(rig)
