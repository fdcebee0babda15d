"""NVIDIA's own CUDA runtime, shared and static, and its primary context: it starts behind the library as without it, and gets no more.

No stand-in can show the runtime: it asks the driver for a proof that it is NVIDIA's, which nobody else has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from bench.rows import Row
from tests.gpu.container import GIB, MIB, complaint, first_line
from tests.gpu.machine import BUILD, PROGRAMS, Machine
from tests.gpu.memory import HELD, LIMIT, REFUSED, judge
from tests.gpu.plan import Case, Settings, missing

KINDS = {"shared": "libcudart.so.*", "static": "libcudart_static.a"}
PLACE = "CUDA_RUNTIME"
"""A directory to look for the runtime in, before all others."""


def cases(settings: Settings) -> Iterator[Case]:
    """For each kind: does it start, does it see the limit as the card, is it held to it, also after a reset?"""
    for kind in KINDS:
        yield Case(f"runtime_{kind}", 15, partial(_runtime, kind))
    yield Case("contexts", 10, _contexts)


def _runtime(kind: str, machine: Machine) -> Iterator[Row]:
    starts = f"gpu_runtime_starts_{kind}"
    program = _program(machine, kind)
    if isinstance(program, str):
        yield from missing([starts], "yes", "= 1", program)
        names = [
            f"gpu_memory_over_runtime_{kind}_bytes",
            f"gpu_memory_charge_minus_nvml_runtime_{kind}_bytes",
        ]
        yield from missing(names, "bytes", HELD, program)
        return
    with machine.container(LIMIT) as container:
        process = container.start(str(program), "0", "16")
        said = first_line(process)
        begun = said.startswith("started") and said.endswith(f"total_mib {LIMIT // MIB}")
        yield Row(starts, float(begun), "yes", "= 1", 1.0, note=said or _refused(process))
        if begun:
            yield from judge(f"runtime_{kind}", container, [process])


def _refused(process: subprocess.Popen[str]) -> str:
    why = complaint(process)
    return "it was refused its context" if process.returncode == REFUSED else why


def _contexts(machine: Machine) -> Iterator[Row]:
    """What stays charged once every process of a container is gone, and whether eight contexts are charged like eight."""
    with machine.container(4 * GIB) as container:
        command = machine.client("alloc-to-limit", "--most", 0, "--hold", 600)
        several = [container.start(*command) for _ in range(8)]
        for process in several:
            first_line(process, "held_mib")
        account, used = container.use().memory, machine.memory_of(*container.pids)
        note = (
            f"{account // MIB} MiB charged for 8 contexts, {machine.reserve // MIB} MiB each when it is made"
        )
        difference = None if used is None else account - used
        yield Row("gpu_contexts_charge_minus_nvml_bytes", difference, "bytes", "≥ 0", note=note)
        for process in several:
            process.kill()
            process.wait(30)
        yield Row(
            "gpu_contexts_left_charged_bytes",
            container.use().memory,
            "bytes",
            HELD,
            note="after all of them were killed",
        )


def _program(machine: Machine, kind: str) -> Path | str:
    """The program on the first runtime here that starts on the bare driver, or why there is none."""
    if machine.stand_in:
        return "a stand-in driver does not give NVIDIA's runtime the proof that it asks for"
    found, why = list(_libraries(kind)), f"no {KINDS[kind]} here: install nvidia-cuda-runtime, or set {PLACE}"
    for number, library in enumerate(found):
        program = machine.root / f"{kind}{number}"
        source = PROGRAMS / "runtime.c"
        command = [machine.compiler, "-O2", "-o", program, source, library, "-ldl", "-lpthread", "-lrt"]
        built = subprocess.run(
            [*map(str, command), f"-Wl,-rpath,{library.parent}"], capture_output=True, text=True, check=False
        )
        if built.returncode:
            why = f"{library} cannot be linked with: {built.stderr.strip().splitlines()[-1]}"
            continue
        process = machine.bare(str(program), "0", "65536")
        said = first_line(process)
        process.kill()
        _, wrong = process.communicate()
        if said:
            return program
        why = f"{library} does not start on the bare driver either: {wrong.strip()}"
    return why


def _libraries(kind: str) -> Iterator[Path]:
    """Where a runtime may lie: a directory that was named, PyTorch's, the tests' own wheels, a toolkit's."""
    seen = set()
    for place in _places():
        for library in sorted(place.rglob(KINDS[kind]), reverse=True) if place.is_dir() else ():
            if library.resolve() not in seen:
                seen.add(library.resolve())
                yield library


def _places() -> Iterable[Path]:
    named = os.environ.get(PLACE)
    compiler = shutil.which("nvcc")
    return [
        *([Path(named)] if named else []),
        *(Path(place) / "nvidia" for place in sys.path if place.endswith(("site-packages", "dist-packages"))),
        *sorted((BUILD / "cuda-runtime").glob("*"), reverse=True),
        *([Path(compiler).resolve().parents[1]] if compiler else []),
        *sorted(Path("/usr/local").glob("cuda*"), reverse=True),
    ]
