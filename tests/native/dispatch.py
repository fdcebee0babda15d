"""Programs that dispatch slower than the card runs, on the stand-in driver, judged by the modelled card.

A program is bare (the driver alone) or in a container with a core limit. The card says how long it served the program,
the usage page says what the container was accounted for; the limit may delay nothing that the program needs.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.native import standin
from tests.native.core_world import World, world
from tests.native.programs import compiled

LOOK_MS = 50
"""A window of a second begins this often."""
KERNELS_US = (10, 50, 200, 1000)
GAPS_US = (30, 100, 1000, 10_000)
SYNCHRONISE = (0, 200, 1)
LIMITS = (99, 50, 30)
UNSTEADY_POINTS = 1.0
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A loop: a kernel of so many microseconds, then so much host work; ``every`` n launches it waits, 0: never."""

    kernel_us: int
    gap_us: int
    jittered: bool = False
    streams: int = 1
    every: int = 0

    def __str__(self) -> str:
        rhythm = "jittered" if self.jittered else "regular"
        waits = {0: "never waits", 1: "waits for each"}.get(self.every, f"waits every {self.every}")
        return f"{self.kernel_us} us each {self.gap_us} us, {rhythm}, {self.streams} streams, {waits}"


ALL = [
    Shape(kernel, gap, jittered, streams, every)
    for kernel, gap, jittered, streams, every in itertools.product(
        KERNELS_US, GAPS_US, (False, True), (1, 4), SYNCHRONISE
    )
]
NAMED = (
    Shape(10, 30), Shape(10, 1000), Shape(10, 30, jittered=True, streams=4), Shape(10, 100),
    Shape(50, 30, jittered=True, streams=4, every=200), Shape(200, 1000, streams=4), Shape(200, 100, every=1),
    Shape(1000, 1000, jittered=True),
)  # fmt: skip
"""Of these, at each limit, the quick bench has its 24 cells."""


@dataclass(frozen=True, slots=True)
class Use:
    """One run, in percent of the time that it launched for; ``busiest`` is of the fullest second, ``kernels`` is what
    its kernels take by themselves, where ``true`` has the card's pauses and records in it."""

    true: float
    accounted: float
    busiest: float
    kernels: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A shape at a limit beside its bare self."""

    shape: Shape
    limit: int
    need: float
    use: Use

    @property
    def accounted_error(self) -> float:
        return abs(self.use.accounted - self.use.true)

    @property
    def delivered(self) -> float:
        return self.use.true / min(self.need, self.limit)

    @property
    def over(self) -> float:
        return self.use.busiest - self.limit

    def __str__(self) -> str:
        return (
            f"{self.shape} at {self.limit}: needs {self.need:.1f}, had {self.use.true:.1f}, "
            f"accounted {self.use.accounted:.1f}"
        )


def run(made: World, environment: Mapping[str, str], shape: Shape, seconds: float, busy_ns: object) -> Use:
    """Play the shape; ``busy_ns`` is asked for the account at the end."""
    assert callable(busy_ns)
    watch = made.watch(LOOK_MS)
    arguments = (shape.kernel_us, shape.gap_us, seconds, "jittered" if shape.jittered else "regular",
                 shape.streams, shape.every)  # fmt: skip
    process = subprocess.Popen(
        [str(compiled("core_dispatch.c")), *map(str, arguments)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "running\n", process.communicate()
        line = process.stdout.readline().split()
        assert line[0] == "launched", process.communicate()
        took, launches = float(line[1]), int(line[2])
        accounted = busy_ns()
        served = watch.served(process.pid)
        process.communicate("\n", timeout=30)
    finally:
        process.kill()
        process.wait()
        fullest = watch.fullest(process.pid, 1000 // LOOK_MS)
    kernels = launches * shape.kernel_us / 1e4 / took
    return Use(served / 1e7 / took, accounted / 1e7 / took, fullest, kernels)


def bare(shape: Shape, seconds: float, **settings: object) -> float:
    """What the program takes of a card that it has for itself, in percent; ``settings`` are the stand-in's."""
    with world() as made:
        driver = standin.built() / made.version
        environment = standin.environment(made.state, made.version, **settings)
        environment |= {"LD_LIBRARY_PATH": str(driver)}
        return run(made, environment, shape, seconds, lambda: 0).true


def held(shape: Shape, limit: int, seconds: float, **settings: object) -> Use:
    """The same in a container with this limit."""
    with world() as made:
        tenant = made.tenant(limit)
        environment = made.environment(tenant) | standin.chosen(**settings)
        return run(made, environment, shape, seconds, lambda: float(made.usage(tenant).busy_ns))


@dataclass(frozen=True, slots=True)
class UnsteadyError(Exception):
    """The machine was too busy: the same program, bare, took more or less of the card after than before."""

    shape: Shape
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.shape}: bare {self.before:.1f} before and {self.after:.1f} after, in {ATTEMPTS} attempts"
        )


def cells(shape: Shape, limits: Sequence[int], seconds: float) -> Iterator[Cell]:
    """The shape at these limits, between two bare runs that agree; :class:`UnsteadyError` if none do."""
    for _ in range(ATTEMPTS):
        before = bare(shape, seconds)
        uses = [held(shape, limit, seconds) for limit in limits]
        after = bare(shape, seconds)
        if abs(before - after) <= UNSTEADY_POINTS:
            need = (before + after) / 2
            return (Cell(shape, limit, need, use) for limit, use in zip(limits, uses, strict=True))
    raise UnsteadyError(shape, before, after)
