"""Credit outlives the thread that took it, and one thread that feeds two cards gets its limit on both."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from tests.native import standin
from tests.native.core_world import uuid_of, world
from tests.native.programs import compiled


def launches(environment: Mapping[str, str], *arguments: object) -> float:
    """Launches a second of ``core_threads``."""
    done = subprocess.run(
        [str(compiled("core_threads.c")), *map(str, arguments)],
        env=environment, input="\n", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return float(done.stdout.split()[2])


def test_a_thread_for_each_launch_is_not_held_back_below_what_it_needs() -> None:
    """A lost slice of credit for each thread would leave a twentieth."""
    with world() as made:
        driver = standin.built() / made.version
        environment = standin.environment(made.state, made.version) | {"LD_LIBRARY_PATH": str(driver)}
        bare = launches(environment, "threads", 1, 1.0, 1)
        tenant = made.tenant(50)
        assert launches(made.environment(tenant), "threads", 1, 1.0, 1) >= 0.6 * bare
        assert made.usage(tenant).throttle_ns < 2e8


@pytest.mark.parametrize("streams", [1, 8])
def test_one_thread_feeds_two_cards_up_to_both_limits(streams: int) -> None:
    seconds = 3.0
    with world(cards=2) as made:
        tenant = made.tenant(50, cards=(uuid_of(0), uuid_of(1)))
        launches(made.environment(tenant), "cards", 2000, seconds, 1, streams)
        busy = [made.usage(tenant, card).busy_ns / seconds / 1e7 for card in (0, 1)]
    assert min(busy) >= 46, busy
    assert max(busy) <= 52, busy
