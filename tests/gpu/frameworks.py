"""Programs as they are: they start under the library as without it, and what they leave behind is given back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.rows import Row
from tests.gpu.container import GIB, MIB, Failed, agent, complaint, first_line, said
from tests.gpu.dispatch import torch_command
from tests.gpu.machine import PROGRAMS, Machine
from tests.gpu.observe import within
from tests.gpu.plan import Case, Settings, missing

COMMUNICATORS = 20
ARRAYS = ("jax", "cupy", "numba")
_SLOW = 240.0
_GIVEN_BACK = 3.0
"""Seconds: where the library cannot tell who holds exported memory, its charge waits for the agent's next figures."""
_JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def cases(settings: Settings) -> Iterator[Case]:
    """torch.compile, NCCL on one rank, JAX, CuPy, Numba; PyTorch's allocators and graphs are under memory."""
    yield Case("compile", 90, _compile, needs="torch")
    yield Case("nccl", 60, partial(_nccl, times=settings.count(COMMUNICATORS)), needs="torch")
    for package in ARRAYS:
        yield Case(package, 40, partial(_array, package), needs=package)


def _compile(machine: Machine) -> Iterator[Row]:
    yield from _works(machine, "torch", "compile", torch_command(machine, "compile"))


def _array(package: str, machine: Machine) -> Iterator[Row]:
    command = (machine.python(package) or "python3", str(PROGRAMS / "array_clients.py"), package)
    yield from _works(machine, package, package, command)


def _works(machine: Machine, package: str, name: str, command: tuple[str, ...]) -> Iterator[Row]:
    row = f"gpu_framework_{name}_works"
    lacks = machine.lacks(package)
    if lacks:
        yield from missing([row], "yes", "= 1", lacks)
        return
    try:
        bare = said(machine.bare(*command, **_JAX), _SLOW).strip()
    except Failed as error:
        yield from missing([row], "yes", "= 1", f"it does not work without the library either: {error}")
        return
    with machine.container(8 * GIB, 50) as container, agent(container):
        shown = said(container.start(*command, **_JAX), _SLOW).strip()
    yield Row(
        row,
        float(shown.splitlines()[-1].startswith("works")),
        "yes",
        "= 1",
        1.0,
        note=f"{shown}; bare: {bare}"[-400:],
    )


def _nccl(machine: Machine, *, times: int) -> Iterator[Row]:
    """A communicator that was destroyed gives its memory back: what is charged does not grow with their number."""
    rows = ["gpu_nccl_grows_mib", "gpu_nccl_charge_minus_nvml_mib"]
    lacks = machine.lacks("torch")
    if lacks:
        yield from missing(rows, "MiB", "≤ 0", lacks)
        return
    try:
        said(machine.bare(*torch_command(machine, "nccl", 1)), _SLOW)
    except Failed as error:
        yield from missing(rows, "MiB", "≤ 0", f"it does not work without the library either: {error}")
        return
    with machine.container(8 * GIB, 50) as container, agent(container):
        process = container.start(*torch_command(machine, "nccl", times))
        if not first_line(process, "first held", _SLOW):
            raise Failed(f"NCCL did not start: {complaint(process)}")
        first = container.use().memory
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        if not first_line(process, "works", _SLOW):
            raise Failed(f"NCCL did not go on: {complaint(process)}")
        within(
            _GIVEN_BACK,
            lambda: (
                container.use().memory == machine.memory_of(*container.pids)
            ),  # or not: code is in the latter
        )
        account, used = container.use().memory, machine.memory_of(*container.pids)
    note = f"{first // MIB} MiB charged after the first, {account // MIB} after {times}"
    yield Row(rows[0], (account - first) // MIB, "MiB", "≤ 2", note=note)
    yield Row(
        rows[1],
        None if used is None else (account - used) // MIB,
        "MiB",
        "≥ -1024",
        note=f"{note}; code is not in the account",
    )
