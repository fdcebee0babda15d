"""The demo's chapters on limits: real processes on the stand-in driver, held by libvcuda."""

from __future__ import annotations

import os
import re
from typing import Final

from gpu_manager.domain.contract import GPU_UUID
from gpu_manager.domain.resources import GIB
from sandbox.demo.output import DemoOutput
from sandbox.demo.scenes import mebibytes
from sandbox.demo.stage import Stage, manifest

_BUSY: Final = 2.0  # work waiting, in processors' worth; what this demo itself brings is less
# In the first seconds of both, of which docs/internals/limits.md tells, on a laptop that does other things;
# make bench measures exactly.
TOLERANCE_POINTS: Final = 10.0
_FILLED: Final = re.compile(r"allocated (\d+) bytes, then (\w+); .* a card of (\d+) bytes")
_RAN: Final = re.compile(r"ran [\d.]+ in [\d.]+: ([\d.]+) % of the card")
_SIZES: Final = re.compile(r"\d+MiB / (\d+)MiB")


def left_out(paper: DemoOutput) -> None:
    """One line instead of these chapters."""
    paper.heading("Limits inside a container: left out")
    paper.line("the native part (libvcuda and its stand-in driver) is not built into this installation")


def memory(stage: Stage, paper: DemoOutput) -> None:
    """Not one byte past 5 GiB."""
    output = _output(stage, paper, "limits-memory", "fill")
    match = _FILLED.search(output)
    got, total = (int(match[1]), int(match[3])) if match else (0, 0)
    paper.check(
        match is not None and 4 * GIB <= got <= 5 * GIB and match[2] == "CUDA_ERROR_OUT_OF_MEMORY",
        f"it got {mebibytes(got)} and not one step more",
    )
    paper.check(total == 5 * GIB, f"the card that it sees has {mebibytes(total)}")


def cores(stage: Stage, paper: DemoOutput) -> None:
    """30 and 60 on one card."""
    title, objects = manifest("limits-cores")
    paper.heading(title)
    empty = next(c for c in stage.sandbox.graph()["cards"][::-1] if not c["holders"])
    for pod in objects:
        pod["metadata"]["annotations"] = {GPU_UUID: empty["uuid"]}
    names = stage.apply(objects)
    stage.settle(names, "Running", "Succeeded", "Failed")
    for share in stage.held(*names):
        paper.line(f"{share.pod:10} {share}")
    stage.settle(names, "Succeeded", "Failed", seconds=20)
    busy = _busy()
    for name in names:
        wanted, output = float(name.rpartition("-")[2]), stage.log(name, "spin")
        match = _RAN.search(output)
        paper.line(f"{name}: {output}")
        ran = float(match[1]) if match else 0.0
        short = wanted - ran > TOLERANCE_POINTS
        paper.check(
            match is not None and ran <= wanted + TOLERANCE_POINTS and not (short and not busy),
            f"{name} got {ran:.1f} % of the card's time, due {wanted:.0f} % ± {TOLERANCE_POINTS:.0f}",
        )
        if short and busy:
            paper.line(f"(less than its due, because this machine is busy: {busy})")
    stage.remove(names)


def _busy() -> str:
    """Why programs may be too slow here to ask for all that they are due; empty if they are not.

    What they get at most is judged all the same.
    """
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    return f"load {load:.0f} on {processors} processors" if load > _BUSY * processors else ""


def inside(stage: Stage, paper: DemoOutput) -> None:
    """What a container sees."""
    output = _output(stage, paper, "limits-smi", "smi")
    sizes = _SIZES.findall(output)
    paper.check(sizes == ["5120"], "one card of 5120 MiB, although it has 40960")


def _output(stage: Stage, paper: DemoOutput, name: str, container: str) -> str:
    """Run a pod to its end and show what it wrote."""
    title, objects = manifest(name)
    paper.heading(title)
    names = stage.apply(objects)
    stage.settle(names, "Succeeded", "Failed")
    output = stage.log(names[0], container)
    paper.lines(output.splitlines())
    stage.remove(names)
    return output
