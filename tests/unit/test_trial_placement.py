"""The desk on which a pod is placed: what is left of a card, kept up as a sum where that is the peak."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.placement.trial_placement import ContainerGroup, LeastNeed, TrialPlacement
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import Link, Topology
from tests.fakes.counted_calls import calls_of

CARDS = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "T4", 16 * GIB)) for i in range(2))
KINDS = st.sampled_from(ContainerKind)


@given(
    st.lists(st.tuples(KINDS, st.integers(1, 99), st.integers(0, 1), st.booleans()), max_size=8),
    st.lists(st.tuples(KINDS, st.integers(1, 99)), max_size=3),
)
def test_what_is_left_of_a_card_is_what_it_holds_less_the_peak_of_the_pod(laid, more):
    uid = PodUid("uid")

    def container(i, kind, cores):
        return ContainerRequest(f"c{i}", kind, i, Request(cores, cores * DEFAULT_UNIT))

    def allocation(c, at):
        return Allocation(uid, c.name, c.kind, c.order, (Share(CARDS[at].card.uuid, c.request.amount),))

    here = [(container(i, kind, cores), at, there) for i, (kind, cores, at, there) in enumerate(laid)]
    asked = tuple(c for c, _, there in here if not there)
    ledger = Ledger(
        (s.card for s in CARDS), DEFAULT_UNIT, (allocation(c, at) for c, at, there in here if there)
    )
    desk = TrialPlacement(PodRequest(uid, asked), CARDS, ledger)
    for c, at, there in here:
        if not there:
            desk.put(ContainerGroup((c,), 0), (at,))
    members = [container(100 + i, *entry) for i, entry in enumerate(more)]
    for at, state in enumerate(CARDS):
        held = [allocation(c, where) for c, where, _ in here if where == at]
        need = peak((*held, *(allocation(c, at) for c in members)), state.card.uuid)
        assert desk.left(at, members) == state.card.capacity(DEFAULT_UNIT) - need


def test_a_card_with_an_init_container_is_judged_by_laying_the_pod_out_alone():
    """What is left there is no sum: the init container's share passes on to those after it."""
    init = ContainerRequest("init", ContainerKind.INIT, 0, Request(30, DEFAULT_UNIT))
    ledger = Ledger((s.card for s in CARDS), DEFAULT_UNIT)
    desk = TrialPlacement(PodRequest(PodUid("uid"), (init,)), CARDS, ledger)
    too_much = LeastNeed(0, 1000, 0)
    assert desk.lacks(too_much)
    desk.put(ContainerGroup((init,), 0), (0,))
    assert not desk.lacks(too_much)


def test_a_pod_of_twice_as_many_containers_costs_twice_as_much():
    """Anybody may create a pod of hundreds of containers; every node is asked about it."""

    def calls(count):
        request = PodRequest(
            PodUid("uid"),
            tuple(
                ContainerRequest(f"c{i}", ContainerKind.APP, i, Request(1, DEFAULT_UNIT))
                for i in range(count)
            ),
        )
        ledger, found = Ledger((s.card for s in CARDS), DEFAULT_UNIT), []
        made = calls_of(
            lambda: found.append(find(request, CARDS, Topology.uniform(2, Link.parse("SYS")), ledger))
        )
        assert found[0]["c0"][0].amount == Amount(1, DEFAULT_UNIT)
        return made

    assert calls(60) < 2.5 * calls(30)


def test_an_init_container_has_room_where_its_pods_peak_has():
    request = PodRequest(PodUid("uid"), ())
    trial = TrialPlacement(request, CARDS, Ledger((s.card for s in CARDS), DEFAULT_UNIT))
    for memory, fits in ((DEFAULT_UNIT, True), (1 << 50, False)):
        setup = ContainerRequest("setup", ContainerKind.INIT, 0, Request(50, memory))
        assert trial.fits(0, (setup,)) is fits
