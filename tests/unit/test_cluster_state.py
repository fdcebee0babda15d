"""A cluster's books seen from outside: every amount is charged once, whatever annotations say."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.state import NodeReport, survey
from gpu_manager.domain.contract import ALLOCATION, CORDON, Assignment, Inventory, encode_assignment
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, Amount
from gpu_manager.domain.topology import Link, Topology

UNIT = 256 << 20


def node(name: str = "n1", cards: int = 2, cordon: str = "") -> NodeReport:
    states = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "V100", 16 * GIB)) for i in range(cards))
    inventory = Inventory(UNIT, states, Topology.uniform(cards, Link.parse("SYS")))
    return NodeReport.of(name, inventory, {CORDON: cordon} if cordon else {}, {})


def pod(name: str, cores: int, said: str | None = None, *, at: str = "n1", claims: int | None = None) -> Pod:
    uid = PodUid(f"uid-{name}")
    annotations = {}
    if said is not None:
        shares = {"c": ((CardUuid(said), Amount(cores if claims is None else claims, UNIT)),)}
        annotations[ALLOCATION] = encode_assignment(Assignment(at, uid, shares))
    made = Container("c", ContainerKind.APP, core=Fraction(cores), memory_units=Fraction(1))
    return Pod(uid, "default", name, (made,), at, "Running", annotations, created=name)


def test_a_pod_that_says_its_card_is_charged_there_and_a_silent_one_where_the_node_would_put_it() -> None:
    (books,) = survey([node()], [pod("b", 60, "GPU-1"), pod("a", 30)])
    assert [books.ledger.booked(CardUuid(f"GPU-{i}")).cores for i in (0, 1)] == [0, 90]
    assert books.guessed == {"uid-a"}


def test_what_an_annotation_claims_below_the_spec_is_not_heard() -> None:
    (books,) = survey([node()], [pod("liar", 60, "GPU-0", claims=1)])
    assert books.ledger.booked(CardUuid("GPU-0")).cores == 60


def test_an_annotation_about_another_pod_or_node_says_nothing() -> None:
    other = pod("a", 60, "GPU-1", at="n2")
    moved = Pod(other.uid, "default", "a", other.containers, "n1", "Running", other.annotations)
    (books,) = survey([node()], [moved])
    assert books.guessed == {"uid-a"}


def test_a_pod_for_which_there_is_no_room_is_named_not_squeezed_in() -> None:
    (books,) = survey([node(cards=1)], [pod("a", 60), pod("b", 60)])
    assert [homeless.name for homeless in books.homeless] == ["b"]
    assert books.ledger.booked(CardUuid("GPU-0")).cores == 60


def test_a_cordoned_card_takes_nothing_and_the_verdict_says_so() -> None:
    (books,) = survey([node(cards=1, cordon="GPU-0")], [])
    verdict = books.verdict(pod("new", 10, at=""))
    assert isinstance(verdict, Refusal)
    assert "cordoned" in verdict.line()


def test_ended_pods_and_pods_of_unknown_nodes_hold_nothing() -> None:
    ended = Pod(PodUid("u"), "default", "x", pod("x", 60).containers, "n1", "Succeeded")
    (books,) = survey([node()], [ended, pod("y", 10, at="n7")])
    assert len(books.ledger) == 0


asked = st.lists(
    st.tuples(st.integers(1, 99), st.sampled_from([None, "GPU-0", "GPU-1", "GPU-of-nobody"])), max_size=8
)


@given(asked)
def test_every_pod_is_booked_once_or_named_and_guesses_never_over_commit(
    pods: list[tuple[int, str | None]],
) -> None:
    (books,) = survey([node()], [pod(f"p{i}", cores, said) for i, (cores, said) in enumerate(pods)])
    booked = {*books.ledger.pods, *(p.uid for p in books.homeless)}
    assert booked == {f"uid-p{i}" for i in range(len(pods))}
    for card in ("GPU-0", "GPU-1"):
        said = sum(cores for cores, where in pods if where == card)
        assert books.ledger.booked(CardUuid(card)).cores <= max(said, CORES_PER_CARD)
