"""The allocator under a kubelet's own rules, called by function: who asks, what it gets, what is left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import CORE, EVENT_REFUSED, MEMORY, NVIDIA
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.services.recovery.rebuild import rebuild
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.fakes.direct import DirectRig
from tests.fakes.metrics import counts
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards
from tests.seeds import seeds


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    with DirectRig(tmp_path, clock=FakeClock()) as node:
        yield node


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def passes(rig: DirectRig, rounds: int = 3) -> None:
    """The kubelet has settled, and the agent looks some times for who has gone."""
    assert isinstance(rig.clock, FakeClock)
    rig.clock.pass_(SETTLE_SECONDS + 5)
    for _ in range(rounds):
        rig.reclaimer.round()


@pytest.mark.parametrize("order", [(CORE, MEMORY), (MEMORY, CORE)])
def test_a_pod_gets_what_the_scheduler_chose_for_it_in_either_order(
    rig: DirectRig, order: tuple[str, str]
) -> None:
    rig.kubelet.hooks.order = lambda names: [r for r in order if r in names]
    one = pod("one", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
    result = rig.admit(one)
    assert result.admitted, result.message
    assert rig.cards_of(one, "c") == (5,)
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (30, 5 * GIB)
    rig.start(one)
    assert [text for _, _, text in rig.pods.events] == ['container "c": 30 cores, 5 GiB of card 5']


def test_without_a_choice_it_fills_the_card_that_is_used_already(rig: DirectRig) -> None:
    pods = [pod(f"p{i}", container("c", 40, 10)) for i in range(3)]
    assert all(rig.admit(one).admitted for one in pods)
    assert [rig.cards_of(one, "c") for one in pods] == [(0,), (0,), (1,)]


def test_a_choice_that_cannot_be_followed_is_counted_once_for_a_container(rig: DirectRig) -> None:
    full = pod("full", container("c", 100, 0), on={"c": [(rig.states[3], 100, 16 * GIB)]})
    assert rig.admit(full).admitted
    late = pod("late", container("c", 30, 20), on={"c": [(rig.states[3], 30, 5 * GIB)]})
    assert rig.admit(late).admitted
    assert rig.cards_of(late, "c") == (0,)
    assert counts(rig.metrics.annotation_overridden) == {"": 1}
    assert rig.pods.fetches == 3, "each pod itself, once a question: the kubelet lists ids of the holder"


@pytest.mark.parametrize("end", ["deleted", "failed"])
def test_a_planned_pod_that_has_ended_keeps_no_pod_from_its_card_though_the_watch_still_shows_it(
    rig: DirectRig, end: str
) -> None:
    """The kubelet refused it before it asked for any device; the scheduler's watch has shown that."""
    gone = pod("gone", container("c", 100, 0), on={"c": [(rig.states[3], 100, 16 * GIB)]})
    rig.pods.bind(rig.parsed(gone))
    rig.state.introduce(rig.parsed(gone))
    assert rig.cards_of(gone, "c") == (3,)
    if end == "deleted":
        rig.pods.forget("default/gone", watched=False)
    else:
        rig.pods.bind(rig.parsed({**gone, "status": {"phase": "Failed"}}), watched=False)
    late = pod("late", container("c", 30, 20), on={"c": [(rig.states[3], 30, 5 * GIB)]})
    assert rig.admit(late, watched=False).admitted
    assert rig.cards_of(late, "c") == (3,)
    assert counts(rig.metrics.annotation_overridden) == {}


def test_processes_that_ended_since_the_last_look_keep_no_pod_from_its_card(rig: DirectRig) -> None:
    old = pod("old", container("c", 100, 0), on={"c": [(rig.states[3], 100, 16 * GIB)]})
    assert rig.admit(old).admitted
    rig.delete(old)
    rig.processes.ended.add(uid(old))
    new = pod("new", container("c", 30, 20), on={"c": [(rig.states[3], 30, 5 * GIB)]})
    assert rig.admit(new).admitted
    assert rig.cards_of(new, "c") == (3,)


def test_a_planned_pod_that_is_still_to_be_admitted_keeps_its_card(rig: DirectRig) -> None:
    waiting = pod("waiting", container("c", 100, 0), on={"c": [(rig.states[3], 100, 16 * GIB)]})
    rig.pods.bind(rig.parsed(waiting))
    rig.state.introduce(rig.parsed(waiting))
    late = pod("late", container("c", 30, 20), on={"c": [(rig.states[3], 30, 5 * GIB)]})
    assert rig.admit(late).admitted
    assert (rig.cards_of(waiting, "c"), rig.cards_of(late, "c")) == ((3,), (0,))


def test_an_allocate_that_comes_again_is_answered_again(rig: DirectRig) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    before = rig.state.view
    for resource in (CORE, MEMORY):
        ids = before.grants[uid(one), "c"].ids[resource]
        rig.allocator.allocate(resource, sorted(ids))
    now = rig.state.view
    assert now.grants == before.grants
    assert list(now.ledger) == list(before.ledger)


def test_a_pod_without_room_is_told_why_and_so_is_the_scheduler(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(1), clock=FakeClock()) as rig:
        assert rig.admit(pod("one", container("c", 80, 20))).admitted
        big = pod("big", container("c", 80, 20))
        rig.kubelet.hooks.order = lambda names: sorted(names, reverse=True)  # memory has room
        refused = rig.admit(big)
        assert not refused.admitted
        assert rig.allocator.refused() == (Amount(80, 20 * DEFAULT_UNIT),)
        assert [(name, why) for name, why, _ in rig.pods.events] == [("default/big", EVENT_REFUSED)]
        assert [a.pod_name for a in rig.state.view.ledger] == ["one"]
        assert counts(rig.metrics.allocations) == {"granted": 2, "refused": 1}
        assert isinstance(rig.clock, FakeClock)
        rig.clock.pass_(31)
        assert rig.allocator.refused() == ()


def test_of_a_refused_pod_that_was_deleted_meanwhile_nobody_is_told(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(1), clock=FakeClock()) as rig:
        assert rig.admit(pod("one", container("c", 80, 20))).admitted
        rig.kubelet.hooks.order = lambda names: sorted(names, reverse=True)  # memory has room
        rig.kubelet.hooks.before = lambda step: (
            rig.pods.forget("default/big") if step.name == "Allocate" else None
        )
        refused = rig.admit(pod("big", container("c", 80, 20)))
        assert not refused.admitted
        assert rig.allocator.refused() == ()
        assert rig.pods.events == []
        assert counts(rig.metrics.allocations) == {"granted": 2, "deleted": 1}


def test_where_a_container_cannot_be_injected_the_node_is_probed_before_the_next_pod(rig: DirectRig) -> None:
    rig.injector.lacking = "the node has no /dev/nvidia-uvm"
    refused = rig.admit(pod("one", container("c", 30, 20)))
    assert "no /dev/nvidia-uvm" in refused.message
    assert rig.not_injected == [rig.injector.lacking]
    assert list(rig.state.view.ledger) == [], "nothing stays booked"


def test_an_init_container_hands_its_card_on(rig: DirectRig) -> None:
    one = pod("one", container("c", 20, 8), init=[container("i", 30, 20)])
    result = rig.admit(one)
    assert result.admitted, result.message
    assert rig.cards_of(one, "i") == rig.cards_of(one, "c")
    (card,) = rig.cards_of(one, "c")
    assert rig.state.view.ledger.booked(rig.states[card].card.uuid) == Amount(30, 5 * GIB), "the peak"
    rig.start(one)
    assert [rig.limits(result, name)[0].cores for name in ("i", "c")] == [30, 20]


def test_a_pod_that_nobody_can_name_is_served_and_named_when_it_starts(rig: DirectRig) -> None:
    rig.pods.away = True
    one = pod("one", container("c", 30, 20))
    rig.pods.bind(rig.parsed(one), watched=False)
    result = rig.kubelet.admit(one)
    assert result.admitted, result.message
    assert counts(rig.metrics.allocations) == {"unidentified": 2}
    rig.pods.away = False
    rig.pods.watch()
    rig.start(one)
    assert rig.state.view.grants.keys() == {(uid(one), "c")}
    assert rig.limits(result, "c")[0].memory == 5 * GIB


def test_what_nobody_could_name_is_the_next_ones_once_its_ids_are_free_again(rig: DirectRig) -> None:
    rig.pods.away = True
    lost = pod("lost", container("c", 30, 20))
    rig.pods.bind(rig.parsed(lost), watched=False)
    assert rig.kubelet.admit(lost).admitted
    rig.kubelet.delete(uid(lost))
    rig.pods.forget("default/lost", watched=False)
    rig.pods.away = False
    passes(rig)
    heir = pod("heir", container("c", 30, 20))
    assert rig.admit(heir).admitted
    passes(rig)
    assert rig.state.view.grants.keys() == {(uid(heir), "c")}


def test_what_ended_pods_held_comes_back_and_their_pages_go(rig: DirectRig) -> None:
    pods = [pod(f"p{i}", container("c", 30, 20)) for i in range(4)]
    for one in pods:
        assert rig.admit(one).admitted
        rig.start(one)
    rig.processes.living.add(uid(pods[3]))
    for one in pods[1:]:
        rig.delete(one)
    rig.kubelet.list_pods()  # type: ignore[attr-defined]
    passes(rig)
    assert {key[0] for key in rig.state.view.grants} == {uid(pods[0]), uid(pods[3])}
    assert [share.pod for share in rig.departed.told().lingering] == [uid(pods[3])]
    rig.processes.living.clear()
    passes(rig)
    assert rig.state.view.grants.keys() == {(uid(pods[0]), "c")}
    assert len(rig.tenants.limits) == 1


def test_what_was_admitted_and_never_started_is_not_given_away_before_the_kubelet_lets_it_go(
    rig: DirectRig,
) -> None:
    """The API deletes by force at once; the kubelet, which may be seconds behind, lists the pod and may start it."""
    ghost = pod("ghost", container("c", 30, 20))
    assert rig.admit(ghost).admitted
    rig.pods.forget("default/ghost")
    left, released = rig.departed.told()
    assert [share.pod for share in left] == [uid(ghost)]
    assert released == ()
    rig.kubelet.delete(uid(ghost))
    rig.kubelet.list_pods()  # type: ignore[attr-defined]
    passes(rig)
    assert rig.departed.told() == ((), (uid(ghost),))
    ended = pod("ended", container("c", 30, 20))
    assert rig.admit(ended).admitted
    rig.start(ended)
    rig.pods.forget("default/ended")
    assert rig.departed.told().lingering == (), "it has started, and nothing of it runs any more"


@pytest.mark.parametrize(("stored", "listed"), [(True, True), (True, False), (False, True)])
def test_what_was_released_does_not_come_back_from_the_kubelets_older_checkpoint(
    rig: DirectRig, stored: bool, listed: bool
) -> None:
    """It would keep its room from others for minutes. Without store or list nobody knows that it was released."""
    ended, stays = pod("ended", container("c", 30, 20)), pod("stays", container("c", 30, 20))
    for one in (ended, stays):
        assert rig.admit(one).admitted
        rig.start(one)
    rig.pods.forget("default/ended")
    rig.pods.known.pop("default/ended")  # another agent starts, which never saw it
    entries = rig.client.checkpoint()
    rig.state.release([(uid(ended), "c")])
    local = rig.pods.local() if listed else {}
    books = rebuild(rig.store.load() if stored else None, entries, None, local, rig.state.node, rig.metrics)
    assert (uid(ended) in books.ledger.pods) is not (stored and listed)
    assert uid(stays) in books.ledger.pods


def test_a_killed_agents_decision_is_booked_though_its_release_of_the_ids_was_not_saved(
    rig: DirectRig,
) -> None:
    old, new = pod("old", container("c", 30, 20)), pod("new", container("c", 30, 20))
    assert rig.admit(old).admitted
    rig.start(old)
    ids = rig.state.view.holds(uid(old), "c", CORE)
    rig.delete(old)
    rig.pods.bind(rig.parsed(new))
    memo = f"{uid(new)}/c"
    rig.restart_agent()
    assert rig.state.owners(ids) == {uid(old)}
    rig.allocator.allocate(CORE, tuple(ids), memo)
    assert rig.state.owners(ids) == {uid(new)}
    assert rig.state.view.ledger.granted(uid(new))


@pytest.mark.parametrize("lost", ["nothing", "store", "checkpoint", "both"])
def test_after_a_restart_everybody_holds_what_he_held(rig: DirectRig, lost: str) -> None:
    pods = [
        pod("part", container("a", 30, 20), container("b", 10, 4)),
        pod("whole", container("c", 200, 0)),
    ]
    for one in pods:
        assert rig.admit(one).admitted
        rig.start(one)
    before = {a.key: (a.shares, a.pod_key) for a in rig.state.view.ledger}
    if lost in ("store", "both"):
        rig.store.state = None
    if lost in ("checkpoint", "both"):
        rig.kubelet.checkpoint_path.unlink()
    rig.restart_agent()
    assert {a.key: (a.shares, a.pod_key) for a in rig.state.view.ledger} == before


def test_a_start_is_put_off_until_the_checkpoint_shows_whose_it_is(rig: DirectRig) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    text = rig.kubelet.checkpoint_path.read_bytes()
    rig.kubelet.checkpoint_path.write_bytes(b"{}")
    rig.start(one)
    assert counts(rig.metrics.container_starts_unverified) == {"": 1}
    rig.kubelet.checkpoint_path.write_bytes(text)
    with pytest.raises(NodeUnready, match="in no entry of the kubelet's checkpoint"):
        rig.plugin._endpoints[CORE].pre_start(["nobody's"])


def test_a_whole_card_by_another_vendors_name_is_nobody_elses(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(2), clock=FakeClock(), lending=True) as rig:
        lent = pod("lent", {"name": "c", "resources": {"limits": {NVIDIA: 1}}})
        assert rig.admit(lent).admitted
        (card,) = rig.cards_of(lent, "c")
        assert rig.state.offer.lent == {rig.states[card].card.uuid}
        assert rig.admit(pod("ours", container("c", 60, 10))).admitted
        assert not rig.admit(pod("more", container("c", 60, 10))).admitted
        rig.start(lent)
        assert all(g.proven for g in rig.state.view.grants.values() if g.ids.get(NVIDIA))


class Fate:
    """Pods come, start, go and are forgotten in an order that a seed decides; the agent dies in between."""

    def __init__(self, rig: DirectRig, seed: int) -> None:
        self.rig, self.rng = rig, random.Random(seed)
        self.there: dict[str, tuple[dict[str, Any], Any]] = {}
        self.count = 0

    def comes(self) -> None:
        self.count += 1
        shapes = [
            [container("c", self.rng.choice((5, 30, 60)), self.rng.choice((4, 20)))],
            [container("a", 20, 8), container("b", 30, 4, sidecar=False)],
            [container("c", 100, 0)],
        ]
        init = [container("i", 20, 8)] if self.rng.random() < 0.2 else []
        one = pod(f"p{self.count}", *self.rng.choice(shapes[:1] if init else shapes), init=init)
        result = self.rig.admit(one, watched=self.rng.random() < 0.8)
        self.rig.pods.watch()
        if result.admitted:
            self.there[uid(one)] = one, result
            self.rig.start(one)
        else:
            self.rig.delete(one)

    def goes(self) -> None:
        if self.there:
            one, _ = self.there.pop(self.rng.choice(sorted(self.there)))
            self.rig.delete(one, force=self.rng.random() < 0.3)
            self.rig.kubelet.reap(uid(one))

    def dies(self) -> None:
        if self.rng.random() < 0.3:
            self.rig.store.state = None
        self.rig.restart_agent()

    def looks(self) -> None:
        passes(self.rig, self.rng.randint(1, 3))

    def judge(self) -> None:
        for one, result in self.there.values():
            for entry in one["spec"]["containers"]:
                asked = entry["resources"]["limits"]
                shares = self.rig.state.view.ledger.get(uid(one), entry["name"])
                assert shares is not None
                assert sum(s.amount.cores for s in shares.shares) == asked[CORE]
                if asked[CORE] < 100:
                    (limit,) = self.rig.limits(result, entry["name"])
                    assert limit.card == shares.cards[0]
                    assert (limit.cores, limit.memory) == (asked[CORE], asked[MEMORY] * DEFAULT_UNIT)
        ledger = self.rig.state.view.ledger
        for state in self.rig.states:
            free = ledger.free(state.card.uuid)
            assert free.cores >= 0
            assert free.memory >= 0


def on_nodes(count: int, per_node: int) -> tuple[CardState, ...]:
    return tuple(replace(s, card=replace(s.card, numa=s.card.index // per_node)) for s in cards(count))


@pytest.mark.parametrize("order", [(CORE, MEMORY), (MEMORY, CORE)])
@pytest.mark.parametrize("named", [True, False])
def test_ids_that_nobody_asked_about_are_tokens_and_the_container_gets_a_card_with_room(
    tmp_path: Path, order: tuple[str, str], named: bool
) -> None:
    """Node 0 has 40 core ids left, 20 on each card: the kubelet takes all of them without a word."""
    states = on_nodes(4, 2)
    with DirectRig(tmp_path, states, clock=FakeClock(), numa=NumaPolicy.SINGLE) as rig:
        for card in (0, 1):
            full = pod(f"fill{card}", container("c", 80, 4), on={"c": [(states[card], 80, GIB)]})
            assert rig.admit(full).admitted
            rig.start(full)
        rig.kubelet.hooks.order = lambda names: [r for r in order if r in names]
        one = pod("one", container("c", 40, 8), on={"c": [(states[3], 40, 2 * GIB)]} if named else None)
        result = rig.admit(one)
        assert result.admitted, result.message
        rig.start(one)
        (card,) = rig.cards_of(one, "c")
        assert card == 3 if named else card in (2, 3)
        (limit,) = rig.limits(result, "c")
        assert (limit.card, limit.cores, limit.memory) == (states[card].card.uuid, 40, 2 * GIB)
        assert rig.state.view.ledger.booked(states[card].card.uuid) == Amount(40, 2 * GIB), "booked once"


@pytest.mark.parametrize("lost", [True, False])
def test_a_whole_card_that_nobody_asked_about_outlives_a_restart(tmp_path: Path, lost: bool) -> None:
    with DirectRig(tmp_path, on_nodes(2, 1), clock=FakeClock(), numa=NumaPolicy.SINGLE) as rig:
        one, two = pod("one", container("c", 100, 0)), pod("two", container("c", 100, 0))
        assert all(rig.admit(each).admitted for each in (one, two))
        if lost:
            rig.store.state = None
        rig.restart_agent()
        for each in (one, two):
            rig.start(each)
        assert {rig.cards_of(one, "c"), rig.cards_of(two, "c")} == {(0,), (1,)}
        assert rig.state.view.grants.keys() == {(uid(one), "c"), (uid(two), "c")}


@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_comes_in_whatever_order_everybody_has_what_he_asked_for(tmp_path: Path, seed: int) -> None:
    with DirectRig(tmp_path, cards(3), clock=FakeClock(), seed=seed) as rig:
        fate = Fate(rig, seed)
        for _ in range(60):
            step = fate.rng.choices((fate.comes, fate.goes, fate.dies, fate.looks), (6, 4, 1, 1))[0]
            step()
            fate.judge()
        for name in sorted(fate.there):
            one, _ = fate.there.pop(name)
            rig.delete(one)
        rig.kubelet.list_pods()  # type: ignore[attr-defined]
        passes(rig)
        assert len(rig.state.view.ledger) == 0
        assert rig.tenants.limits == {}


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE])
@pytest.mark.parametrize("named", [True, False])
def test_ids_that_are_given_again_unasked_are_proof_that_their_pods_are_gone(
    tmp_path: Path, policy: NumaPolicy, named: bool
) -> None:
    """Two cards a NUMA node, a fraction on each of node 0, both deleted: 200 cores are exactly what is aligned."""
    states = on_nodes(4, 2)
    with DirectRig(tmp_path, states, clock=FakeClock(), numa=policy) as rig:
        old = [
            pod(f"old{card}", container("c", 50, 8), on={"c": [(states[card], 50, 2 * GIB)]})
            for card in (0, 1)
        ]
        for one in old:
            assert rig.admit(one).admitted
            rig.start(one)
        for one in old:
            rig.delete(one, force=True)
            rig.kubelet.reap(uid(one))
        chosen = {"c": [(states[card], 100, 16 * GIB) for card in (0, 1)]} if named else None
        new = pod("new", container("c", 200, 0), on=chosen)
        result = rig.admit(new)
        assert result.admitted, result.message
        rig.start(new)
        assert rig.cards_of(new, "c") == (0, 1)
        assert not any(rig.state.view.ledger.of_pod(uid(one)) for one in old)


def test_ids_given_again_unasked_are_refused_while_their_pod_is_there_or_its_processes_run(
    tmp_path: Path,
) -> None:
    states = on_nodes(2, 1)
    with DirectRig(tmp_path, states, clock=FakeClock(), numa=NumaPolicy.SINGLE, patience=0.25) as rig:
        old = pod("old", container("c", 100, 0), on={"c": [(states[0], 100, 16 * GIB)]})
        assert rig.admit(old).admitted
        rig.start(old)
        ids = rig.state.view.grants[uid(old), "c"].ids[CORE]
        with pytest.raises(DoesNotFit, match="still held by default/old"):
            rig.allocator.allocate(CORE, tuple(ids)[:50])
        rig.processes.living.add(uid(old))
        rig.delete(old, force=True)
        with pytest.raises(DoesNotFit, match="processes of a deleted pod still run"):
            rig.allocator.allocate(CORE, tuple(ids))
        rig.processes.living.clear()
        rig.allocator.allocate(CORE, tuple(ids))
        assert rig.state.view.ledger.of_pod(uid(old)) == {}
