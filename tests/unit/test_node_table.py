"""The table says of each node what judging it alone says, whatever was asked before and in whatever order."""

from __future__ import annotations

import random

import numpy as np

from admission.cluster.snapshot import PODS
from admission.extender.feasibility import FeasibilityJudge, Fit
from admission.extender.many_nodes import NodeTable
from admission.extender.ranking import PriceColumn
from gpu_manager.domain.contract import GPU_MODEL
from tests.fakes.extender import pod
from tests.seeds import seeds
from tests.unit.test_extender_kinds import asked, part_used

_ASKS = ((10, 1), (30, 20), (60, 4), (100, None), (200, None))


def test_names_in_any_order_are_judged_as_each_alone_while_nodes_change() -> None:
    fits = 0
    for seed in seeds(6):
        dice, cluster = random.Random(seed), part_used(40, seed)
        table, names = NodeTable(cluster, spare=4), list(cluster.snapshot().nodes)
        for step in range(40):
            core, memory = dice.choice(_ASKS)
            wishes = dice.choice([{}, {}, {GPU_MODEL: "A100"}])
            question, _ = asked(cluster, core, memory, **wishes)
            some = dice.sample(names, dice.randint(1, len(names)))
            now = cluster.snapshot()
            verdicts = table.verdicts(question, some, now, lambda: False)
            assert verdicts is not None
            alone, _ = asked(cluster, core, memory, **wishes)
            for name, said in zip(some, verdicts.answers, strict=True):
                here = alone.on(now.nodes[name])
                assert said is here or (isinstance(said, Fit) and isinstance(here, Fit)), (seed, step, name)
                fits += isinstance(here, Fit)
            assert len(table._views) <= len(names) + 10 + len(names) // 4, "unused kinds are dropped"
            cluster.apply(PODS, "ADDED", pod(f"new{step}", 1 + step, 1, on=dice.choice(names)))
            for gone in dice.sample(range(4 * 40), 2):
                cluster.apply(PODS, "DELETED", pod(f"p{gone}", 1, 1, on="n0"))
    assert fits > 500


def test_verdicts_stay_as_they_were_given_while_the_table_goes_on() -> None:
    cluster = part_used(20, 1)
    table, names = NodeTable(cluster, spare=1), list(cluster.snapshot().nodes)
    question, _ = asked(cluster, 60, 4)
    first = table.verdicts(question, names, cluster.snapshot(), lambda: False)
    assert first is not None
    before, codes = first.answers, first.codes
    for step in range(60):
        cluster.apply(PODS, "ADDED", pod(f"new{step}", 99, 1, on=names[step % 20]))
        again, _ = asked(cluster, 60, 4)
        assert table.verdicts(again, names, cluster.snapshot(), lambda: False) is not None
    assert (first.answers, first.codes) == (before, codes)


def test_what_the_table_cannot_know_is_left_to_others() -> None:
    cluster = part_used(5, 1)
    table, names = NodeTable(cluster), list(cluster.snapshot().nodes)
    question, _ = asked(cluster, 30, 4)
    then = cluster.snapshot()
    assert table.verdicts(question, [*names, "unknown"], then, lambda: False) is None
    cluster.apply(PODS, "ADDED", pod("new", 10, 1, on="n0"))
    assert table.verdicts(question, names, then, lambda: False) is None, "the cluster has changed since"


def test_prices_go_with_their_kinds_when_others_are_dropped() -> None:
    cluster = part_used(30, 2)
    table, names = NodeTable(cluster, spare=1), list(cluster.snapshot().nodes)
    question, _ = asked(cluster, 10, 1)
    prices = None
    for step in range(30):
        now = cluster.snapshot()
        question = FeasibilityJudge().ask(question.occupant, question.request, now, None)
        verdicts = table.verdicts(question, names, now, lambda: False)
        assert verdicts is not None
        column = verdicts.columns.get(("scorer", 0))
        if column is None:
            column = verdicts.columns["scorer", 0] = PriceColumn()
        column.follow(verdicts.views)
        totals = column.totals([0.0], {}, 0)
        for number in set(verdicts.numbers.tolist()):
            view = verdicts.views[number]
            assert view is not None
            if not np.isnan(totals[number]):
                assert totals[number] == view.state
            column.put(number, (None, None, 0), float(view.state), ())  # type: ignore[arg-type]
        prices = column
        cluster.apply(PODS, "ADDED", pod(f"new{step}", 1, 1, on=names[step]))
    assert prices is not None
    assert len(prices.keys) <= 2 * len(names), "what no node has is dropped"
