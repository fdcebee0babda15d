"""Plans over the ledger: what a granted container binds the rest of its pod to, and what it leaves free."""

from __future__ import annotations

import pytest

from gpu_manager.domain.contract import ALLOCATION, Assignment, encode_assignment
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.planner import plan, plan_within
from tests.fakes.node import NODE, container, pod
from tests.fakes.ports import cards
from tests.fakes.state import node_of

STATES = cards(4)


def books(*grants: Grant) -> Books:
    return Books(node_of(STATES), grants)


def granted(of: Pod, name: str, card: int, cores: int = 100, memory: int = 16 * GIB) -> Grant:
    order = next(n for n, c in enumerate(of.containers) if c.name == name)
    kind = of.containers[order].kind
    share = Share(STATES[card].card.uuid, Amount(cores, memory))
    return Grant(Allocation(of.uid, name, kind, order, (share,), of.namespace, of.name), f"dir-{name}")


def where(of: Books, uid: PodUid) -> dict[str, tuple[int, ...]]:
    index = {s.card.uuid: s.card.index for s in STATES}
    return {name: tuple(index[c] for c in held.cards) for name, held in of.ledger.of_pod(uid).items()}


def test_a_whole_card_init_container_binds_the_next_app_container_only() -> None:
    one = parse_pod(
        pod("one", container("a", 100, 0), container("b", 100, 0), init=[container("init", 100, 0)])
    )
    held = books(granted(one, "init", 2))
    plan(held, one, free_choice=True)
    assert where(held, one.uid) == {"init": (2,), "a": (2,), "b": (0,)}


def test_after_a_start_the_second_app_container_may_lie_elsewhere() -> None:
    one = parse_pod(
        pod("one", container("a", 100, 0), container("b", 100, 0), init=[container("init", 100, 0)])
    )
    held = books(granted(one, "init", 2), granted(one, "a", 2))
    plan(held, one, free_choice=True)
    assert where(held, one.uid) == {"init": (2,), "a": (2,), "b": (0,)}


def test_a_sidecar_before_the_first_init_container_stays_free() -> None:
    one = parse_pod(
        pod(
            "one",
            container("app", 100, 0),
            init=[container("side", 100, 0, sidecar=True), container("init", 100, 0)],
        )
    )
    held = books(granted(one, "init", 3))
    plan(held, one, free_choice=True)
    assert where(held, one.uid) == {"init": (3,), "app": (3,), "side": (0,)}


def test_what_is_bound_follows_and_the_rest_obeys_the_annotation() -> None:
    obj = pod("one", container("a", 100, 0), container("b", 100, 0), init=[container("init", 100, 0)])
    chosen = {"b": ((STATES[3].card.uuid, Amount(100, 16 * GIB)),)}
    obj["metadata"]["annotations"][ALLOCATION] = encode_assignment(
        Assignment(NODE, obj["metadata"]["uid"], chosen)
    )
    one = parse_pod(obj)
    held = books(granted(one, "init", 2))
    plan(held, one, free_choice=True)
    assert where(held, one.uid) == {"init": (2,), "a": (2,), "b": (3,)}


def test_nothing_stays_booked_where_the_rest_finds_no_room() -> None:
    one = parse_pod(
        pod("one", container("a", 100, 0), container("b", 100, 0), init=[container("init", 100, 0)])
    )
    other = parse_pod(pod("other", *(container(f"c{i}", 10, 4) for i in range(3))))
    held = books(granted(one, "init", 3), *(granted(other, f"c{i}", i, 10, GIB) for i in range(3)))
    with pytest.raises(DoesNotFit):
        plan(held, one, free_choice=True)
    assert where(held, one.uid) == {"init": (3,)}


def planned_on(held: Books, name: str, card: int, cores: int) -> Pod:
    """A pod that is bound with this card and not admitted yet."""
    obj = pod(name, container("c", cores, 8))
    chosen = {"c": ((STATES[card].card.uuid, Amount(cores, 2 * GIB)),)}
    obj["metadata"]["annotations"][ALLOCATION] = encode_assignment(
        Assignment(NODE, obj["metadata"]["uid"], chosen)
    )
    one = parse_pod(obj)
    plan(held, one, free_choice=False)
    assert where(held, one.uid) == {"c": (card,)}
    return one


def test_plans_make_room_where_the_kubelet_has_chosen_for_another_pod() -> None:
    held = books()
    first, second = planned_on(held, "first", 0, 40), planned_on(held, "second", 0, 40)
    one = planned_on(held, "one", 3, 70)
    moved = plan_within(held, one, one.containers[0], [STATES[0].card.uuid])
    assert moved is not None
    assert where(held, one.uid) == {"c": (0,)}
    elsewhere = where(held, first.uid)["c"] + where(held, second.uid)["c"]
    assert 0 not in elsewhere
    assert len(elsewhere) == 2


def test_plans_stay_where_one_of_them_fits_nowhere_else() -> None:
    sizes = {1: 70, 2: 70, 3: 25}
    others = {card: parse_pod(pod(f"held-{card}", container("c", cores, 8))) for card, cores in sizes.items()}
    held = books(*(granted(others[card], "c", card, cores, 2 * GIB) for card, cores in sizes.items()))
    first, second = planned_on(held, "first", 0, 40), planned_on(held, "second", 0, 40)
    one = planned_on(held, "one", 3, 70)
    before = tuple(held.ledger)
    assert plan_within(held, one, one.containers[0], [STATES[0].card.uuid]) is None
    assert sorted(held.ledger, key=lambda a: a.pod) == sorted(before, key=lambda a: a.pod)
    assert where(held, first.uid) == where(held, second.uid) == {"c": (0,)}


def test_what_is_granted_makes_no_room() -> None:
    running = parse_pod(pod("runs", container("c", 70, 8)))
    held = books(granted(running, "c", 0, 70, 2 * GIB))
    one = planned_on(held, "one", 3, 70)
    assert plan_within(held, one, one.containers[0], [STATES[0].card.uuid]) is None
    assert where(held, one.uid) == {"c": (3,)}
