"""NodeState: transactions that change it whole or not at all, and views that change no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.contract import CORE
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.books_format import decode
from gpu_manager.services.allocation.grant import Decision
from gpu_manager.services.allocation.node_state import NodeState
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeStore, cards
from tests.fakes.state import node_of, state_of
from tests.fakes.waiting import PATIENCE

STATES = cards(2)
FIRST = STATES[0].card.uuid


def grant(uid: str, cores: int = 30, *, proven: bool = False) -> Grant:
    share = Share(FIRST, Amount(cores, GIB))
    allocation = Allocation(PodUid(uid), "c", ContainerKind.APP, 0, (share,), "default", uid)
    return Grant(allocation, f"dir-{uid}", ids={CORE: frozenset({f"id-{uid}"})}, proven=proven)


def stored(store: FakeStore) -> dict[str, Grant]:
    grants, _ = decode(store.state or b"")
    return {g.allocation.pod: g for g in grants}


class OpenStore(FakeStore):
    """Waits in the middle of a save until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def save(self, state: bytes) -> None:
        self.reached.set()
        assert self.go_on.wait(PATIENCE)
        super().save(state)


def ids_of(state: NodeState, count: int) -> frozenset[str]:
    return frozenset(sorted(state.node.ids.of_card[CORE][FIRST])[:count])


def test_a_view_shows_its_moment_and_is_copied_once() -> None:
    state = state_of(STATES, grant("a"))
    before = state.view
    assert state.view is before, "nothing has changed"
    state.release([grant("a").key])
    assert len(before.ledger) == 1
    assert before.grants.keys() == {("a", "c")}
    assert (len(state.view.ledger), state.view.grants) == (0, {})


def test_nothing_that_is_done_to_a_view_reaches_the_state() -> None:
    state = state_of(STATES, grant("a"))
    state.view.ledger.release(PodUid("a"))
    assert state.owners(["id-a"]) == {"a"}
    state.confirm([])
    assert len(state.view.ledger) == 1


def test_who_looks_waits_for_no_disk_and_who_writes_waits_for_its_turn() -> None:
    store = OpenStore()
    state = state_of(STATES, grant("a"), grant("b"), store=store)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(state.release, [grant("a").key])
        assert store.reached.wait(PATIENCE)
        assert [a.pod for a in state.view.ledger] == ["b"], "in memory already"
        assert state.offer.busy == {FIRST}
        second = pool.submit(state.confirm, [grant("b").key])
        with pytest.raises(TimeoutError):
            second.result(0.05)
        assert not state.view.grants["b", "c"].proven, "the change itself waits too"  # type: ignore[index]
        store.go_on.set()
        assert [a.pod for a in first.result(PATIENCE)] == ["a"]
        second.result(PATIENCE)
    assert stored(store).keys() == {"b"}
    assert stored(store)["b"].proven


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda s: s.confirm([("a", "c")]), lambda g: not g.proven),
        (lambda s: s.set_ceilings({("a", "c"): 80}, {("a", "c"): 0}), lambda g: g.ceiling == 0),
    ],
)
def test_what_the_disk_refuses_has_not_happened(
    change: Callable[[NodeState], None], same: Callable[[Grant], bool]
) -> None:
    store, told = FakeStore(), []
    state = state_of(STATES, grant("a"), store=store)
    state.changed = lambda: told.append(1)
    store.broken = True
    with pytest.raises(NodeUnready):
        change(state)
    assert same(state.view.grants["a", "c"])  # type: ignore[index]
    assert told == []
    store.broken = False
    change(state)
    assert not same(state.view.grants["a", "c"])  # type: ignore[index]
    assert not same(stored(store)["a"])
    assert told == [1]


def test_a_round_that_releases_nothing_writes_nothing_but_what_the_disk_refused_before() -> None:
    store = FakeStore()
    state = state_of(STATES, grant("a"), grant("b"), store=store)
    view = state.view
    assert state.release([]) == ()
    assert (store.state, state.view) == (None, view)
    store.broken = True
    state.release([grant("a").key])
    store.broken = False
    state.release([])
    assert stored(store).keys() == {"b"}


def test_a_release_holds_though_the_disk_refuses_and_is_written_with_the_next_change() -> None:
    store = FakeStore()
    state = state_of(STATES, grant("a"), grant("b"), store=store)
    store.broken = True
    assert [a.pod for a in state.release([("a", "c"), ("nobody", "c")])] == ["a"]  # type: ignore[list-item]
    assert [a.pod for a in state.view.ledger] == ["b"]
    store.broken = False
    state.confirm([])
    assert stored(store).keys() == {"b"}


def certain(uid: str, cores: int = 30) -> Decision:
    made = parse_pod(pod(uid, container("c", cores, 4), uid=uid))
    return Decision(ContainerCandidate(made, made.containers[0]))


def test_a_grant_is_on_the_disk_after_what_is_made_ready_and_before_anybody_is_told() -> None:
    store = FakeStore()
    state = state_of(STATES, store=store)
    with state.allocate(CORE, ids_of(state, 30), certain("p")) as booked:
        assert [a.granted for a in state.view.ledger] == [True]
        assert store.state is None
        assert booked.pod is not None
    assert stored(store).keys() == {"p"}


@pytest.mark.parametrize("error", [NodeUnready("no page"), RequestInvalid("not so")])
def test_a_grant_that_cannot_be_made_ready_leaves_nothing_booked(error: Exception) -> None:
    store = FakeStore()
    state = state_of(STATES, store=store)
    with pytest.raises(type(error)), state.allocate(CORE, ids_of(state, 30), certain("p")):
        raise error
    assert (len(state.view.ledger), state.owners(ids_of(state, 30)), store.state) == (0, frozenset(), None)


def test_a_second_resource_that_the_disk_refuses_leaves_the_first_as_it_was() -> None:
    store = FakeStore()
    state = state_of(STATES, store=store)
    with state.allocate(CORE, ids_of(state, 30), certain("p")):
        pass
    before = state.view.grants
    store.broken = True
    with pytest.raises(NodeUnready), state.allocate(CORE, ids_of(state, 30), certain("p")):
        pass
    assert state.view.grants == before


def test_ids_of_another_pod_are_refused_and_its_plan_is_dropped() -> None:
    state = state_of(STATES, grant("a"))
    with (
        pytest.raises(DoesNotFit, match="still held by default/a"),
        state.allocate(CORE, frozenset({"id-a"}), certain("p")),
    ):
        pytest.fail("it must not be booked")
    assert [a.pod for a in state.view.ledger] == ["a"]


def test_ids_that_nobody_knows_are_refused_before_anything_else() -> None:
    state = state_of(STATES)
    for ids, text in ((frozenset({"x"}), "unknown device id 'x'"), (frozenset[str](), "no device ids")):
        with pytest.raises(RequestInvalid, match=text):
            state.whose(CORE, ids, {})


def test_cards_that_go_stay_known_while_somebody_holds_some() -> None:
    state = state_of(STATES, grant("a"))
    node = node_of(STATES[1:])
    state.refit(node.cards, node.topology)
    assert [s.card.uuid for s in state.node.cards] == [STATES[1].card.uuid]
    assert state.node.index(FIRST) == FIRST
    assert state.view.ledger.capacity(FIRST).cores == 100
    assert state.forget_pod(PodUid("a"))
    state.refit(node.cards, node.topology)
    assert state.view.ledger.capacity(FIRST).cores == 0


def test_a_pod_that_asks_for_nothing_or_is_leaving_changes_nothing() -> None:
    state = state_of(STATES)
    before = state.view
    state.introduce(parse_pod(pod("none", container("c", 0, 0))))
    ended = pod("ended", container("c", 30, 4), on={"c": [(STATES[0], 30, GIB)]})
    ended["status"] = {"phase": "Failed"}
    state.introduce(parse_pod(ended))
    assert state.view is before


def test_a_pod_with_cards_of_its_own_is_planned_as_soon_as_it_is_seen_if_it_fits() -> None:
    state = state_of(STATES, grant("a", 80))
    for name, cores in (("fits", 20), ("not", 30)):
        one = pod(name, container("c", cores, 4), uid=name, on={"c": [(STATES[0], cores, GIB)]})
        state.introduce(parse_pod(one))
    assert [(a.pod, a.granted) for a in state.view.ledger] == [("a", True), ("fits", False)]
