"""The harness that tells cards on another NUMA node which could have been had from those that could not."""

from __future__ import annotations

from dataclasses import replace

from bench import numa, numa_oracle
from bench.numa_oracle import Sets
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.topology import NumaPolicy
from tests.fakes.ports import cards

STATES = cards(3)
CARDS = [state.card.uuid for state in STATES]


def share(pod: str, card: CardUuid, cores: int) -> Allocation:
    shares = (Share(card, Amount(cores, GIB if cores < 100 else 16 * GIB)),)
    return Allocation(PodUid(pod), "c", ContainerKind.APP, 0, shares)


def test_no_container_lies_elsewhere_that_could_have_been_had_and_none_is_refused() -> None:
    found = numa.measure(NumaPolicy.BEST_EFFORT, 6, 1)
    assert found.containers > 40
    assert (found.within_reach, found.refused) == (0, 0), found.told
    assert 0 < found.elsewhere < found.containers / 3
    assert len(found.told) == found.elsewhere


def test_the_oracle_moves_what_is_planned_wherever_it_has_room() -> None:
    held = Ledger((state.card for state in STATES), DEFAULT_UNIT, [share("runs", CARDS[0], 70)])
    one = share("one", CARDS[2], 40)
    (after,) = numa_oracle._ways(held, [one], Sets(CARDS[:2]))
    assert after.free(CARDS[1]).cores == 60, "the first card has no room for it"
    assert numa_oracle._fit(after, [share("whole", CARDS[1], 100), share("part", CARDS[2], 60)], Sets(CARDS))
    assert not numa_oracle._fit(
        after, [share("whole", CARDS[1], 100), share("part", CARDS[2], 61)], Sets(CARDS)
    )
    assert [
        *numa_oracle._ways(held, [replace(one, shares=share("", CARDS[0], 100).shares)], Sets(CARDS[:1]))
    ] == []
