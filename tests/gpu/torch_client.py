"""What PyTorch does with a card, for the tests: ``fill`` until refused, ``graphs`` under memory, ``loop`` timed.

Runs in the container; imports nothing of the project.
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import sys
import time

import torch

MIB = 1 << 20
SEEN = 6.0
"""Seconds after which the agent has counted what a process takes without a call."""


def fill() -> int:
    """Allocate 16 MiB at a time until the allocator gives up, after its own attempts to make room."""
    held = []
    try:
        while True:
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        torch.cuda.synchronize()
    return _hold(len(held) * 16)


def graphs() -> int:
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
    return fill()


def loop(kind: str, seconds: float) -> int:
    """Iterations a second of a small model, training or inference, as `iterations_per_second <n>`."""
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    model = torch.nn.Sequential(*layers).cuda()
    data = torch.randn(256, 1024, device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        if kind == "inference":
            with torch.no_grad():
                model(data)
            torch.cuda.synchronize()
            return
        optimiser.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimiser.step()
        torch.cuda.synchronize()

    for _ in range(20):
        step()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        step()
        count += 1
    print(f"iterations_per_second {count / (time.perf_counter() - begin):.2f}", flush=True)
    return 0


def _hold(mib: int) -> int:
    print(f"held_mib {mib} error 2", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    command = sys.argv[1]
    if command == "loop":
        sys.exit(loop(sys.argv[2], float(sys.argv[3])))
    sys.exit({"fill": fill, "graphs": graphs}[command]())
