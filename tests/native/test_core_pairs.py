"""What a thread leaves open on a stream when it makes no more calls: a longer kernel behind a short one of the same name."""

from __future__ import annotations

import subprocess

import pytest

from tests.native.core_world import compiled, world

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
        watch = made.watch(50)
        process = subprocess.Popen(
            [str(compiled("core_pairs.c")), stream, *map(str, us), "1.5"],
            env=made.environment(tenant), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        words = process.stdout.readline().split()
        assert words[0] == "launched"
        spent = (made.usage(tenant).busy_ns, watch.served(process.pid))
        process.communicate("\n", timeout=30)
    accounted, used = (ns / float(words[1]) / 1e7 for ns in spent)
    assert used >= min(limit, 20) - CLOSE
    assert abs(accounted - used) <= CLOSE, (accounted, used)
    assert used <= limit + CLOSE
