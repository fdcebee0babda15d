"""Write the made-up traces beside this file: shapes that real programs have, none of them recorded.

Run it after a change: ``python3 -m tests.data.traces.make``. README.md describes the format.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

US = 1_000
MS = 1_000_000
HERE = Path(__file__).parent


class Host:
    """A host that calls into an unlimited card of one kernel at a time, and writes down what it calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 0
        self.idle_at = 0

    def work(self, nanoseconds: float) -> None:
        self.now += round(nanoseconds)

    def launch(self, function: int, length: float, stream: int = 0) -> None:
        start = max(self.now + 5 * US, self.idle_at)
        self.idle_at = start + round(length)
        self.lines.append(f"launch {self.now} {stream} {function} {round(length)}")

    def synchronise(self, stream: str = "all") -> None:
        returned = max(self.now, self.idle_at) + 5 * US
        self.lines.append(f"synchronise {self.now} {stream} {returned}")
        self.now = returned

    def text(self, origin: str) -> str:
        head = ["trace 1", f"origin made up until a card has been recorded: {origin}"]
        return "\n".join([*head, *self.lines, f"end {self.now}", ""])


def decode_eager(host: Host, chance: random.Random) -> None:
    """16 tokens of 24 layers at batch 1; the host dispatches slower than the card runs."""
    for _ in range(16):
        for _ in range(24):
            for function, length in enumerate((6, 14, 4, 9, 18, 5, 22, 3)):
                host.work(chance.uniform(18, 45) * US)
                host.launch(function, length * chance.uniform(0.9, 1.1) * US)
        host.work(60 * US)
        host.synchronise("0")  # the sampled token goes to the host
        host.work(chance.uniform(150, 400) * US)


def training_step(host: Host, chance: random.Random) -> None:
    """8 steps: forward and backward dispatched in bursts faster than the card runs them, the loss read once a step;
    every third kernel of the backward pass has a companion on a second stream, as gradient exchange has."""
    for _ in range(8):
        for layer in range(48):
            host.work(chance.uniform(8, 20) * US)
            host.launch(layer % 6, chance.choice((30, 80, 180)) * US)
        for layer in range(96):
            host.work(chance.uniform(8, 20) * US)
            host.launch(10 + layer % 6, chance.choice((60, 160, 360)) * US)
            if layer % 3 == 2:
                host.work(6 * US)
                host.launch(20, 90 * US, stream=1)
        host.synchronise("all")
        host.work(chance.uniform(0.5, 2.0) * MS)


def dataloader_stalls(host: Host, chance: random.Random) -> None:
    """20 steps of 30 ms of work; before every step the host waits for data, now and then for long."""
    for step in range(20):
        host.work(chance.uniform(5, 15) * MS if step % 5 else chance.uniform(150, 250) * MS)
        for kernel in range(60):
            host.work(chance.uniform(10, 25) * US)
            host.launch(kernel % 8, chance.uniform(300, 700) * US)
        host.synchronise("all")


def serving(host: Host, chance: random.Random) -> None:
    """4 requests to a language model: a prefill of long kernels, dispatched faster than the card runs them, then 40
    tokens dispatched slower than it does; attention is one kernel of one grid that takes longer as the context grows."""
    for _ in range(4):
        host.work(chance.uniform(0.1, 3) * MS)
        for layer in range(64):
            host.work(chance.uniform(8, 15) * US)
            host.launch(30 + layer % 4, chance.uniform(150, 900) * US)
        host.synchronise("0")
        for token in range(40):
            for _ in range(8):
                for function, length in ((40, 9), (41, 5 + token), (42, 12)):
                    host.work(chance.uniform(15, 40) * US)
                    host.launch(function, length * US)
            host.synchronise("0")
            host.work(chance.uniform(50, 150) * US)


def one_kernel_two_lengths(host: Host, chance: random.Random) -> None:
    """2000 launches of one kernel with one grid, as a library's gather or sparse kernel is: nine in ten take 12 us, one in
    ten 900 us, as the data has it; read back every 50."""
    for number in range(2000):
        host.work(chance.uniform(40, 160) * US)
        host.launch(7, (900 if chance.random() < 0.1 else 12) * US)
        if number % 50 == 49:
            host.synchronise("0")


SHAPES: dict[str, Callable[[Host, random.Random], None]] = {
    "decode-eager": decode_eager,
    "training-step": training_step,
    "dataloader-stalls": dataloader_stalls,
    "serving": serving,
    "one-kernel-two-lengths": one_kernel_two_lengths,
}


def text_of(name: str) -> str:
    """The trace of a shape: the same text each time."""
    host = Host()
    shape = SHAPES[name]
    shape(host, random.Random(name))
    return host.text(" ".join((shape.__doc__ or "").split()))


if __name__ == "__main__":
    for name in SHAPES:
        (HERE / f"{name}.trace").write_text(text_of(name))
