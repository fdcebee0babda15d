"""How soon do containers that meet on a card have their shares? The first seconds count."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Sequence

from bench.limits_share import LOOK_MS
from bench.rows import Row
from tests.native.core_world import one_machine, world

ALONE_SECONDS = 2.0
"""The first container works so long before the others come."""
NEAR_POINTS = 3.0
WINDOW = 1000 // LOOK_MS

MEETINGS = ((30, 60), (50, 50), (25, 25, 25, 25))
ROUNDS = 3
"""Times that each meeting is held; its median counts. A window in which the machine stalled a program is not
the library's doing, and where the limits are the whole card no window has time to spare.
"""


def settled_after(windows: Sequence[Sequence[float]], limits: Sequence[int]) -> float:
    """Seconds until the first window of a second after which each window of each container is near its limit.

    ``windows`` are each container's shares in percent, one window begun every :data:`LOOK_MS`, all from the
    moment at which the containers met.
    """
    far = [
        at
        for shares, limit in zip(windows, limits, strict=True)
        for at, share in enumerate(shares)
        if abs(share - limit) > NEAR_POINTS
    ]
    return (max(far) + 1) * LOOK_MS / 1000 if far else 0.0


def meeting(limits: Sequence[int], seconds: float) -> float:
    """Containers that always have work, one of them first: after how many seconds all shares are settled."""
    with world(state=one_machine()) as made:
        tenants = [made.tenant(limit) for limit in limits]
        watch = made.watch(LOOK_MS)
        try:
            with made.host(*tenants, driver=True):
                loads = [made.start(tenants[0], "stream", 5000, seconds + ALONE_SECONDS, 1000)]
                loads[0].wait_running()
                threading.Event().wait(ALONE_SECONDS)
                loads += [made.start(tenant, "stream", 5000, seconds, 1000) for tenant in tenants[1:]]
                for load in loads:
                    load.finish()
        finally:
            shares = watch.together([load.process.pid for load in loads], WINDOW)
    count = min(map(len, shares)) - WINDOW  # who is the last alone on the card is not judged
    return settled_after([one[:count] for one in shares], limits)


def rows(*, full: bool) -> Iterable[Row]:
    """The slowest of the meetings."""
    found = {limits: [meeting(limits, 20.0 if full else 8.0) for _ in range(ROUNDS)] for limits in MEETINGS}
    told = "; ".join(
        f"{'/'.join(map(str, limits))} after {', '.join(f'{after:.2f}' for after in sorted(times))} s"
        for limits, times in found.items()
    )
    yield Row("share_settle_s", round(max(map(statistics.median, found.values())), 2), "s", "≤ 2", None, full,
              f"{told}; from the last one's first work until each window of 1 s is within {NEAR_POINTS:.0f} "
              "points, by the card; the median of each meeting; streams of 5 ms")  # fmt: skip
