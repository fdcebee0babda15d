"""A context that ends while launches of it wait at a closed gate: its end takes as long as they do, and keeps nobody."""

from __future__ import annotations

import subprocess
import time

import pytest

from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction, Limit
from tests.native.core_world import CARD, uuid_of, world
from tests.native.gates import closed
from tests.native.programs import compiled


@pytest.mark.parametrize("us", [1000, 10])
@pytest.mark.parametrize("end", ["destroy", "reset", "release"])
def test_while_a_context_ends_with_launches_at_the_gate_others_are_measured_and_go_on(
    end: str, us: int
) -> None:
    # Free calls: a gated process holds no launch, and what is guessed of a launch's way to a card is an H100's, where a
    # kernel on an idle stream starts 4.2 us after its launch has reached it. The stand-in's starts at once.
    with world(cards=2, settings={"costs": "free"}) as made, closed(made):
        tenant = made.tenant(1, 100, (CARD, uuid_of(1)), Priority.BEST_EFFORT)
        floor, free = ((CARD, 1, 100), (uuid_of(1), 90, 90))
        made.tenants.open(
            tenant.name,
            [Limit(card, 1 << 34, *cores, Priority.BEST_EFFORT) for card, *cores in (floor, free)],
        )
        now = time.monotonic_ns()
        made.tenants.publish(tenant.name, now, {CARD: Correction(co_active=1.0, granted=100.0)})
        with subprocess.Popen(
            [str(compiled("core_ends.c", "-lpthread")), end, "3", str(us)],
            env=made.environment(tenant), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout
            said = dict(process.stdout.readline().split() for _ in range(2))
            usage = made.usage(tenant, card=1)
            process.communicate("\n", timeout=30)
    launched = int(said["launched"])
    assert launched >= 20, "it had no time to itself"
    assert float(said["longest"]) <= 500
    assert usage.launches == launched
    # A thread that is stopped between a launch and the record behind it makes the kernel seem longer.
    assert launched * (us * 900 - 1500) <= usage.busy_ns <= launched * (us * 1200 + 1500)
