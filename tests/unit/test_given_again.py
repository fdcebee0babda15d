"""Device ids that the kubelet allocates again without a question: whose they were, and what that proves of that pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import Step
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, FakeInjector, FakePods, FakeProcesses, FakeStore, cards

WHOLE = 16 * GIB


class KilledError(BaseException):
    """The agent ends here."""


@dataclass
class SlowPods(FakePods):
    """The API server shows every pod as ended from the fetch of that number on."""

    ends_after: int = 1_000_000

    def fetch(self, namespace: str, name: str) -> Pod | None:
        found = super().fetch(namespace, name)
        return replace(found, phase="Succeeded") if found and self.fetches > self.ends_after else found


@dataclass
class EndingProcesses(FakeProcesses):
    """Processes of a pod are seen at so many more looks."""

    looks: dict[PodUid, int] = field(default_factory=dict)

    def alive(self, pod: PodUid) -> bool | None:
        self.looks[pod] = self.looks.get(pod, 0) - 1
        return self.looks[pod] >= 0


class EndingStore(FakeStore):
    """The agent ends before or after the disk has the books."""

    ends = ""

    def save(self, state: bytes) -> None:
        if self.ends != "before the disk":
            super().save(state)
        if self.ends:
            raise KilledError


@dataclass
class EndingInjector(FakeInjector):
    """The agent ends after the books in memory changed, before anything else."""

    ends: bool = False

    def inject(self, name: str, shares: Sequence[Share], pod: Pod | None, annotation: str) -> Injection:
        if self.ends:
            raise KilledError
        return super().inject(name, shares, pod, annotation)


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def on_nodes(count: int, per_node: int) -> tuple[CardState, ...]:
    return tuple(replace(s, card=replace(s.card, numa=s.card.index // per_node)) for s in cards(count))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    """Two NUMA nodes of two cards, each pod on one of them."""
    with DirectRig(
        tmp_path, on_nodes(4, 2), clock=FakeClock(), numa=NumaPolicy.SINGLE, patience=0.25
    ) as node:
        yield node


def running(rig: DirectRig, name: str, card: int, cores: int, units: int = 8) -> dict[str, Any]:
    whole = cores == 100
    one = pod(
        name,
        container("c", cores, 0 if whole else units),
        on={"c": [(rig.states[card], cores, WHOLE if whole else units << 28)]},
    )
    assert rig.admit(one).admitted
    rig.start(one)
    assert rig.cards_of(one, "c") == (card,)
    return one


def deleted_with_grace(rig: DirectRig, obj: dict[str, Any], *, watched: bool = True) -> None:
    """Its containers have ended and the kubelet has taken the ids back; the API server still shows it running."""
    shown = {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2026-11-21T00:01:00Z"}}
    rig.pods.bind(rig.parsed({**shown, "status": {"phase": "Running"}}), watched=watched)
    rig.kubelet.begin_delete(uid(obj))
    rig.kubelet.finish(uid(obj))


def both_cards(rig: DirectRig, cards_: Sequence[int] | None = (0, 1)) -> dict[str, Any]:
    on = None if cards_ is None else {"c": [(rig.states[card], 100, WHOLE) for card in cards_]}
    return pod("both", container("c", 200, 0), on=on)


def exact(rig: DirectRig) -> None:
    """The books book each id once, and each card what the pods that hold a part of it were given."""
    view = rig.state.view
    holders = [(ids, key) for key, grant in view.grants.items() for ids in grant.ids.values()]
    assert all(
        one == other or not mine & theirs
        for mine, one in holders
        for theirs, other in holders
        if one[0] != other[0]
    )
    for state in rig.states:
        free = view.ledger.free(state.card.uuid)
        assert free.cores >= 0
        assert free.memory >= 0
    checkpoint = {(g.pod, g.container, g.resource): frozenset(g.ids) for g in rig.kubelet.grants()}
    for key, grant in view.grants.items():
        assert all(checkpoint.get((*key, r), ids) == ids for r, ids in grant.ids.items())


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE])
def test_a_pod_that_ends_with_grace_has_gone_once_its_ids_are_given_again(
    tmp_path: Path, policy: NumaPolicy, watched: bool
) -> None:
    """The kubelet hands ids out as soon as the containers have ended, 20 ms before it tells the API server."""
    with DirectRig(tmp_path, on_nodes(4, 2), clock=FakeClock(), numa=policy, patience=0.25) as rig:
        old = [running(rig, f"old{card}", card, 50) for card in (0, 1)]
        for one in old:
            deleted_with_grace(rig, one, watched=watched)
        new = both_cards(rig)
        result = rig.admit(new, watched=False)
        assert result.admitted, result.message
        assert "GetPreferredAllocation" not in [s.name for s in rig.kubelet.steps if s.pod == uid(new)]
        assert not any(rig.state.view.ledger.of_pod(uid(one)) for one in old)
        rig.start(new)
        assert rig.cards_of(new, "c") == (0, 1)
        exact(rig)


def test_it_needs_no_api_server_where_the_watch_shows_the_deletion(rig: DirectRig) -> None:
    old = [running(rig, f"old{card}", card, 50) for card in (0, 1)]
    new = both_cards(rig)
    for one in old:
        deleted_with_grace(rig, one)
    rig.pods.bind(rig.parsed(new))
    rig.pods.away = True
    result = rig.admit(new)
    assert result.admitted, result.message
    rig.start(new)
    assert rig.cards_of(new, "c") == (0, 1)


def test_more_holders_than_are_asked_about_at_once_have_gone_too(rig: DirectRig) -> None:
    old = [running(rig, f"old{n}", n % 2, 15, 4) for n in range(12)]
    for one in old:
        deleted_with_grace(rig, one, watched=False)
    result = rig.admit(both_cards(rig), watched=False)
    assert result.admitted, result.message
    assert not any(rig.state.view.ledger.of_pod(uid(one)) for one in old)


@pytest.mark.parametrize("end", ["deleting", "ended, and the watch is behind"])
def test_exactly_the_ids_of_a_pod_that_has_ended_are_the_next_one_s(rig: DirectRig, end: str) -> None:
    old = pod("old", container("c", 200, 0), on={"c": [(rig.states[card], 100, WHOLE) for card in (0, 1)]})
    assert rig.admit(old).admitted
    rig.start(old)
    before = rig.state.view.grants[uid(old), "c"]
    if end == "deleting":
        deleted_with_grace(rig, old)
    else:
        rig.pods.bind(rig.parsed({**old, "status": {"phase": "Succeeded"}}), watched=False)
        rig.kubelet.finish(uid(old))
    new = both_cards(rig)
    result = rig.admit(new, watched=False)
    assert result.admitted, result.message
    assert rig.state.view.ledger.of_pod(uid(old)) == {}
    rig.pods.watch()
    rig.start(new)
    after = rig.state.view.grants[uid(new), "c"]
    assert after.ids == before.ids
    assert after.directory != before.directory
    exact(rig)


def test_the_same_ids_once_more_for_a_pod_that_lives_are_its_own(rig: DirectRig) -> None:
    one = running(rig, "one", 0, 100)
    before = rig.state.view
    rig.allocator.allocate(CORE, sorted(before.grants[uid(one), "c"].ids[CORE]))
    assert rig.state.view.grants == before.grants


def test_ids_of_a_pod_that_lives_are_nobody_else_s_though_it_has_no_process_yet(rig: DirectRig) -> None:
    """Somebody lists while the kubelet allocates: it forgets ids in flight, and offers them once more."""
    one = pod("one", container("c", 100, 0), on={"c": [(rig.states[0], 100, WHOLE)]})
    assert rig.admit(one).admitted
    ids = sorted(rig.state.view.grants[uid(one), "c"].ids[CORE])
    with pytest.raises(DoesNotFit, match="still held by default/one"):
        rig.allocator.allocate(CORE, ids[:40])
    assert rig.cards_of(one, "c") == (0,)
    exact(rig)


def test_a_pod_that_is_shown_as_living_is_waited_for_while_it_has_no_process(tmp_path: Path) -> None:
    node = DirectRig(tmp_path, on_nodes(4, 2), clock=FakeClock(), numa=NumaPolicy.SINGLE, patience=0.25)
    node.pods = slow = SlowPods()
    with node as rig:
        one = running(rig, "one", 0, 100)
        ids = sorted(rig.state.view.grants[uid(one), "c"].ids[CORE])
        slow.ends_after = slow.fetches + 1
        rig.allocator.allocate(CORE, ids[:40])
        assert rig.state.view.ledger.of_pod(uid(one)) == {}


def test_a_pod_that_is_deleted_while_it_is_admitted_keeps_what_its_init_container_passes_on(
    tmp_path: Path,
) -> None:
    """The next container gets its init container's ids, and all others of the node, a pod's that has just ended."""
    with DirectRig(tmp_path, on_nodes(2, 1), clock=FakeClock(), numa=NumaPolicy.SINGLE) as rig:
        rig.kubelet.hooks.order = sorted
        old, beside = running(rig, "old", 0, 30), running(rig, "beside", 0, 40)
        one = pod("one", container("c", 60, 8), init=[container("i", 20, 8)])

        deleting = {**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-11-21T00:01:00Z"}}

        def ends(step: Step) -> None:
            if (step.name, step.container, step.resource) == ("Allocate", "i", MEMORY):
                deleted_with_grace(rig, old)
                rig.pods.bind(rig.parsed(deleting))

        rig.kubelet.hooks.after = ends
        result = rig.admit(one)
        assert result.admitted, result.message
        calls = [(s.name, s.container) for s in rig.kubelet.steps if (s.pod, s.resource) == (uid(one), CORE)]
        assert calls == [("GetPreferredAllocation", "i"), ("Allocate", "i"), ("Allocate", "c")]
        assert rig.state.view.ledger.of_pod(uid(old)) == {}
        rig.start(one)
        assert rig.cards_of(one, "i") == rig.cards_of(one, "c") == (1,), (
            "card 0 had room for neither at first"
        )
        assert rig.cards_of(beside, "c") == (0,)
        exact(rig)


@pytest.mark.parametrize("grace", [True, False])
def test_a_pod_waits_for_cards_of_a_pod_that_ends_though_its_ids_are_others(
    tmp_path: Path, grace: bool
) -> None:
    """The kubelet gives it free ids of node 0, whose cards are planned for others; node 2's are about to be idle."""
    node = DirectRig(tmp_path, on_nodes(6, 2), clock=FakeClock(), numa=NumaPolicy.SINGLE, patience=2.0)
    node.processes = processes = EndingProcesses()
    with node as rig:
        for card in (0, 1):
            running(rig, f"first{card}", card, 100)
        for card in (2, 3):
            running(rig, f"beside{card}", card, 70)
        old = pod(
            "old", container("c", 200, 0), on={"c": [(rig.states[card], 100, WHOLE) for card in (4, 5)]}
        )
        assert rig.admit(old).admitted
        rig.start(old)
        for card in (0, 1):
            gone = f"default/first{card}"
            rig.kubelet.delete(rig.pods.there[gone].uid)
            rig.pods.forget(gone)
            rig.state.forget_pod(rig.pods.known[gone][0].pod.uid)
            planned = pod(
                f"planned{card}", container("c", 60, 8), on={"c": [(rig.states[card], 60, 2 * GIB)]}
            )
            rig.pods.bind(rig.parsed(planned))
            rig.state.introduce(rig.parsed(planned))
        processes.looks[uid(old)] = 3
        if grace:
            deleted_with_grace(rig, old)
        else:
            rig.delete(old, force=True)
        new = pod("new", container("c", 200, 0))
        result = rig.admit(new)
        assert result.admitted, result.message
        assert "GetPreferredAllocation" not in [s.name for s in rig.kubelet.steps if s.pod == uid(new)]
        rig.start(new)
        assert rig.cards_of(new, "c") == (0, 1), "the planned ones have moved to the cards that became idle"
        exact(rig)


@pytest.mark.parametrize("where", ["before the pages", "before the disk", "after the disk"])
def test_an_agent_that_ends_between_release_and_answer_leaves_exact_books(tmp_path: Path, where: str) -> None:
    node = DirectRig(tmp_path, on_nodes(4, 2), clock=FakeClock(), numa=NumaPolicy.SINGLE)
    node.store, node.injector = store, injector = EndingStore(), EndingInjector()
    with node as rig:
        old = [running(rig, f"old{card}", card, 60) for card in (0, 1)]
        other = running(rig, "other", 2, 100)
        for one in old:
            deleted_with_grace(rig, one)
        new = both_cards(rig)
        rig.pods.bind(rig.parsed(new))
        ids = [device for device in rig.state.node.ids.card_of[CORE] if _on(rig, device, (0, 1))]
        store.ends = where if "disk" in where else ""
        injector.ends = "pages" in where
        with pytest.raises(KilledError):
            rig.allocator.allocate(CORE, ids)
        store.ends, injector.ends = "", False
        rig.restart_agent()
        rig.pods.forget("default/both")  # the kubelet has rejected it
        for one in old:
            rig.delete(one)
        rig.kubelet.list_pods()  # type: ignore[attr-defined]
        for _ in range(2):
            rig.clock.pass_(SETTLE_SECONDS + 5)  # type: ignore[attr-defined]
            rig.reclaimer.round()
        assert {a.pod for a in rig.state.view.ledger} == {uid(other)}
        exact(rig)
        result = rig.admit(pod("next", container("c", 200, 0)))
        assert result.admitted, result.message
        assert rig.cards_of(other, "c") == (2,)
        exact(rig)


def test_a_full_disk_undoes_the_grant_alone(rig: DirectRig) -> None:
    old = [running(rig, f"old{card}", card, 50) for card in (0, 1)]
    for one in old:
        deleted_with_grace(rig, one)
    new = both_cards(rig)
    rig.pods.bind(rig.parsed(new))
    store = rig.store
    assert isinstance(store, FakeStore)
    store.broken = True
    ids = [device for device in rig.state.node.ids.card_of[CORE] if _on(rig, device, (0, 1))]
    with pytest.raises(NodeUnready):
        rig.allocator.allocate(CORE, ids)
    assert not any(rig.state.view.ledger.granted(uid(one)) for one in (*old, new))
    exact(rig)
    store.broken = False
    result = rig.admit(new)
    assert result.admitted, result.message


def _on(rig: DirectRig, device: str, cards_: Sequence[int]) -> bool:
    return rig.state.node.ids.card_of[CORE][device] in {rig.states[card].card.uuid for card in cards_}
