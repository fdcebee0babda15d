"""``dryrun_differences``: answers of the dry run that are not those of filter, for equal questions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from bench.rows import Row
from tests.fakes.extender import Obj, World, args, node, pod

_QUICK: Final = 1_000
_FULL: Final = 10_000
_OF_ONE: Final = 40  # questions about one cluster, which changes with each pod that is bound


def rows(*, full: bool) -> Iterator[Row]:
    """Clusters drawn at random, with quotas, illegal pods and nodes that only their objects describe."""
    count, wrong, writes = (_FULL if full else _QUICK), 0, 0
    for seed in range(count // _OF_ONE):
        found = differences(random.Random(seed), _OF_ONE)
        wrong, writes = wrong + found[0], writes + found[1]
    note = f"{count} questions; {writes} of them left a place, an offer or a write behind"
    yield Row("dryrun_differences", wrong + writes, "count", "= 0", full=full, note=note)


def differences(draw: random.Random, count: int) -> tuple[int, int]:
    """How many of so many answers differ, and how many left something behind."""
    names = [f"n{i}" for i in range(draw.randint(1, 6))]
    nodes = [_node(draw, name) for name in names]
    quota = {"default": {"quota": {"Tesla-T4": draw.randint(1, 12)}}} if draw.random() < 0.3 else None
    world = World(nodes, quota=quota, expecting=draw.random() < 0.5)
    wrong = traces = 0
    for number in range(count):
        asked = _pod(draw, number)
        if draw.random() < 0.9:
            world.create(asked)
        body = args(asked, draw.sample(names, draw.randint(1, len(names))))
        before = _traces(world)
        dry = world.extender.dry_run(body).body
        traces += _traces(world) != before
        wrong += dry != world.extender.filter(body).body
        if draw.random() < 0.5:
            world.schedule(asked)
    return wrong, traces


def _traces(world: World) -> tuple[object, ...]:
    snapshot = world.cluster.snapshot()
    return dict(snapshot.reserved), snapshot.turn, dict(world.counts), len(world.api.bindings)


def _node(draw: random.Random, name: str) -> Obj:
    cards = draw.randint(0, 8)
    closed = [i for i in range(cards) if draw.random() < 0.1]
    model = draw.choice(("Tesla-T4", "NVIDIA A100-SXM4-40GB"))
    return node(name, cards, closed=closed, model=model, inventory=draw.random() < 0.95)


def _pod(draw: random.Random, number: int) -> Obj:
    core = draw.choice((10, 30, 50, 100, 150, 200, 400, 900))
    memory = draw.choice((4, 16, 64, 500)) if core < 100 else None
    return pod(f"p{number}", core, memory, priority=draw.choice((0, 0, 5)))
