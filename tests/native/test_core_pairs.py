"""What a thread leaves open on a stream when it makes no more calls: a longer kernel behind a short one of the same name."""

from __future__ import annotations

import pytest

from tests.native.core_world import world
from tests.native.programs import compiled

CLOSE = 2.0
"""Points by which the account may differ from what the card says, and the card from the limit."""


@pytest.mark.parametrize("limit", [99, 20])
@pytest.mark.parametrize(
    ("stream", "us"),
    [
        ("created", (20, 5000, 15_000)),
        ("own", (20, 5000, 15_000)),
        ("own", (20, 1000, 3000)),
        ("own", (20, 300, 1000)),
    ],
)
def test_a_kernel_whose_thread_is_silent_until_it_has_ended_is_charged_what_it_takes(
    stream: str, us: tuple[int, int, int], limit: int
) -> None:
    """Nobody but the thread can say when its own null stream has ended; a created one the helper asks after a while."""
    with world() as made:
        tenant = made.tenant(limit)
        accounted, used = made.charged_and_had(
            tenant, str(compiled("core_pairs.c")), stream, *map(str, us), "1.5"
        )
    assert used >= min(limit, 20) - CLOSE
    assert abs(accounted - used) <= CLOSE, (accounted, used)
    assert used <= limit + CLOSE
