"""Programs drawn by chance: the same seed is the same program in every run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from tests.native.shapes import Shape

SHORTEST_US, LONGEST_US = 2.0, 50_000.0
PASS_US: Final = 60_000.0
"""What a pass launches takes the card no longer than this, unless one kernel does."""
UNWAITED_US: Final = 60.0
"""A program that never waits has kernels that are shorter on average: a full launch queue is done in a moment."""


def drawn(seed: int) -> Shape:
    """One to eight kinds of kernels of 2 us to 50 ms, on one to eight streams, with waits of every form."""
    chance = random.Random(seed)
    kinds = [_kind(chance, at) for at in range(chance.randint(1, 8))]
    streams = _streams(chance)
    waits = chance.random() > 0.15
    if not waits:
        kinds = [(letter, name, min(us, UNWAITED_US), more) for letter, name, us, more in kinds]
    words: list[str] = []
    left = PASS_US
    for _ in range(chance.randint(1, 8)):
        letter, name, us, more = chance.choice(kinds)
        times = max(1, min(chance.choice((1, 1, 2, 4, 12, 40)), int(left / (us * more))))
        left -= times * us * more
        launch = f"{letter}:{name}:{_length(us, more)}:{chance.choice(streams)}"
        words += _repeated(chance, launch, times)
        if chance.random() < 0.4:
            words.append(_between(chance, streams, waits=waits))
        if left <= 0:
            break
    if waits:
        words.append(_wait(chance, streams))
    if chance.random() < 0.7:
        words.append(f"{chance.choice('bp')}:{chance.choice(('', '~'))}{_log(chance, 30, 8000):.0f}")
    text = " ".join(words)
    if chance.random() < 0.15 and waits:
        text = f"t{{ {text} }} {text}"
    return Shape(f"seed {seed}", text, "drawn by chance")


def _kind(chance: random.Random, at: int) -> tuple[str, str, float, float]:
    """How it is launched, its name, its length, and the longest of its lengths as a multiple of that."""
    letter = chance.choice("kkkkkkkocd")
    more = chance.choice((1.0, 1.0, 1.0, 2.0, 15.0))
    return letter, f"kind{at}", _log(chance, SHORTEST_US, LONGEST_US / more), more


def _length(us: float, more: float) -> str:
    return (
        f"{us:.0f}"
        if more == 1
        else f"{us:.0f}/{us * more:.0f}"
        if more == 2
        else f"{us:.0f}~{us * more:.0f}"
    )


def _streams(chance: random.Random) -> list[int]:
    """Some of the null stream, of those that block, and of those that do not."""
    count = chance.choice((1, 1, 1, 2, 2, 3, 4, 8))
    return chance.sample([0, *range(1, 9), 21, 22], count)


def _repeated(chance: random.Random, launch: str, times: int) -> list[str]:
    stream = launch.rpartition(":")[2]
    if times > 1 and stream != "0" and chance.random() < 0.2:
        return [f"g:{stream}{{", *[launch] * times, "}"]
    busy = [f"b:{chance.randint(2, 40)}"] if chance.random() < 0.4 else []
    return [launch] if times == 1 else [f"{times}{{", launch, *busy, "}"]


def _between(chance: random.Random, streams: list[int], *, waits: bool) -> str:
    """A wait of streams for each other, host work, a copy, or a wait of the host."""
    stream = chance.choice(streams)
    forms: list[Callable[[], str]] = [
        lambda: f"e:{stream}:{chance.choice(streams)}",
        lambda: f"b:{_log(chance, 3, 400):.0f}",
        lambda: f"m:{chance.choice((64, 4096, 65536))}:{stream}",
    ]
    if waits:
        forms += [lambda: _wait(chance, streams), lambda: f"h:{_log(chance, 2, 80):.0f}:{stream}"]
    return chance.choice(forms)()


def _wait(chance: random.Random, streams: list[int]) -> str:
    if len(streams) > 1:
        return chance.choice(("S", " ".join(f"s:{stream}" for stream in streams)))
    return chance.choice(("S", *(f"{letter}:{streams[0]}" for letter in "sqQEr")))


def _log(chance: random.Random, low: float, high: float) -> float:
    """Evenly by its logarithm."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))
