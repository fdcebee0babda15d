"""A process that dies while the card runs its work: nobody measured that work, and its container is charged for it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.native.core_world import until, world

KERNEL_US = 20_000_000
SEEN_NS = 500_000_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_work_of_a_process_that_dies_is_charged_when_the_next_one_starts(number: int) -> None:
    begin = time.monotonic_ns()
    with world() as made:
        tenant = made.tenant(50)
        watch = made.watch(5)
        dying = made.start(tenant, "sync", KERNEL_US, 60)
        dying.wait_running()
        assert until(lambda: watch.served(dying.process.pid) >= SEEN_NS)
        dying.process.send_signal(number)
        dying.process.communicate()
        had = watch.served(dying.process.pid)
        assert made.usage(tenant).busy_ns == 0, "its kernel was still running"
        made.start(tenant, "sync", 1000, 0.01).finish()
        # Until it was seen last: a machine that does not run its thread sees it less often than the card serves it.
        assert had / 2 <= made.usage(tenant).busy_ns <= time.monotonic_ns() - begin
