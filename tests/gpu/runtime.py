"""NVIDIA's own CUDA runtime, shared and static: it starts behind the library as without it, and gets no more.

No stand-in can show this: the runtime asks the driver for a proof that it is NVIDIA's, which nobody else has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from tests.gpu.machine import BUILD, HERE, Machine, first_line
from tests.gpu.memory import HELD, MIB, REFUSED, judge

KINDS = {"shared": "libcudart.so.*", "static": "libcudart_static.a"}
PLACE = "CUDA_RUNTIME"
"""A directory to look for the runtime in, before all others."""


def rows(machine: Machine, *, full: bool) -> Iterator[Row]:
    """For each kind: does it start, does it see the limit as the card, is it held to it, also after a reset?"""
    limit = (8192 if full else 2048) * MIB
    with tempfile.TemporaryDirectory(prefix="vcuda-gpu-runtime-") as directory:
        for kind in KINDS:
            starts, over = f"gpu_runtime_starts_{kind}", f"gpu_memory_over_cuda_runtime_{kind}_bytes"
            program = _program(machine, kind, Path(directory))
            if isinstance(program, str):
                yield Row(starts, None, "yes", "= 1", full=full, note=program)
                yield Row(over, None, "bytes", HELD, full=full, note=program)
                continue
            with machine.container(limit) as container:
                process = container.start(str(program), "0", "16")
                said = first_line(process)
                begun = said.startswith("started") and said.endswith(f"total_mib {limit // MIB}")
                note = said or _complaint(process)
                yield Row(starts, float(begun), "yes", "= 1", 1.0, full, note)
                if begun:
                    yield judge(over, container, [process], full=full)
                else:
                    yield Row(over, None, "bytes", HELD, full=full, note="it did not start")


def _program(machine: Machine, kind: str, directory: Path) -> Path | str:
    """The program on the first runtime here that starts on the bare driver, or why there is none."""
    if machine.stand_in:
        return "a stand-in driver does not give NVIDIA's runtime the proof that it asks for"
    found, why = list(_libraries(kind)), f"no {KINDS[kind]} here: install nvidia-cuda-runtime, or set {PLACE}"
    for number, library in enumerate(found):
        program = directory / f"{kind}{number}"
        command = [
            machine.compiler,
            "-O2",
            "-o",
            program,
            HERE / "runtime.c",
            library,
            "-ldl",
            "-lpthread",
            "-lrt",
        ]
        built = subprocess.run(
            [*map(str, command), f"-Wl,-rpath,{library.parent}"], capture_output=True, text=True, check=False
        )
        if built.returncode:
            why = f"{library} cannot be linked with: {built.stderr.strip().splitlines()[-1]}"
            continue
        process = machine.bare(str(program), "0", "65536")
        said = first_line(process)
        process.kill()
        _, complaint = process.communicate()
        if said:
            return program
        why = f"{library} does not start on the bare driver either: {complaint.strip()}"
    return why


def _libraries(kind: str) -> Iterator[Path]:
    """Where a runtime may lie: a directory that was named, PyTorch's, the tests' own wheels, a toolkit's."""
    named = os.environ.get(PLACE)
    compiler = shutil.which("nvcc")
    places = [
        *([Path(named)] if named else []),
        *(Path(place) / "nvidia" for place in sys.path if place.endswith("site-packages")),
        *sorted((BUILD / "cuda-runtime").glob("*"), reverse=True),
        *([Path(compiler).resolve().parents[1]] if compiler else []),
        *sorted(Path("/usr/local").glob("cuda*"), reverse=True),
    ]
    seen = set()
    for place in places:
        for library in sorted(place.rglob(KINDS[kind]), reverse=True) if place.is_dir() else ():
            if library.resolve() not in seen:
                seen.add(library.resolve())
                yield library


def _complaint(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=60)
    if process.returncode == REFUSED:
        return "it was refused its context"
    return err.strip().splitlines()[-1] if err.strip() else f"status {process.returncode}"
