"""Arrays of prices and of the order in which nodes are priced, beside the same in plain Python."""

from __future__ import annotations

import random
from itertools import groupby

import numpy as np

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import Fit
from admission.extender.free_cards import FreeCards, promising
from admission.extender.ranking import PriceColumn
from gpu_manager.domain.contract import GPU_MODEL, PLACEMENT
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
from gpu_manager.domain.score.multi_gpu_slots import Loss
from gpu_manager.domain.score.scorer import in_all
from tests.seeds import seeds
from tests.unit.test_extender_kinds import asked, part_used

_WISHES = ({}, {GPU_MODEL: "A100"}, {PLACEMENT: "spread"})
_ASKS = ((10, 1), (30, 20), (60, 4), (100, None), (200, None))


def _left(request: PodRequest, view: NodeView) -> tuple[int, int, str, int]:
    """An idle card broken, what is left (or idle cards), the model; and the free cores in all."""
    request_, rooms = request.containers[0].request, []
    for state in view.node.cards:
        room = view.ledger.room(state.card.uuid)
        if state.open and request.allows_model(state.card.model):
            rooms.append((room, state.card.model))
    total = sum(max(0, view.ledger.room(s.card.uuid).left[0]) for s in view.node.cards if s.open)
    if request_.cards:
        idle = sum(s.open and view.ledger.room(s.card.uuid).idle for s in view.node.cards)
        return 0, idle, next(model for room, model in rooms if room.idle), total
    sign = -1 if request.placement is PlacementPolicy.SPREAD else 1
    needs = request_.amount.cores, request_.amount.memory
    fits = [(r, model) for r, model in rooms if r.left[0] >= needs[0] and r.left[1] >= needs[1]]
    room, model = min(fits, key=lambda one: sign * one[0].left[0])
    return int(room.idle), sign * room.left[0], model, total


def test_unpriced_nodes_are_taken_one_of_each_group_in_turn_the_fullest_first() -> None:
    groups = 0
    for seed in seeds(4):
        dice, cluster = random.Random(seed), part_used(40, seed)
        for core, memory in _ASKS:
            question, request = asked(cluster, core, memory, **dice.choice(_WISHES))
            views = [view for view in cluster.snapshot().nodes.values() if isinstance(question.on(view), Fit)]
            dice.shuffle(views)
            cards = FreeCards()
            cards.read([*cluster.snapshot().nodes.values()])  # models are numbered as they come
            numbers = np.array(dice.sample(range(100), len(views)), np.intp)
            found = promising(numbers, cards.keys(request, views)).tolist()
            order = {model: at for at, model in enumerate(cards._models)}
            keyed = []
            for number, view in zip(numbers.tolist(), views, strict=True):
                broken, left, model, total = _left(request, view)
                keyed.append(((broken, left, order[model]), total, number))
            keyed.sort(key=lambda one: one[:2])
            by_group = [[number for *_, number in run] for _, run in groupby(keyed, key=lambda one: one[0])]
            groups += len(by_group) > 1
            rounds = range(max(map(len, by_group), default=0))
            assert found == [run[at] for at in rounds for run in by_group if at < len(run)]
    assert groups > 5
    assert promising(np.zeros(0, np.intp), np.zeros(0, np.int64)).tolist() == []


def test_totals_are_the_costs_at_present_prices() -> None:
    for seed in seeds(4):
        dice, column = random.Random(seed), PriceColumn()
        column.follow([None] * 200)
        expected: dict[int, float] = {}
        prices = [dice.choice((0.0, dice.random() * CORES_PER_CARD)) for _ in range(6)]
        for number in dice.sample(range(200), 120) * 2:
            cost = round(dice.uniform(-100, 900), 2)
            lost: Loss = tuple(
                (at, dice.randint(1, 3)) for at in sorted(dice.sample(range(6), dice.randint(0, 2)))
            )
            column.put(number, (None, None, 0), cost, lost)  # type: ignore[arg-type]
            expected[number] = in_all((cost,), lost, prices)[0]
        totals = column.totals(prices, {}, 0)
        assert set(np.flatnonzero(~np.isnan(totals)).tolist()) == set(expected)
        for number, total in expected.items():
            assert abs(totals[number] - total) < 0.0100001
        some = np.array(sorted(dice.sample(range(200), 50)))
        kept = column.only(some)
        assert np.array_equal(kept.totals(prices, {}, 0), totals[some], equal_nan=True)
        assert set(kept.keys) == {at for at, number in enumerate(some.tolist()) if number in expected}
