"""What containers of both classes are charged, beside what the card served them: shapes drawn by chance.

A service of any request and kernel length and load beside one to three jobs, each launching in a way of its
own (one stream, a wait after each kernel, four threads, graphs, bursts) kernels of 20 us to 10 ms.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.protected_cells import BEST_EFFORT_CORES, PROTECTED_CORES, SETTLE_SECONDS, gated, said, serve
from bench.rows import Row
from gpu_manager.domain.priority import Priority
from tests.native.core_world import one_machine, world

SECONDS: Final = 4.0
SHAPES: Final = (12, 60)
"""How many, quick and at full size."""
KINDS: Final = ("stream", "sync", "threads", "graph", "bursts")


@dataclass(frozen=True, slots=True)
class Shape:
    """The service's requests and kernels, how much of its share it asks for, and the jobs."""

    model: str
    size_ms: int
    kernel_us: int
    load: float
    jobs: Sequence[tuple[str, int]]

    def __str__(self) -> str:
        jobs = ", ".join(f"{kind} of {us} us" for kind, us in self.jobs)
        requests = f"requests of {self.size_ms} ms of {self.kernel_us} us at {self.load}"
        return f"{requests}, beside {jobs}; {self.model}s"


def drawn(seed: int) -> Shape:
    """The shape of this number."""
    chance = random.Random(seed)
    count = chance.choice((1, 2, 3))
    return Shape(
        chance.choice(("kernel", "slice")),
        chance.choice((2, 5, 20, 100)),
        chance.choice((50, 200, 1000)),
        chance.choice((0.25, 0.5, 0.9)),
        [(chance.choice(KINDS), chance.choice((20, 50, 100, 200, 1_000, 10_000))) for _ in range(count)],
    )


def errors(shape: Shape) -> list[float]:
    """What the service and each job were charged, less what the card served them: points of the card."""
    with world(state=one_machine(), settings={"turns": shape.model}) as made:
        service = made.tenant(PROTECTED_CORES, priority=Priority.PROTECTED)
        cores = BEST_EFFORT_CORES // len(shape.jobs)
        jobs = [made.tenant(cores, 100, priority=Priority.BEST_EFFORT) for _ in shape.jobs]
        watch = made.watch(100)
        with made.host(service, *jobs), gated(made, service, jobs, protected=True):
            loads = [
                made.start(tenant, kind, us, SECONDS + 3, 1000)
                for tenant, (kind, us) in zip(jobs, shape.jobs, strict=True)
            ]
            for load in loads:
                load.wait_running()
            threading.Event().wait(SETTLE_SECONDS)
            process = serve(made, service, shape.size_ms, SECONDS, kernel_us=shape.kernel_us, load=shape.load)
            threading.Event().wait(0.5)
            tenants = [service, *jobs]
            began, before = time.monotonic_ns(), [made.usage(each).busy_ns for each in tenants]
            threading.Event().wait(SECONDS - 1)
            ended, after = time.monotonic_ns(), [made.usage(each).busy_ns for each in tenants]
            said(process, SECONDS)
            for load in loads:
                load.finish()
            had = watch.shares_until([process.pid, *(load.process.pid for load in loads)], began, ended)
    charged = [(b - a) / (ended - began) * 100 for a, b in zip(before, after, strict=True)]
    return [ours - card for ours, card in zip(charged, had, strict=True)]


def accounts(*, full: bool) -> Iterable[Row]:
    """The worst of all containers of all shapes."""
    shapes = [drawn(seed) for seed in range(SHAPES[full])]
    found = [(error, shape) for shape in shapes for error in errors(shape)]
    error, shape = max(found, key=lambda each: abs(each[0]))
    beyond = sum(abs(each[0]) > 2 for each in found)
    mean = sum(abs(each[0]) for each in found) / len(found)
    note = (
        f"charged less what the card served, {len(found)} containers in {len(shapes)} shapes drawn by chance;"
        f" mean {mean:.2f}, {beyond} beyond 2; worst: {'more' if error > 0 else 'less'} than it had, {shape}"
    )
    yield Row(
        "protected_accounted_error_points", round(abs(error), 1), "of the card", "≤ 2", None, full, note
    )
