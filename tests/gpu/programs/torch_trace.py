"""Records a loop with PyTorch's profiler as a trace (tests/data/traces/README.md). Imports nothing of the project."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

RECORD_SECONDS, MOST_LAUNCHES = 2.0, 20_000
WORK = ("kernel", "gpu_memset", "gpu_memcpy")
SYNCHRONISE = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
)
STREAMS = 16


def record(step: Callable[[], None], path: Path, origin: str) -> float:
    """Microseconds of the card that an iteration takes, also told in the trace's origin.

    Raises RuntimeError: the profiler saw no kernel.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        iterations, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < RECORD_SECONDS:
            step()
            iterations += 1
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        whole = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        events = json.loads(whole.read_text(encoding="utf-8"))["traceEvents"]
    work = [e for e in events if e.get("cat") in WORK]
    if not any(e["cat"] == "kernel" for e in work):
        raise RuntimeError("the profiler saw no kernel")
    busy = _union(work) / iterations
    lines = _lines(events, f"{origin}; {busy:.3f} us of the card an iteration")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return busy


def _lines(events: list[dict], origin: str) -> list[str]:
    """Calls in the host's order; times in nanoseconds since the first."""
    called = {
        e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    kernels = [e for e in events if e.get("cat") == "kernel" and e["args"].get("correlation") in called]
    calls = [(called[e["args"]["correlation"]], e) for e in kernels]
    calls += [(e["ts"], e) for e in events if e.get("cat") == "cuda_runtime" and e["name"] in SYNCHRONISE]
    calls.sort(key=lambda call: call[0])
    streams: dict[object, int] = {}
    functions: dict[object, int] = {}
    begin, last, lines = calls[0][0], 0, ["trace 1", f"origin {origin}"]
    for at, event in calls[:MOST_LAUNCHES]:
        now = max(last, round((at - begin) * 1000))
        length = round(event["dur"] * 1000)
        if event["cat"] != "kernel":
            last = now + length
            lines.append(f"synchronise {now} all {last}")
            continue
        last = now
        arguments = event["args"]
        stream = streams.setdefault(arguments.get("stream"), len(streams)) % STREAMS
        function = functions.setdefault((event["name"], str(arguments.get("grid"))), len(functions))
        lines.append(f"launch {now} {stream} {function} {length}")
    return [*lines, f"end {last + 1000}"]


def _union(work: list[dict]) -> float:
    """Microseconds in which anything of it was on the card."""
    total, end = 0.0, float("-inf")
    for begin, length in sorted((e["ts"], e["dur"]) for e in work):
        total += max(0.0, begin + length - max(begin, end))
        end = max(end, begin + length)
    return total
