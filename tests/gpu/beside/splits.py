"""T6: parts of a card: who has 50/50, 70/30 or four times 25 gets that, for kernels of 10 µs to 50 ms, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from bench.rows import Row
from tests.gpu.beside.arms import left_out, not_there, note_of
from tests.gpu.container import GIB
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings
from tests.gpu.share import shares_of, spin, whole_of

SPLITS = ((50, 50), (70, 30), (25, 25, 25, 25))
KERNELS_US = (10, 1_000, 50_000)


def cases(settings: Settings) -> Iterator[Case]:
    """Every split with every kernel."""
    for us in KERNELS_US:
        for split in SPLITS:
            seconds = settings.length(us, min(split))
            name = f"split_{'_'.join(map(str, split))}_{us}us"
            yield Case(
                name, seconds + 3 + settings.seconds, partial(_split, name, split, us, seconds=seconds)
            )


def _split(name: str, split: Sequence[int], us: int, machine: Machine, *, seconds: float) -> Iterator[Row]:
    whole, bare = whole_of(machine, len(split), us), whole_of(machine, 1, us)
    with ExitStack() as stack:
        containers = [stack.enter_context(machine.container(2 * GIB, limit)) for limit in split]
        stack.enter_context(host_loop(machine, containers))
        running = [one.start(*spin(machine, us, "stream", seconds)) for one in containers]
        got = [shares_of(process, 1.0)[0] for process in running]
    worst = max(abs(share / whole * 100 - limit) for share, limit in zip(got, split, strict=True))
    shown = "/".join(f"{share / whole:.1%}" for share in got)
    note = note_of(
        machine, f"got {shown} of what {len(split)} bare ones have together, {whole:.1%} of the card"
    )
    yield Row(f"gpu_beside_{name}_error", round(worst, 2), "points", "≤ 1", note=note)
    yield Row(f"gpu_beside_{name}_sum", round(sum(got) / bare, 3), "of one alone", "≥ 0.97", 1.0, note=note)
    why = not_there(machine)["hardware"]
    yield from left_out(machine, [f"gpu_beside_{name}_hardware_error"], "points", "≤ 1", why)
