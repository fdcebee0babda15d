"""One ledger under two names: whatever comes in whatever order, a card that is lent whole is nobody else's."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.services.allocation import planner, preferred_ids
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.books_format import BooksEncoder, decode
from gpu_manager.services.allocation.preferred_ids import IdChoice
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.state import node_of

STATES = cards(4)
NODE_NOW = node_of(STATES)


class BothNames(RuleBasedStateMachine):
    """Pods are planned, granted container by container, released; the books are written and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(NODE_NOW)
        self.pods: dict[str, Pod] = {}
        self.serial = itertools.count()

    @rule(cores=st.sampled_from((1, 30, 50, 99, 100, 200)), units=st.integers(1, 64))
    def a_pod_of_ours_comes(self, cores: int, units: int) -> None:
        self._comes(
            pod(self._name(), container("a", cores, units if cores < 100 else 0), container("b", 10, 4))
        )

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def a_pod_of_nvidias_comes(self, counts: list[int]) -> None:
        limits = [{"name": f"c{n}", "resources": {"limits": {NVIDIA: k}}} for n, k in enumerate(counts)]
        self._comes(pod(self._name(), *limits))

    def _name(self) -> str:
        return f"p{next(self.serial)}"

    def _comes(self, obj: dict[str, object]) -> None:
        new = parse_pod(obj).with_lent_cards()
        try:
            planner.plan(self.books, new, free_choice=True)
            self.pods[new.uid] = new
        except DoesNotFit:
            assert not self.books.ledger.of_pod(new.uid), "all or nothing"

    @rule(data=st.data())
    def a_container_is_granted(self, data: st.DataObject) -> None:
        if self.pods:
            one = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
            books = self.books
            waiting = [a for a in books.ledger.of_pod(one.uid).values() if not a.granted]
            if waiting:
                allocation = waiting[0]
                asking = one.container(allocation.container)
                assert asking is not None
                resources = (NVIDIA,) if asking.lent else (CORE, MEMORY)
                ids = {
                    r: frozenset(
                        preferred_ids.pick(
                            NODE_NOW, IdChoice(r, _free(books, r), (), asking.wants(r)), allocation.cards
                        )
                    )
                    for r in resources
                }
                assert {r: len(found) for r, found in ids.items()} == {r: asking.wants(r) for r in resources}
                books.put(Grant(allocation, f"dir-{one.uid}-{asking.name}", ids=ids))

    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        if self.pods:
            uid = data.draw(st.sampled_from(sorted(self.pods)))
            self.books.release(self.pods.pop(uid).uid)

    @rule()
    def the_agent_restarts(self) -> None:
        grants, planned = decode(BooksEncoder().encode(self.books))
        self.books = Books(NODE_NOW, grants)
        self.books.plan(planned)

    @invariant()
    def no_card_is_promised_twice(self) -> None:
        books, offer = self.books, planner.offer(self.books)
        assert not offer.lent & offer.busy
        for state in STATES:
            uuid = state.card.uuid
            free = books.ledger.free(uuid)
            assert free.cores >= 0
            assert free.memory >= 0
            holders = {a.pod for a in books.ledger.holders(uuid)}
            if uuid in offer.lent:
                assert len(holders) == 1
                assert books.ledger.booked(uuid) == state.card.capacity(DEFAULT_UNIT)
                assert not offer.healthy(CORE, state)
                assert not offer.healthy(MEMORY, state)
            if uuid in offer.busy:
                assert not offer.healthy(NVIDIA, state)
            if not holders:
                assert offer.healthy(CORE, state)
                assert offer.healthy(NVIDIA, state)


def _free(books: Books, resource: str) -> list[str]:
    every = [d for ids in NODE_NOW.ids.of_card[resource].values() for d in ids]
    return [d for d in every if d not in books.taken(every)]


TestBothNames = BothNames.TestCase
TestBothNames.settings = settings(max_examples=60, stateful_step_count=30)
