"""Programs that dispatch slower than the card runs, as most do: do they get what they need, are they charged what they take?

Each shape runs bare and at limits. What a shape *needs* is the share of the card's time that it keeps busy
bare, by its own count of kernels or, for PyTorch, by the lengths that its profiler recorded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from bench.rows import Row
from tests.gpu.container import GIB, Failed, complaint, first_line, said
from tests.gpu.machine import PROGRAMS, Machine
from tests.gpu.observe import Seen, observe, observe_round
from tests.gpu.plan import Case, Settings, missing

LIMITS = (99, 50, 30)
KERNELS_US, GAPS_US = (10, 50, 200, 1000), (30, 100, 1000, 10_000)
TORCH_LOOPS = ("eager", "decode")
TRACED = ("eager", "decode", "training", "inference")
FIGURES = ("delivered_ratio", "over_points", "accounted_error_points")
BEYOND_US = 0.95
"""A kernel is on the card for so much longer than from its first instruction to its last, by which the C client counts:
by pairs of events and by PyTorch's profiler, on an H100."""
ROUNDS = 2
AT_REST = 0.02
"""Where a program's bare rate has changed by more than this part meanwhile, nothing that it delivers is judged."""
_BUSY = re.compile(r"origin .*; (\S+) us of the card an iteration")
BARS = {"delivered_ratio": "≥ 0.97", "over_points": "≤ 1", "accounted_error_points": "≤ 2"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A kernel of so many microseconds, then so many of the host's own; waited for after each ``wait`` launches."""

    kernel_us: int
    gap_us: int
    wait: int = 0
    streams: int = 1
    jitter: int = 0

    @property
    def name(self) -> str:
        more = [f"{self.streams}_streams"] * (self.streams > 1) + [f"waits_{self.wait}"] * bool(self.wait)
        return "_".join(
            [f"{self.kernel_us}us_every_{self.gap_us}us", *more, *["jittered"] * bool(self.jitter)]
        )

    def command(self, machine: Machine, seconds: float, *more: object) -> tuple[str, ...]:
        """The C client in this shape."""
        return machine.client(
            "paced", "--us", self.kernel_us, "--every", self.gap_us, "--wait", self.wait, "--streams", self.streams,
            "--jitter", self.jitter, "--seconds", seconds, *more,
        )  # fmt: skip


FIRST = (
    Shape(10, 30), Shape(10, 1000), Shape(50, 100), Shape(200, 1000), Shape(1000, 100), Shape(1000, 10_000),
    Shape(50, 100, wait=1), Shape(50, 100, wait=200), Shape(50, 100, streams=4), Shape(50, 100, jitter=50),
)  # fmt: skip


def cases(settings: Settings) -> Iterator[Case]:
    """PyTorch first: those are the programs that were wrong. Then the named shapes; the whole grid is deep."""
    runs = 2 + len(LIMITS)
    rounds = (1 + 2 * len(LIMITS)) * settings.seconds
    for kind in TRACED:
        yield Case(f"trace_torch_{kind}", 25, partial(_traced_torch, kind), needs="torch")
    for kind in TORCH_LOOPS:
        loops = partial(_torch, kind, seconds=settings.seconds / ROUNDS)
        yield Case(f"torch_{kind}", rounds + 15, loops, needs="torch")
    for shape in FIRST:
        length = settings.length(shape.kernel_us + shape.gap_us, min(LIMITS))
        yield Case(shape.name, runs * (length + 2), partial(_shape, shape, seconds=length))
        if shape.streams == 1:
            half = settings.seconds / 2
            yield Case(f"trace_{shape.name}", half + 2, partial(_traced, shape, half))
    for kernel in KERNELS_US:
        for gap in GAPS_US:
            for shape in (Shape(kernel, gap), Shape(kernel, gap, wait=200, streams=4, jitter=50)):
                if shape not in FIRST:
                    length = settings.length(kernel + gap, min(LIMITS))
                    yield Case(
                        shape.name, runs * (length + 2), partial(_shape, shape, seconds=length), deep=True
                    )


def _shape(shape: Shape, machine: Machine, *, seconds: float) -> Iterator[Row]:
    command = shape.command(machine, seconds)
    found = _runs(machine, command)
    if found.moved > AT_REST:  # once more: what it does bare is what the rest is judged by
        found = _runs(machine, command)
    yield from _judged(shape.name, found.beside, found.each, "by its own count of kernels")


def _torch(kind: str, machine: Machine, *, seconds: float) -> Iterator[Row]:
    name = f"torch_{kind}"
    lacks = machine.lacks("torch")
    if lacks:
        for limit in LIMITS:
            for figure in FIGURES:
                yield from missing(
                    [f"gpu_dispatch_{name}_{limit}_{figure}"], _unit(figure), BARS[figure], lacks
                )
        return
    beside = _rounds(machine, torch_command(machine, "rounds", kind, seconds))
    yield from _judged(name, beside, _recorded(machine, kind)[0], "by its profiler")


def torch_command(machine: Machine, *arguments: object) -> tuple[str, ...]:
    """PyTorch's client, on the interpreter that has it."""
    return (machine.python("torch") or "python3", str(PROGRAMS / "torch_client.py"), *map(str, arguments))


@dataclass(frozen=True, slots=True)
class _Beside:
    """A program at a limit, and its bare rate before and after."""

    seen: Seen
    before: float
    after: float

    @property
    def bare(self) -> float:
        """Iterations a second."""
        return (self.before + self.after) / 2

    @property
    def moved(self) -> float:
        """By which part of itself the bare rate has changed meanwhile."""
        return abs(self.after / self.before - 1) if self.before else 1.0


@dataclass(frozen=True, slots=True)
class _Runs:
    """A program at each limit, and the seconds of the card that an iteration takes; None: not known."""

    beside: Mapping[int, _Beside]
    each: float | None

    @property
    def moved(self) -> float:
        """The most that a bare rate has changed."""
        return max(one.moved for one in self.beside.values())


def _runs(machine: Machine, command: tuple[str, ...]) -> _Runs:
    """Bare, at each limit, and bare again."""
    bare, limited = observe(machine, command), {}
    for limit in LIMITS:
        with machine.container(16 * GIB, limit) as container:
            limited[limit] = observe(machine, command, container)
    again = observe(machine, command)
    beyond = 0 if machine.stand_in else BEYOND_US * 1e-6
    each = bare.share / bare.rate + beyond if bare.share is not None and bare.rate else None
    return _Runs({limit: _Beside(seen, bare.rate, again.rate) for limit, seen in limited.items()}, each)


def _rounds(machine: Machine, command: tuple[str, ...]) -> Mapping[int, _Beside]:
    """One process bare and one at each limit, started together, as starting takes the longest; then in turns, bare
    between each two, since a host's speed drifts by more than limits change it.
    """
    with contextlib.ExitStack() as stack:
        containers = {limit: stack.enter_context(machine.container(16 * GIB, limit)) for limit in LIMITS}
        bare = machine.bare(*command)
        limited = {limit: container.start(*command) for limit, container in containers.items()}
        for process in (bare, *limited.values()):
            if first_line(process, "ready") != "ready":
                raise Failed(f"{' '.join(command)} did not begin: {complaint(process)}")
        found: dict[int, list[_Beside]] = {limit: [] for limit in LIMITS}
        before = observe_round(machine, bare).rate
        for _ in range(ROUNDS):
            for limit, container in containers.items():
                seen = observe_round(machine, limited[limit], container)
                after = observe_round(machine, bare).rate
                found[limit].append(_Beside(seen, before, after))
                before = after
        bare.kill()
    return {limit: _together(some) for limit, some in found.items()}


def _together(some: Sequence[_Beside]) -> _Beside:
    """The means of some rounds."""

    def mean(figures: Sequence[float | None]) -> float | None:
        known = [figure for figure in figures if figure is not None]
        return fmean(known) if known else None

    seen = [one.seen for one in some]
    rate, wall = fmean(s.rate for s in seen), sum(s.wall for s in seen)
    account, witness = mean([s.account for s in seen]), mean([s.witness for s in seen])
    together = Seen(rate, wall, mean([s.share for s in seen]), account, witness, seen[-1].witness_of)
    return _Beside(together, fmean(one.before for one in some), fmean(one.after for one in some))


def _judged(name: str, runs: Mapping[int, _Beside], each: float | None, how: str) -> Iterator[Row]:
    for limit, beside in runs.items():
        seen, need = beside.seen, None if each is None else each * beside.bare
        at_rest = beside.moved <= AT_REST
        note = "" if at_rest else f"not at rest: bare {beside.before:.1f}, then {beside.after:.1f} a second; "
        note += "what it needs is not known; " if need is None else f"needs {need:.1%} {how}; "
        note += f"{seen.rate:.1f} a second beside {beside.bare:.1f} bare; charged {_percent(seen.account)}, "
        note += f"NVML saw {_percent(seen.witness)} of {seen.witness_of or 'nothing'}"
        for figure, value in _figures(beside, need, limit, at_rest).items():
            yield Row(f"gpu_dispatch_{name}_{limit}_{figure}", value, _unit(figure), BARS[figure], note=note)


def _figures(beside: _Beside, need: float | None, limit: int, at_rest: bool) -> dict[str, float | None]:
    """None where the machine lacks what a figure is made of, or was not at rest: what an iteration takes of the card is
    known all the same, so that accounts are judged.
    """
    seen, bare = beside.seen, beside.bare
    if need is None or not bare:
        return dict.fromkeys(FIGURES)
    took = need * seen.rate / bare
    due = min(1.0, limit / 100 / need) if need else 1.0
    account = seen.account
    return {
        "delivered_ratio": round(seen.rate / bare / due, 4) if at_rest else None,
        "over_points": round(max(0.0, took * 100 - limit), 2),
        "accounted_error_points": None if account is None else round(abs(account - took) * 100, 2),
    }


def _unit(figure: str) -> str:
    return figure.rpartition("_")[2]


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.1%}"


def _traced(shape: Shape, seconds: float, machine: Machine) -> Iterable[Row]:
    """The shape recorded bare: what it launched when, and how long each kernel took."""
    path = _trace_path(machine, shape.name)
    said(
        machine.bare(
            *shape.command(machine, seconds, "--trace", path, "--origin", f"{shape.name}, {_origin(machine)}")
        )
    )
    return [_trace_row(f"gpu_trace_{shape.name}_launches", path)]


def _traced_torch(kind: str, machine: Machine) -> Iterable[Row]:
    name = f"gpu_trace_torch_{kind}_launches"
    lacks = machine.lacks("torch")
    if lacks:
        return missing([name], "launches", "≥ 1", lacks)
    _, why = _recorded(machine, kind)
    path = _trace_path(machine, f"torch_{kind}")
    return [_trace_row(name, path)] if path.exists() else missing([name], "launches", "≥ 1", why)


def _recorded(machine: Machine, kind: str) -> tuple[float | None, str]:
    """(seconds of the card that an iteration takes, why that is not known); recorded once for a results file."""
    path = _trace_path(machine, f"torch_{kind}")
    if not path.exists():
        command = torch_command(machine, "record", kind, path, f"PyTorch, {kind}, {_origin(machine)}")
        try:
            said(machine.bare(*command), 180)
        except Failed as error:
            return None, f"its profiler records no kernels here: {error}"
    found = _BUSY.search(path.read_text(encoding="utf-8"))
    return (
        (float(found[1]) * 1e-6, "") if found else (None, f"{path.name} does not say what an iteration takes")
    )


def _trace_path(machine: Machine, name: str) -> Path:
    machine.traces.mkdir(parents=True, exist_ok=True)
    return (machine.traces / f"{name}.trace").resolve()


def _origin(machine: Machine) -> str:
    return f"{machine.card.model}, {machine.driver}, without a limit"


def _trace_row(name: str, path: Path) -> Row:
    launches = sum(line.startswith("launch ") for line in path.read_text(encoding="utf-8").splitlines())
    return Row(name, launches, "launches", "≥ 1", note=f"{path.name}, for the replayer and the stand-in")
