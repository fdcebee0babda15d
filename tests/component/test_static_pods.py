"""Static pods: the kubelet knows them by a digest, the API by the UID of a copy. The books go by the digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import ALLOCATION, Assignment, decode_assignment, encode_assignment
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.fakes.metrics import counts
from tests.fakes.node import NODE, NodeRig, pod
from tests.fakes.ports import FakeCards, FakeClock
from tests.fakes.static import DIGEST, MIRROR, mirror_of, static


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path, clock=FakeClock()) as node:
        yield node


def seen(obj: dict[str, Any]) -> Pod:
    """As our adapter shows it."""
    return parse_pod(obj).as_on_node()


def running(rig: NodeRig) -> dict[str, Any]:
    one = static()
    rig.pods.bind(seen(mirror_of(one)))
    assert rig.kubelet.admit(one).admitted
    rig.start(one)
    return one


def granted(rig: NodeRig) -> dict[tuple[str, str], str]:
    return {g.key: g.allocation.pod_key for g in rig.state.view.grants.values()}


def test_a_static_pod_that_has_no_mirror_yet_is_not_taken_for_a_deleted_one(rig: NodeRig) -> None:
    """The kubelet admits it first, and makes its copy in the API then: until then the API has no such pod."""
    assert rig.kubelet.admit(static()).admitted
    assert counts(rig.metrics.allocations) == {"unidentified": 2}


def test_a_static_pod_whose_mirror_was_deleted_is_there_all_the_same(rig: NodeRig) -> None:
    one = static()
    rig.pods.bind(seen(mirror_of(one)))
    rig.pods.forget(seen(mirror_of(one)).key)
    assert rig.kubelet.admit(one).admitted


def test_a_mirror_is_the_static_pod_that_it_copies() -> None:
    one = parse_pod(mirror_of(static()))
    assert (one.uid, one.twin, one.static, one.controlled) == (MIRROR, DIGEST, True, False)
    there = one.as_on_node()
    assert (there.uid, there.twin, there.api_uid) == (DIGEST, MIRROR, MIRROR)
    assert there.as_on_node() == there
    assert parse_pod(static()).static
    plain = parse_pod(pod("plain", uid=MIRROR))
    assert (plain.twin, plain.static, plain.api_uid) == ("", False, MIRROR)


@pytest.mark.parametrize(
    "forged",
    [
        {"kubernetes.io/config.mirror": "f" * 32},
        {"kubernetes.io/config.hash": ""},
        {
            "kubernetes.io/config.mirror": "11111111-1111-1111-1111-111111111111",
            "kubernetes.io/config.hash": "11111111-1111-1111-1111-111111111111",
        },
    ],
)
def test_what_only_claims_to_be_a_mirror_is_an_ordinary_pod(forged: dict[str, str]) -> None:
    """Above all it never goes by the UID of another pod of the API."""
    assert parse_pod(mirror_of(static(), **forged)).twin == ""


def test_a_mirror_belongs_to_its_node() -> None:
    other = mirror_of(static())
    other["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": NODE, "controller": True}]
    assert parse_pod(other).twin == ""


def test_a_static_pod_is_identified_granted_proven_and_named(rig: NodeRig) -> None:
    one = running(rig)
    assert granted(rig) == {(DIGEST, "c"): f"default/web-{NODE}"}
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}
    assert counts(rig.metrics.association_corrected) == {}
    written = decode_assignment(rig.pods.annotations[PodUid(DIGEST)][ALLOCATION])
    assert written is not None
    assert written.pod == MIRROR, "the scheduler compares it with the object in the API"
    (card,) = rig.cards_of(one, "c")
    assert written.containers["c"][0][0] == rig.states[card].card.uuid


def test_its_own_annotation_is_followed_after_all_books_are_lost(rig: NodeRig) -> None:
    one = static()
    chosen = {"c": ((rig.states[5].card.uuid, replace(rig.states[5].card.capacity(GIB), cores=30)),)}
    rig.pods.bind(seen(mirror_of(one, **{ALLOCATION: _assigned(MIRROR, chosen)})))
    assert rig.kubelet.admit(one).admitted
    assert rig.cards_of(one, "c") == (5,)


def _assigned(uid: str, chosen: Any) -> str:
    return encode_assignment(Assignment(NODE, uid, chosen))


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_admitted_before_its_mirror_exists_is_known_at_its_start(
    tmp_path: Path, seed: int
) -> None:
    """Without the kubelet's own list nobody knows the pod yet; its start proves it, its mirror names it."""
    with NodeRig(tmp_path, clock=FakeClock(), seed=seed) as rig:
        one = static()
        result = rig.kubelet.admit(one)
        assert result.admitted, result.message
        rig.start(one)
        assert granted(rig) == {(DIGEST, "c"): DIGEST}
        (limit,) = rig.limits(result, "c")
        assert (limit.cores, limit.memory) == (30, 2 * GIB)
        booked = [a.shares for a in rig.state.view.ledger]
        assert [(s.amount.cores, s.amount.memory) for (s,) in booked] == [(30, 2 * GIB)]
        rig.state.introduce(seen(mirror_of(one)))
        assert granted(rig) == {(DIGEST, "c"): f"default/web-{NODE}"}


def test_its_use_is_counted_by_the_cgroup_that_the_kubelet_made(rig: NodeRig) -> None:
    one = running(rig)
    shown = mirror_of(
        {**one, "status": {"containerStatuses": [{"name": "c", "containerID": "x://" + "a" * 64}]}}
    )
    rig.pods.bind(seen(shown))
    card = rig.states[rig.cards_of(one, "c")[0]].card.uuid
    rig.processes.containers[77] = (PodUid(DIGEST), "a" * 64)
    figures = FakeCards(rig.states, processes=[ProcessUse(card, 77, memory=GIB)])
    usage = UsageSampler(
        rig.state, figures, rig.pods, rig.tenants, rig.processes, rig.clock, rig.metrics
    ).sample()
    assert [p.pid for p in usage.processes[(PodUid(DIGEST), "c"), card]] == [77]


def test_it_outlives_agent_restarts_and_its_mirror_and_goes_when_the_kubelet_forgets_it(rig: NodeRig) -> None:
    one = running(rig)
    cards = rig.cards_of(one, "c")
    rig.restart_agent()
    assert rig.cards_of(one, "c") == cards
    rig.pods.forget(f"default/web-{NODE}")  # kubectl delete: the kubelet makes a new copy
    _rounds(rig)
    assert rig.cards_of(one, "c") == cards, "the kubelet's books show it"
    rig.kubelet.delete(DIGEST)
    _rounds(rig)
    assert granted(rig) == {}


def _rounds(rig: NodeRig) -> None:
    assert isinstance(rig.clock, FakeClock)
    rig.clock.pass_(SETTLE_SECONDS + 5)
    for _ in range(3):
        rig.clock.pass_(30)
        rig.reclaimer.round()
        rig.stranded.look()


def test_a_static_pod_without_ids_is_told_how_to_get_some(tmp_path: Path) -> None:
    """It is in the kubelet's directory when the node starts, before our resources exist."""
    rig = NodeRig(tmp_path, clock=FakeClock())
    rig.kubelet.start()
    one = static()
    assert rig.kubelet.admit(one).admitted
    rig.kubelet.start_container(DIGEST, "c")
    started = {**one, "status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}}
    rig.pods.bind(seen(mirror_of(started)))
    rig.start_agent()
    try:
        _rounds(rig)
        (event,) = [text for _, reason, text in rig.pods.events if reason == "VcudaStranded"]
        assert "move the pod's manifest" in event
        assert rig.pods.evicted == []
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_a_forged_mirror_does_not_keep_what_a_static_pod_held(rig: NodeRig) -> None:
    """Its digest is no secret: whoever may create pods can copy it into a pod that never goes."""
    one = running(rig)
    rig.delete(one)
    forged = mirror_of(static("evil-n1"))
    rig.pods.bind(seen(forged))
    assert any(f.pod.uid == DIGEST and not f.tombstone for named in rig.pods.local().values() for f in named)
    assert isinstance(rig.clock, FakeClock)
    rig.clock.pass_(SETTLE_SECONDS + 5)
    for _ in range(3):
        rig.reclaimer.round()
    assert granted(rig) == {}
