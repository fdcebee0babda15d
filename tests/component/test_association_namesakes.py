"""Names used again while the kubelet lags behind the API, which alone is asked; and sources that do not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.admission_match import ContainerCandidate, PreferenceCall
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.records import PodResourcesEntry
from gpu_manager.services.allocation.association import Association, Hints, Identification
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.reclaim import DepartedPods
from sandbox.kubelet import AdmissionResult
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses, cards
from tests.fakes.state import put, state_of


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        yield node


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def directory(result: AdmissionResult, name: str = "c") -> str:
    mount = next(m for m in result.containers[name].mounts if m.container_path == "/etc/vcuda/limits")
    return Path(mount.host_path).parent.name


def overtaken(rig: NodeRig, old: dict[str, Any], new: dict[str, Any]) -> None:
    """The old pod was deleted by force and its successor bound; the kubelet has yet to admit the old one."""
    rig.pods.bind(rig.parsed(old))
    rig.pods.forget("default/same")
    rig.pods.bind(rig.parsed(new))


@pytest.mark.parametrize("shape", [(30, 20), (30, 8)])
def test_what_was_given_to_a_forgotten_namesake_is_not_shared_with_it(
    rig: NodeRig, shape: tuple[int, int]
) -> None:
    old, new = (pod("same", container("c", *shape), on={"c": [(rig.states[3], 30, GIB)]}) for _ in range(2))
    overtaken(rig, old, new)
    first = rig.kubelet.admit(old)
    assert first.admitted, first.message
    rig.kubelet.delete(uid(old), force=True)
    rig.kubelet.reap(uid(old))
    second = rig.kubelet.admit(new)
    assert second.admitted, second.message
    assert directory(first) != directory(second), "a running container's pages are nobody else's"
    rig.start(new)
    held = {key: dict(g.ids) for key, g in rig.state.view.grants.items()}
    assert held == {(uid(new), "c"): dict(second.ids["c"])}
    left = frozenset().union(*first.ids["c"].values()) - frozenset().union(*second.ids["c"].values())
    assert rig.state.owners(left) == set()


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shape", [(40, 20), (20, 8), (30, 8), (20, 20), (100, 0)])
def test_a_deleted_pod_whose_name_is_used_again_is_not_placed(
    rig: NodeRig, shape: tuple[int, int], order: Any, *, first: bool
) -> None:
    """Its room is given to others. The kubelet admits it before its namesake, which asks for another amount,
    or, with ``first``, after it.
    """
    rig.kubelet.hooks.order = order
    cores, units = shape
    old = pod("same", container("c", 30, 20), on={"c": [(rig.states[3], 30, 20 * DEFAULT_UNIT)]})
    share = (rig.states[5], cores, units * DEFAULT_UNIT or rig.states[5].card.memory)
    new = pod("same", container("c", cores, units), on={"c": [share]})
    overtaken(rig, old, new)
    heir = pod("heir", container("c", 90, 20), on={"c": [(rig.states[3], 90, 20 * DEFAULT_UNIT)]})
    rig.pods.bind(rig.parsed(heir))
    placed = rig.kubelet.admit(new) if first else None
    ghost = rig.kubelet.admit(old)
    assert not ghost.admitted
    assert "was deleted before the kubelet admitted it" in ghost.message
    rig.kubelet.delete(uid(old), force=True)
    rig.kubelet.reap(uid(old))
    placed = placed or rig.kubelet.admit(new)
    assert placed.admitted, placed.message
    assert rig.kubelet.admit(heir).admitted
    rig.start(new)
    assert (rig.cards_of(new, "c"), rig.cards_of(heir, "c")) == ((5,), (3,))
    assert rig.state.view.grants[uid(new), "c"].ids == placed.ids["c"]
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}
    assert counts(rig.metrics.association_corrected) == {}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("older", "newer"), [("c", "ab"), ("ab", "c"), ("a", "ab"), ("ab", "a")])
def test_a_deleted_pod_is_not_placed_whose_name_has_one_of_other_containers(
    rig: NodeRig, older: str, newer: str, *, first: bool
) -> None:
    old, new = (
        pod(
            "same",
            *(container(name, cores, 20) for name in names),
            on={name: [(rig.states[at], cores, 5 * GIB)] for name in names},
        )
        for names, cores, at in ((older, 30, 3), (newer, 20, 5))
    )
    overtaken(rig, old, new)
    placed = rig.kubelet.admit(new) if first else None
    assert not rig.kubelet.admit(old).admitted
    rig.kubelet.delete(uid(old))
    placed = placed or rig.kubelet.admit(new)
    assert placed.admitted, placed.message
    assert [rig.cards_of(new, name) for name in newer] == [(5,)] * len(newer)
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
@pytest.mark.parametrize("other", ["c", "cd"])
def test_a_deleted_pod_is_refused_that_the_agent_never_saw(
    rig: NodeRig, other: str, order: Any, *, first: bool
) -> None:
    """It was deleted before the agent began, or the watch has yet to show it. Its name is another's."""
    rig.kubelet.hooks.order = order
    old = pod("same", *(container(name, 40, 24) for name in other))
    new = pod("same", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
    rig.pods.bind(rig.parsed(new))
    placed = rig.kubelet.admit(new) if first else None
    refused = rig.kubelet.admit(old)
    assert not refused.admitted
    assert "was deleted before the kubelet admitted it" in refused.message
    rig.kubelet.delete(uid(old), force=True)
    rig.kubelet.reap(uid(old))
    placed = placed or rig.kubelet.admit(new)
    assert placed.admitted, placed.message
    rig.start(new)
    assert rig.cards_of(new, "c") == (5,)
    assert {owner for owner, _ in rig.state.view.grants} == {uid(new)}


def test_what_a_pod_was_granted_is_not_taken_from_it_for_an_equal_one_that_had_its_name(rig: NodeRig) -> None:
    """The kubelet lists both, the older one without device ids."""
    old, new = (pod("same", container("c", 30, 20), on={"c": [(rig.states[i], 30, 5 * GIB)]}) for i in (3, 5))
    overtaken(rig, old, new)
    placed = rig.kubelet.admit(new)
    rig.start(new)
    grant = rig.state.view.grants[uid(new), "c"]
    assert not rig.kubelet.admit(old).admitted
    assert rig.state.view.grants[uid(new), "c"] == grant
    assert rig.state.owners(frozenset().union(*placed.ids["c"].values())) == {uid(new)}


class Binding(FakePods):
    """A watch that shows ``coming``, and has it planned, right after somebody has looked."""

    coming: Pod | None = None
    state: NodeState

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        answer = super().local()
        if self.coming is not None:
            coming, self.coming = self.coming, None
            self.bind(coming)
            self.state.introduce(coming)
        return answer


def test_a_pod_that_is_planned_during_a_question_for_another_keeps_its_room() -> None:
    """Else the next one that the agent places by itself takes it, and this one goes elsewhere."""
    states, pods = cards(1), Binding()
    asking = parse_pod(pod("asking", container("c", 30, 20)))
    pods.bind(asking)
    pods.state = state_of(states)
    pods.coming = parse_pod(pod("coming", container("c", 30, 20), on={"c": [(states[0], 30, 5 * GIB)]}))
    answer = Identification(ContainerCandidate(asking, asking.containers[0]), frozenset(), frozenset())
    departures = DepartedPods(pods.state, pods, FakeProcesses())
    coming = pods.coming.uid
    for _ in range(2):
        departures.observe(answer, ())
        assert pods.state.view.ledger.pods == (coming,)


def test_a_planned_pod_keeps_its_room_when_a_deleted_one_of_its_name_has_been_refused() -> None:
    """The kubelet listed the deleted one under that name, and has yet to admit the one that lives."""
    states, pods = cards(1), FakePods()
    old, new, asking = (
        parse_pod(pod(name, container("c", 30, 20), on={"c": [(states[0], 30, 5 * GIB)]}))
        for name in ("same", "same", "asking")
    )
    pods.bind(old)
    pods.forget(old.key)
    pods.bind(new)
    pods.bind(asking)
    state = state_of(states)
    state.introduce(new)
    departures = DepartedPods(state, pods, FakeProcesses())
    answer = Identification(ContainerCandidate(asking, asking.containers[0]), frozenset(), frozenset())
    departures.observe(replace(answer, active=frozenset({("default", "same")})), ())
    departures.observe(answer, ())
    assert state.view.ledger.pods == (new.uid,)
    pods.forget(new.key)
    departures.observe(answer, ())
    assert state.view.ledger.pods == ()


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
@pytest.mark.parametrize("asked", [(8, 20, 8), (8, 20, 20), (20, 8, 8), (20, 8, 20), (8, 8, 8)])
def test_no_container_starts_with_the_limits_of_another(
    rig: NodeRig, asked: tuple[int, int, int], order: Any
) -> None:
    """The newer namesake has no init container: what the older one's is given looks like its own."""
    rig.kubelet.hooks.order = order
    init, app, other = asked
    old = pod("same", container("c", 30, app), init=[container("i", 30, init)])
    new = pod("same", container("c", 30, other))
    overtaken(rig, old, new)
    rig.pods.known = {"default/same": [KnownPod(rig.parsed(new))]}
    result = rig.kubelet.admit(old)
    refused: list[str] = []
    if not result.admitted:
        assert "was deleted before the kubelet admitted it" in result.message
        rig.kubelet.delete(uid(old))
        result = rig.kubelet.admit(new)
        rig.start(new)
        assert [limit.memory for limit in rig.limits(result, "c")] == [other * DEFAULT_UNIT]
        return
    for name, units in (("i", init), ("c", app)):
        try:
            rig.kubelet.start_container(uid(old), name)
        except NodeUnready as error:
            refused.append(str(error))
            continue
        assert [limit.memory for limit in rig.limits(result, name)] == [units * DEFAULT_UNIT]
    assert all("its limits are another container's too" in text for text in refused)
    assert not refused or init != app


def test_the_page_that_the_kubelet_mounts_has_the_limits_whatever_the_books_took_it_for(rig: NodeRig) -> None:
    """A pod that was taken for its namesake in part: the answers went to its containers the wrong way round."""
    one = pod("one", container("c", 30, 20), init=[container("i", 30, 8)])
    result = rig.admit(one)
    keys = [(uid(one), name) for name in "ic"]

    init, app = (rig.state.view.grants[key] for key in keys)
    put(rig.state, replace(init, directory=app.directory), replace(app, directory=init.directory))
    rig.start(one)
    assert [rig.limits(result, name)[0].memory for name in "ic"] == [2 * GIB, 5 * GIB]
    held = [rig.state.view.grants[key].directory for key in keys]
    assert held == [directory(result, name) for name in "ic"]


def test_a_whole_card_of_a_namesake_that_is_not_gone_yet_is_not_given_away(tmp_path: Path) -> None:
    """It is listed under the name that the API knows another pod by; a question for memory names none of it."""
    with NodeRig(tmp_path, cards(2)) as rig:
        rig.kubelet.hooks.order = lambda resources: sorted(resources, reverse=True)
        old = pod("same", container("c", 100, 0))
        assert rig.admit(old).admitted
        assert rig.cards_of(old, "c") == (0,)
        rig.pods.forget("default/same")
        rig.pods.bind(rig.parsed(pod("same", container("c", 10, 4))))
        other = pod("other", container("c", 10, 4))
        assert rig.admit(other).admitted
        assert (rig.cards_of(old, "c"), rig.cards_of(other, "c")) == ((0,), (1,))


@pytest.mark.parametrize("seen", [False, True])
def test_ids_that_are_offered_though_an_active_pod_is_listed_with_them_have_not_come_back(
    seen: bool,
) -> None:
    """Another client's listing makes the kubelet forget ids in flight; the API knows a namesake already."""
    old, new, asking = (parse_pod(pod(name, container("c", 30, 20))) for name in ("same", "same", "next"))
    pods, states = FakePods(), cards(1)
    share = Share(states[0].card.uuid, Amount(30, 5 * GIB))
    allocation = Allocation(old.uid, "c", ContainerKind.APP, 0, (share,), old.namespace, old.name)
    state = state_of(states, Grant(allocation, "d", ids={CORE: frozenset("ab")}))
    departures = DepartedPods(state, pods, FakeProcesses())
    answer = Identification(
        ContainerCandidate(asking, asking.containers[0]),
        frozenset({("default", "same"), ("default", "next")}),
        frozenset(),
        held=dict.fromkeys("ab", ("default", "same")),
    )
    if seen:
        pods.bind(old)
        assert departures.observe(answer, frozenset()) == frozenset()
    pods.bind(new)
    pods.bind(asking)
    assert departures.observe(answer, frozenset("abcd")) == frozenset()
    assert state.view.ledger.pods == (old.uid,)
    left = replace(answer, held={}, active=frozenset({("default", "next")}))
    departures.observe(left, frozenset("abcd"))
    assert len(state.view.ledger) == 0, "now it has ended"


class Listing:
    """A kubelet that lists what the test says."""

    def __init__(self, *listed: PodResourcesEntry) -> None:
        self.listed = listed

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        found: dict[tuple[str, str], tuple[PodResourcesEntry, ...]] = {}
        for one in self.listed:
            found[one.namespace, one.pod] = (*found.get((one.namespace, one.pod), ()), one)
        return found

    def checkpoint(self) -> None:
        return None


def listed(name: str, **ids: str) -> PodResourcesEntry:
    resources = {"core": CORE, "memory": MEMORY}
    return PodResourcesEntry(
        "default", name, "c", {resources[r]: frozenset(text.split()) for r, text in ids.items()}
    )


def identify(
    pods: FakePods, *lists: PodResourcesEntry, resource: str = CORE, never: frozenset[PodUid] = frozenset()
) -> Identification:
    association = Association(Listing(*lists), pods, FakeClock(), service_metrics(), "n1")
    question = PreferenceCall(resource, 30 if resource == CORE else 20)
    return association.identify(question, Hints(lambda *_: frozenset(), never))


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_active_pods_of_one_name_the_one_that_lacks_something_is_meant(swapped: bool) -> None:
    pods, new = FakePods(), parse_pod(pod("same", container("c", 30, 20)))
    pods.bind(new)
    both = [listed("same", core="a b", memory="x"), listed("same", core="d e")]
    answer = identify(pods, *(reversed(both) if swapped else both), resource=MEMORY)
    assert answer.candidate is not None
    assert answer.candidate.pod.uid == new.uid
    assert answer.has == {CORE: frozenset("de")}
    assert set(answer.held) == set("abdex")


@pytest.mark.parametrize("reason", ["deleted", "static", "silent", "many", "there"])
def test_a_pod_was_deleted_if_nobody_who_is_listed_without_ids_asks_for_this(reason: str) -> None:
    """A static pod may have no copy in the API yet, and one of many, or behind an error, may be the one."""
    pods, asked = FakePods(), {"there": 30}.get(reason, 10)
    names = {"static": ["same-n1"], "many": [f"p{n}" for n in range(9)]}.get(reason, ["same"])
    for name in names:
        pods.bind(parse_pod(pod(name, container("a", 10, 4), container("c", asked, 20))))
    pods.away = reason == "silent"
    lists = [replace(listed(name), container=c) for name in names for c in "ac"]
    answer = identify(pods, *lists)
    assert (answer.candidate, answer.deleted) == (None, reason == "deleted")


class Late(FakePods):
    """A watch that shows a pod once somebody has asked for it: ``next``, which is deleted by then."""

    next: Pod | None = None

    def fetch(self, namespace: str, name: str) -> Pod | None:
        if self.next is not None:
            self.known = {self.next.key: [KnownPod(self.next)]}
        return super().fetch(namespace, name)


def test_a_deleted_pod_is_known_whose_end_the_watch_has_yet_to_show() -> None:
    first, old, new = (parse_pod(pod("same", container("c", n, 20))) for n in (10, 30, 20))
    pods = Late()
    pods.there, pods.known, pods.next = {new.key: new}, {first.key: [KnownPod(first)]}, old
    answer = identify(pods, listed("same"))
    assert answer.candidate is not None
    assert (answer.candidate.pod.uid, answer.deleted) == (old.uid, True)
    assert answer.never == frozenset(), "the newer one has yet to come"


def test_a_source_that_does_not_answer_is_asked_once_for_a_question() -> None:
    """The kubelet waits, and admits nobody else: seconds for each of a hundred names would be minutes."""
    pods, known = FakePods(away=True), parse_pod(pod("known", container("c", 30, 20)))
    strangers = [listed(f"stranger-{i}") for i in range(100)]
    assert identify(pods, *strangers).candidate is None
    assert pods.fetches == 1
    pods.known = {known.key: [KnownPod(known)]}
    answer = identify(pods, *strangers, listed("known"))
    assert pods.fetches == 2
    assert answer.candidate is not None, "under its first admission, as the watch shows it"
    assert answer.candidate.pod == known


def test_who_has_left_is_asked_of_a_silent_source_once() -> None:
    states, pods = cards(1), FakePods(away=True)
    share = Share(states[0].card.uuid, Amount(10, GIB))
    held = [
        Allocation(PodUid(f"u{n}"), "c", ContainerKind.APP, 0, (share,), "default", f"p{n}") for n in range(8)
    ]
    state = state_of(states, *(Grant(a, a.pod_name) for a in held))
    departures = DepartedPods(state, pods, FakeProcesses())
    departures.observe(Identification(None, frozenset(), frozenset()), ())
    assert (pods.fetches, len(state.view.ledger)) == (1, 8)
    pods.away = False
    departures.observe(Identification(None, frozenset(), frozenset()), ())
    assert len(state.view.ledger) == 0


def test_all_pods_that_occupy_the_scheduler_s_card_are_asked_for_before_another_card_is_taken() -> None:
    """More than one call asks for otherwise; the pods on another card come first in the books."""
    states, pods, processes = cards(2), FakePods(), FakeProcesses()
    held = [
        Allocation(PodUid(f"u{n}"), "c", ContainerKind.APP, 0, (share,), "default", f"p{n}")
        for n in range(20)
        if (share := Share(states[n // 10].card.uuid, Amount(10, GIB)))
    ]
    state = state_of(states, *(Grant(a, a.pod_name) for a in held))
    one = parse_pod(pod("one", container("c", 80, 20), on={"c": [(states[1], 80, 5 * GIB)]}))
    answer = Identification(ContainerCandidate(one, one.containers[0]), frozenset(), frozenset())
    pods.there["default/p11"] = parse_pod(pod("p11", container("c", 10, 4), uid="u11"))
    processes.living.add(PodUid("u12"))
    assert DepartedPods(state, pods, processes).observe(answer, ()) == {"u12"}, "its processes run"
    assert state.view.ledger.pods == ("u8", "u9", "u11", "u12")
    assert pods.fetches == 18, "those in the way, and eight others"
    pods.away = True
    DepartedPods(state, pods, processes).observe(answer, ())
    assert pods.fetches == 19, "a silent source is asked once"


def test_pods_that_were_passed_over_are_forgotten_with_the_pods_that_the_source_knows() -> None:
    pods = FakePods()
    old = parse_pod(pod("old", container("c", 30, 20)) | {"status": {"phase": "Running", "startTime": "t"}})
    new = parse_pod(pod("new", container("c", 30, 20)))
    pods.bind(old)
    pods.bind(new)
    answer = identify(pods, listed("old"), listed("new"), never=frozenset({PodUid("gone")}))
    assert answer.candidate is not None
    assert answer.candidate.pod.uid == new.uid
    assert answer.never == {old.uid}
