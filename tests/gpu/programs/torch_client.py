"""What PyTorch does with a card, for the tests. Runs in the container; imports nothing of the project.

``fill`` and ``graphs`` take memory until refused, ``loop``, ``rounds`` and ``record`` run a loop timed, again and
again, or under the profiler,
``compile``, ``forks`` and ``nccl`` do what the name says and print ``works`` with what they saw.
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

MIB = 1 << 20
SEEN = 6.0
"""Seconds after which the agent has counted what a process takes without a call."""
WARM = 20


def fill() -> None:
    """Allocate 16 MiB at a time until the allocator gives up, after its own attempts to make room."""
    held = []
    try:
        while True:
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        torch.cuda.synchronize()
    print(f"held_mib {len(held) * 16} error 2", flush=True)
    sys.stdin.read()


def graphs() -> None:
    """Capture a graph with memory of its own, replay it, then fill the rest."""
    x = torch.randn(1024, 1024, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        for _ in range(3):
            x @ x
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(16):
            y = (y @ x).relu()
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    time.sleep(SEEN)  # the libraries' code
    fill()


def _warm(kind: str) -> Callable[[], None]:
    from torch_loops import step  # noqa: PLC0415

    one = step(kind)
    for _ in range(WARM):
        one()
    torch.cuda.synchronize()
    return one


def loop(kind: str, seconds: str) -> None:
    """Iterations of a loop, after some to warm up."""
    one = _warm(kind)
    print("running", flush=True)
    _timed(one, float(seconds))


def _timed(one: Callable[[], None], seconds: float) -> None:
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        one()
        count += 1
    torch.cuda.synchronize()
    print(f"iterations {count} wall {time.perf_counter() - begin:.4f}", flush=True)


def rounds(kind: str, seconds: str) -> None:
    """The loop for so long once for each line that it reads, so that many processes can take turns."""
    one = _warm(kind)
    print("ready", flush=True)
    for _ in sys.stdin:
        _timed(one, float(seconds))


def record(kind: str, path: str, origin: str) -> None:
    """The loop as a trace, and what an iteration takes of the card."""
    from torch_trace import record as recorded  # noqa: PLC0415

    one = _warm(kind)
    print(f"busy_us_per_iteration {recorded(one, Path(path), origin):.3f}", flush=True)


def compiled() -> None:
    """torch.compile with its own code generator: it looks for libcuda, compiles a launcher, runs it."""
    function = torch.compile(lambda x: (x.sin() * x + 1).relu().sum())
    x = torch.randn(1 << 20, device="cuda")
    error = abs(float(function(x)) - float((x.sin() * x + 1).relu().sum()))
    print(f"works torch {torch.__version__}, off by {error:.3g}", flush=True)


def forks() -> None:
    """A DataLoader whose workers are forked from a process that uses the card, three times over."""
    data = torch.utils.data.TensorDataset(torch.arange(4096.0))
    total = 0.0
    for _ in range(3):
        loader = torch.utils.data.DataLoader(
            data, batch_size=64, num_workers=4, multiprocessing_context="fork"
        )
        total += sum(float(batch.cuda().sum()) for (batch,) in loader)
    print(f"works sum {total / 3:.0f}, expected {4095 * 4096 / 2:.0f}", flush=True)


def nccl(times: str) -> None:
    """One rank's communicator made, used and destroyed, again and again; then it waits to be looked at."""
    import torch.distributed as dist  # noqa: PLC0415

    for number in range(int(times)):
        dist.init_process_group(
            "nccl",
            init_method=f"tcp://127.0.0.1:{29500 + number}",
            rank=0,
            world_size=1,
            device_id=torch.device("cuda:0"),
        )
        x = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        dist.destroy_process_group()
        if number == 0:
            print(f"first held {torch.cuda.mem_get_info()[0]}", flush=True)
            sys.stdin.readline()
    print(f"works {times} communicators", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    commands = {
        "fill": fill,
        "graphs": graphs,
        "loop": loop,
        "rounds": rounds,
        "record": record,
        "compile": compiled,
        "forks": forks,
        "nccl": nccl,
    }
    commands[sys.argv[1]](*sys.argv[2:])
