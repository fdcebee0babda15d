"""A model that is started once and measured often, as a tenant of the side-by-side tables. Imports nothing of the project.

    torch_worker.py request|step NAME          (of torch_models.py; a request may be a token of torch_decoder.py)
    torch_worker.py first NAME                 (of torch_decoder.py: a prompt, up to its first token)
    torch_worker.py decode NAME RESIDENTS,...  (of torch_decoder.py)

Prints ``ready``, then for each line ``run SECONDS RATE SEED`` it works for so long and prints how it went, in pairs of a
word and a number that begin with ``iterations``. RATE: requests a second at random (Poisson), or one after the other where
it is 0. Of ``decode`` it is the number of residents. Lengths are milliseconds from a request's arrival.
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from torch_decoder import SIZES, Decoder
from torch_models import TINY, request, step

WARM = 1 if TINY else 5


def main() -> None:
    """Make the model, then obey."""
    kind, name, *more = sys.argv[1:]
    if kind == "decode":
        sizes = [int(text) for text in more[0].split(",")]
        made = {sizes[0]: Decoder(name, sizes[0])}
        made |= {size: Decoder(name, size, made[sizes[0]]) for size in sizes[1:]}
        for decoder in made.values():
            decoder.run(0)
            if decoder.why_not_captured:
                print(
                    f"the step of {decoder.residents} is no graph: {decoder.why_not_captured}",
                    file=sys.stderr,
                )
        run = lambda seconds, residents, _: made[int(residents)].run(seconds)  # noqa: E731
    else:
        if kind == "first":
            one = partial(Decoder(name, 1).read, 0)
        elif name in SIZES:
            one = Decoder(name, 1).again
        else:
            one = {"request": request, "step": step}[kind](name)
        for _ in range(WARM):
            one()
        run = lambda seconds, rate, seed: measured(one, seconds, rate, seed)  # noqa: E731
    print("ready", flush=True)
    for line in sys.stdin:
        _, seconds, rate, seed = line.split()
        figures = run(float(seconds), float(rate), int(seed))
        print(" ".join(f"{word} {value:.6g}" for word, value in figures.items()), flush=True)


def measured(one: Callable[[], None], seconds: float, rate: float, seed: int) -> dict[str, float]:
    """Requests for so long, and one at least."""
    chance, took = random.Random(seed), []
    begin = time.perf_counter()
    at = begin + (chance.expovariate(rate) if rate else 0)
    while not took or at < begin + seconds:
        left = at - time.perf_counter()
        if left > 0.0003:
            time.sleep(left - 0.0003)
        while time.perf_counter() < at:
            pass
        one()
        now = time.perf_counter()
        took.append((now - at) * 1e3)
        at = at + chance.expovariate(rate) if rate else now
    wall = time.perf_counter() - begin
    took.sort()
    p50, p99 = took[len(took) // 2], took[round((len(took) - 1) * 0.99)]
    return {"iterations": len(took), "wall": wall, "p50": p50, "p99": p99, "most": took[-1]}


if __name__ == "__main__":
    main()
