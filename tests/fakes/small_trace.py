"""A cluster of eight machines and pods for it: small enough to replay in Python, with every kind of request."""

import random

from bench.placement.departures import Coming
from bench.placement.trace import Node, Pod, Trace
from gpu_manager.domain.score.request_mix import RequestShape

NODES = tuple(
    [Node(f"a{i}", 32_000, 100_000, 4, "A") for i in range(4)]
    + [Node(f"b{i}", 16_000, 50_000, 2, "B") for i in range(3)]
    + [Node("c", 16_000, 50_000, 1, "C")]
)
SHAPES = [
    RequestShape(30, 0, 2000),
    RequestShape(81, 0, 3000),
    RequestShape(100, 0, 8000),
    RequestShape(50, 0, 1000, ("B",)),
    RequestShape(0, 0, 4000),
]
SHAPES += [RequestShape(200, 0, 9000)]


def pods_of(count, seed=1):
    chance = random.Random(seed)
    return tuple(
        Pod(f"p{i:04d}", chance.choice(SHAPES), chance.choice([1000, 20_000]), i, i + 500)
        for i in range(count)
    )


TRACE = Trace(NODES, pods_of(30))


def allowed(shape, chance):
    return shape._replace(models=chance.choice([(), (), ("A",), ("A", "B")]))


def coming_and_going():
    return [Coming(pod, 10.0 * at, 500.0) for at, pod in enumerate(pods_of(40))]
