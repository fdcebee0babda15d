"""The books: never over-committed, all or nothing, and what is released is as if it had never been."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO, Amount

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
CARDS = [Card(i, CardUuid(f"GPU-{i}"), "T4", 16 * GIB) for i in range(3)]
WHOLE = Amount(100, 16 * GIB)
quick = settings(max_examples=150)


def books(*facts):
    return Ledger(CARDS, DEFAULT_UNIT, facts)


def holding(pod="p", name="c", card=0, cores=30, units=4, kind=APP, order=0):
    share = Share(CARDS[card].uuid, Amount(cores, units * DEFAULT_UNIT))
    return Allocation(PodUid(pod), name, kind, order, (share,))


def state(ledger):
    return list(ledger), [ledger.booked(c.uuid) for c in CARDS], ledger.pods


allocations = st.builds(
    holding,
    pod=st.sampled_from("pqr"),
    name=st.sampled_from("abc"),
    card=st.integers(0, 2),
    cores=st.integers(1, 100),
    units=st.integers(1, 64),
    kind=st.sampled_from(ContainerKind),
    order=st.integers(0, 3),
)


def phases(held):
    """Run the pod as Kubernetes does, and note what runs together at each moment."""
    running = []
    for a in sorted(held, key=lambda a: a.order):
        if a.kind is INIT:
            yield [*running, a]
        elif a.kind is SIDECAR:
            running.append(a)
            yield list(running)
    yield running + [a for a in held if a.kind is APP]


@quick
@given(
    st.lists(st.tuples(st.sampled_from(ContainerKind), st.integers(1, 100), st.integers(1, 9)), max_size=6)
)
def test_the_peak_is_the_worst_moment_of_the_pods_life(shapes):
    held = [holding(name=str(i), kind=k, cores=c, units=u, order=i) for i, (k, c, u) in enumerate(shapes)]
    # Kubernetes lists every init container before the apps.
    moments = list(phases(held))
    cores = max(sum(a.shares[0].amount.cores for a in m) for m in moments)
    memory = max(sum(a.shares[0].amount.memory for a in m) for m in moments)
    assert peak(held, CARDS[0].uuid) == Amount(cores, memory)
    assert peak(held, CARDS[1].uuid) == ZERO


@quick
@given(
    st.lists(st.one_of(st.lists(allocations, min_size=1, max_size=3), st.sampled_from("pqr")), max_size=12)
)
def test_no_card_is_ever_over_committed_and_the_books_add_up(steps):
    ledger = books()
    for step in steps:
        if isinstance(step, str):
            ledger.release(PodUid(step))
        else:
            before = state(ledger)
            try:
                ledger.commit(step)
            except DoesNotFit:
                assert state(ledger) == before
            else:
                assert all(ledger.get(*a.key) is not None for a in step)
        for card in CARDS:
            expected = sum((peak(ledger.of_pod(uid).values(), card.uuid) for uid in ledger.pods), ZERO)
            assert ledger.booked(card.uuid) == expected
            assert expected.fits_in(WHOLE)
            assert ledger.free(card.uuid) == WHOLE - expected
            assert ledger.idle(card.uuid) is (not ledger.holders(card.uuid))


@quick
@given(st.lists(allocations, max_size=4), st.lists(allocations, min_size=1, max_size=3))
def test_release_undoes_commit(before, added):
    ledger = books(*before)
    for uid in {a.pod for a in added}:
        ledger.release(uid)
    kept = state(ledger)
    try:
        ledger.commit(added)
    except DoesNotFit:
        return
    returned = [a for uid in {a.pod for a in added} for a in ledger.release(uid)]
    assert {a.key for a in returned} == {a.key for a in added}
    assert state(ledger) == kept


@quick
@given(st.lists(allocations, max_size=6), allocations)
def test_a_copy_is_independent(held, extra):
    ledger = books(*held)
    before = state(ledger)
    twin = ledger.copy()
    assert state(twin) == before
    twin.release(extra.pod)
    twin.refit(())
    assert state(ledger) == before
    assert ledger.capacity(CARDS[0].uuid) == WHOLE


def test_a_batch_that_does_not_fit_leaves_even_the_order_of_booking_alone():
    ledger = books(holding("p", "a"), holding("q", "a"), holding("p", "b"))
    before = state(ledger)
    with pytest.raises(DoesNotFit, match=r"GPU-0 has 10 cores, 13 GiB free"):
        ledger.commit([holding("p", "a", cores=29), holding("r", "a", cores=12)])
    assert state(ledger) == before


def test_a_container_that_asks_again_replaces_what_it_held():
    ledger = books()
    ledger.commit([holding(cores=90)])
    ledger.commit([holding(cores=80)])
    ledger.commit([holding(card=1, cores=100)])
    assert ledger.booked(CARDS[0].uuid) == ZERO
    assert ledger.booked(CARDS[1].uuid).cores == 100
    assert len(ledger) == 1


def test_one_container_of_a_pod_is_released_alone():
    ledger = books(holding(name="a"), holding(name="b", card=1))
    assert [a.container for a in ledger.release(PodUid("p"), "a")] == ["a"]
    assert ledger.release(PodUid("p"), "a") == ()
    assert ledger.release(PodUid("never")) == ()
    assert ledger.idle(CARDS[0].uuid)
    assert set(ledger.of_pod(PodUid("p"))) == {"b"}


def test_facts_may_overfill_a_card_and_then_nothing_more_goes_there():
    ledger = books(holding("p", cores=80), holding("q", cores=80))
    assert ledger.free(CARDS[0].uuid).cores == -60
    with pytest.raises(DoesNotFit):
        ledger.commit([holding("r", cores=1)])
    with pytest.raises(DoesNotFit):
        ledger.commit([holding("p", cores=81)])
    ledger.commit([holding("p", cores=70)])  # less than before: the books get better
    assert ledger.free(CARDS[0].uuid).cores == -50


def test_a_vanished_card_stays_accounted_and_takes_nothing():
    ledger = books(holding(card=2))
    ledger.refit(CARDS[:2])
    assert ledger.capacity(CARDS[2].uuid) == ZERO
    assert ledger.free(CARDS[2].uuid) == ZERO - holding().shares[0].amount
    with pytest.raises(DoesNotFit):
        ledger.commit([holding("q", card=2)])
    ledger.refit(CARDS)
    assert ledger.free(CARDS[2].uuid) == WHOLE - holding().shares[0].amount


def test_a_card_in_mig_mode_holds_nothing():
    ledger = Ledger([Card(0, CardUuid("GPU-m"), "A100", 40 * GIB, mig=True)], DEFAULT_UNIT)
    assert ledger.capacity(CardUuid("GPU-m")) == ZERO


def test_names_may_come_back_with_another_pod():
    ledger = books(holding("old"), holding("new", card=1))
    ledger.release(PodUid("old"))
    assert ledger.get(PodUid("old"), "c") is None
    assert ledger.get(PodUid("new"), "c") == holding("new", card=1)
    assert [a.pod for a in ledger.holders(CARDS[1].uuid)] == ["new"]


def test_a_share_of_a_hundred_cores_is_a_whole_card():
    assert Share(CARDS[0].uuid, WHOLE).whole
    assert not holding().shares[0].whole
