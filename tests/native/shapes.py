"""Programs in the shapes of real frameworks on the modelled card: what they need, had, and were charged.

A program is a list of words (core_shape.c says which). It runs bare, or in a container with a core limit, in one process
or several at once. The judge is the modelled card, which counts what it serves each process, and the program itself,
which counts the kernels that it asked for. The stand-in's calls cost what a profile of :data:`COSTS` says.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gpu_manager.domain.enforcement.driver_overhead import account_error
from tests.native import standin
from tests.native.core_world import World, until, world
from tests.native.programs import compiled
from vcuda.page.usage import CardUsage

H100: Final = {"costs": "h100", "quantum_us": 2430, "switch_us": 100}
"""What an H100's calls, records and turns were seen to take (tests/data/cards)."""
FREE: Final = {"costs": "free", "quantum_us": 2000}
"""Calls and turns that cost nothing."""
COSTS: Final[Mapping[str, Mapping[str, int | str]]] = {"h100": H100, "free": FREE}
READY_NS: Final = 30_000_000
"""So long after the last process is ready, all of them begin."""
FLOODED_NS: Final = 300_000_000
"""A flood has had so much of the card before another container comes."""
LOOK_MS: Final = 25
WINDOW_NS: Final = 1_000_000_000
SAME_POINTS: Final = 0.1
"""The card serves a program what it asked for: by its own count and the program's, but for the last instant."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A program, and what it imitates; ``processes``: it is run in so many at once."""

    name: str
    words: str
    imitates: str
    processes: Sequence[int] = (1, 2)

    @property
    def overlaps(self) -> bool:
        """True if its kernels may run at the same time: then they take less of the card than the sum of them."""
        return any(word.startswith("o:") for word in self.words.split())


@dataclass(frozen=True, slots=True)
class Use:
    """One run. Figures are percent of the card's time, from the first launch until the last work was done.

    ``had`` is what the card served but for copies, which no limit is for; the library's own records are in it. ``work`` is
    what its kernels took: by the program's own count, or by the card's where they may overlap. ``fullest`` is what it had
    in the fullest window of a second that begins a second or more after the first launch. ``longest`` is its longest
    kernel or graph, as a part of a second, ``seconds`` how long it took. ``error`` is what the account is published to be
    wrong by at most.
    """

    work: float
    had: float
    charged: float
    fullest: float
    longest: float
    seconds: float
    launches: int
    error: float = 0.0


class DisagreementError(Exception):
    """The program asked the modelled card for more than that says it served."""


def bare(shape: Shape, processes: int, seconds: float, costs: str, seed: int = 1) -> Use:
    """The program without a library, alone on its card."""
    with world(settings=COSTS[costs]) as made:
        driver = {"LD_LIBRARY_PATH": str(standin.built() / made.version)}
        environment = standin.environment(made.state, made.version, **made.settings) | driver
        return _run(made, environment, shape, processes, seconds, seed, lambda: None)


def held(shape: Shape, limit: int, processes: int, seconds: float, costs: str, seed: int = 1) -> Use:
    """The program in a container with this limit, alone on its card."""
    with world(settings=COSTS[costs]) as made:
        tenant = made.tenant(limit)
        environment = made.environment(tenant)
        return _run(made, environment, shape, processes, seconds, seed, lambda: made.usage(tenant))


def beside(
    shape: Shape,
    limit: int,
    flood: int,
    seconds: float,
    costs: str,
    seed: int = 1,
    processes: int = 1,
    containers: int = 1,
) -> Use:
    """The program in a container with this limit, beside others whose kernels of 1 ms fill the card.

    The other ``containers`` share the limit ``flood`` evenly.
    """
    with world(settings=COSTS[costs]) as made:
        tenant, others = made.tenant(limit), [made.tenant(flood // containers) for _ in range(containers)]
        with made.host(tenant, *others):
            loads = [made.start(other, "stream", 1000, seconds + 60.0) for other in others]
            for load, other in zip(loads, others, strict=True):
                load.wait_running()
                assert until(lambda other=other: made.usage(other).busy_ns > FLOODED_NS // containers)
            environment = made.environment(tenant)
            use = _run(
                made, environment, shape, processes, seconds, seed, lambda: made.usage(tenant), shared=True
            )
            for load in loads:
                load.kill()
            return use


def together(shapes: Sequence[Shape], limits: Sequence[int], seconds: float, costs: str) -> Sequence[Use]:
    """Programs of one process each, in containers with these limits, at the same time on one card."""
    with world(settings=COSTS[costs]) as made, ThreadPoolExecutor(len(shapes)) as pool:
        tenants = [made.tenant(limit) for limit in limits]
        with made.host(*tenants):
            return list(
                pool.map(
                    lambda number: _run(
                        made, made.environment(tenants[number]), shapes[number], 1, seconds, number + 1,
                        lambda: made.usage(tenants[number]), shared=True,
                    ),
                    range(len(shapes)),
                )
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Said:
    """What a process says at its end, in nanoseconds."""

    done: int
    asked: int
    copied: int
    longest: int
    launches: int


def _run(
    made: World,
    environment: Mapping[str, str],
    shape: Shape,
    processes: int,
    seconds: float,
    seed: int,
    account: Callable[[], CardUsage | None],
    *,
    shared: bool = False,
) -> Use:
    watch = made.watch(LOOK_MS)
    started = [
        subprocess.Popen(
            [str(compiled("core_shape.c")), str(seconds), str(seed * 64 + number), *shape.words.split()],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip
    try:
        for process in started:
            assert _line(process) == "ready"
        begin = time.monotonic_ns() + READY_NS
        for process in started:
            _tell(process, begin)
        said = [_Said(*map(int, _line(process).split()[1:])) for process in started]
        told = account()
        pids = [process.pid for process in started]
        end = max(one.done for one in said)
        served_ns = sum(watch.served(pid) for pid in pids)
        windows = [
            sum(watch.between(pids, at, at + WINDOW_NS))
            for at in range(begin + WINDOW_NS, end - WINDOW_NS, LOOK_MS * 1_000_000)
        ]
        for process in started:
            _tell(process, 0)
            process.communicate(timeout=30)
    finally:
        for process in started:
            process.kill()
            process.communicate()
        watch.kill()
    asked_ns = sum(one.asked for one in said)
    had_ns = max(0, served_ns - sum(one.copied for one in said))
    percent = 100 / (end - begin)
    if not shape.overlaps and (asked_ns - had_ns) * percent > SAME_POINTS:
        raise DisagreementError(f"{shape.name}: asked {asked_ns}, had {had_ns} ns")
    charged_ns, took = told.busy_ns if told else 0, (end - begin) / 1e9
    error = account_error(
        charged_ns / (end - begin), told.error_us2 * 1e-12 / took**2, told.launches / took,
        processes=processes, shared=shared,
    ) if told else 0.0  # fmt: skip
    return Use(
        work=(had_ns if shape.overlaps else asked_ns) * percent,
        had=had_ns * percent,
        charged=charged_ns * percent,
        fullest=max(windows, default=0.0) * had_ns / max(1, served_ns),
        longest=max(one.longest for one in said) / WINDOW_NS * 100,
        seconds=took,
        launches=sum(one.launches for one in said),
        error=error * 100,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline().rstrip("\n")
    assert line, process.communicate()
    return line


def _tell(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
