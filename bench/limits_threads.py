"""Does a limit follow the work, whoever launches it? Threads of one launch or of twenty, and two cards."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from bench.rows import Row
from tests.native import standin
from tests.native.core_world import uuid_of, world
from tests.native.test_core_threads import launches

LIMIT = 50
KERNEL_US = 1
LAUNCHES_A_THREAD = (1, 20)


def thread_ratio(each: int, seconds: float, rounds: int) -> float:
    """Launches a second at a limit above the need, over the bare program's; the median of rounds."""
    found = []
    for _ in range(rounds):  # short and many: bare and held see the same of what else the machine does
        with world() as made:
            driver = standin.built() / made.version
            bare = standin.environment(made.state, made.version) | {"LD_LIBRARY_PATH": str(driver)}
            alone = launches(bare, "threads", KERNEL_US, seconds, each)
            held = launches(made.environment(made.tenant(LIMIT)), "threads", KERNEL_US, seconds, each)
            found.append(held / alone)
    return statistics.median(found)


def rows(*, full: bool) -> Iterable[Row]:
    """The worse kind of thread, and the card that got less."""
    seconds, rounds = (0.5, 31) if full else (0.3, 11)
    ratios = {each: thread_ratio(each, seconds, rounds) for each in LAUNCHES_A_THREAD}
    said = ", ".join(f"{ratio:.2f} with {each} a thread" for each, ratio in ratios.items())
    yield Row("thread_launch_ratio", round(min(ratios.values()), 3), "ratio", "≥ 0.9", None, full,
              f"kernels of {KERNEL_US} us at {LIMIT}, of launches without a limit: {said}")  # fmt: skip
    seconds = 20.0 if full else 6.0
    with world(cards=2) as made:
        tenant = made.tenant(LIMIT, cards=(uuid_of(0), uuid_of(1)))
        launches(made.environment(tenant), "cards", 2000, seconds)
        shares = [made.usage(tenant, card).busy_ns / seconds / 1e7 for card in (0, 1)]
    told = f"one thread launches 2 ms on each in turn: {shares[0]:.1f} and {shares[1]:.1f} of {LIMIT}"
    yield Row("two_cards_delivered_ratio", round(min(shares) / LIMIT, 3), "ratio", "≥ 0.97", None, full, told)
