"""A stream that stands still with nothing of it on the card: its time is nobody's use of the card.

Frameworks queue host functions between kernels, and pipelines over several cards let the stream of one wait for
another. What lies between two kernels then is not theirs, however the library measures them.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.native import standin
from tests.native.core_world import uuid_of, world
from tests.native.programs import compiled
from tests.native.shapes import Shape, held

CLOSE = 2.0
"""Points by which the account may differ from what the card says."""


@pytest.mark.parametrize("limit", [99, 30])
@pytest.mark.parametrize("way", ["function", "callback", "event"])
def test_a_stream_that_waits_is_charged_for_its_kernels_alone(way: str, limit: int) -> None:
    """Kernels of 10 us, 200 us of waiting between them: for the host, or for kernels of another card."""
    with world(cards=2) as made:
        tenant = made.tenant(limit, cards=(uuid_of(0), uuid_of(1)))
        accounted, used = made.charged_and_had(tenant, str(compiled("core_waits.c")), way, "10", "200", "1.0")
    assert used > 0.2
    assert abs(accounted - used) <= CLOSE, (accounted, used)


@pytest.mark.parametrize("limit", [99, 30])
def test_a_thread_that_holds_its_stream_back_itself_goes_on_launching(limit: int) -> None:
    """More work behind a word of memory than a queue may hold: nobody but the launching thread can let it go on."""
    use = held(Shape("held back", "w:1 40{ k:step:1000:1 } W:2 S", ""), limit, 1, 2.0, "h100")
    assert 20 <= use.had <= limit + CLOSE, use
    assert abs(use.charged - use.had) <= CLOSE, use


def test_the_modelled_card_waits_for_an_event_of_another_card() -> None:
    """Else the test above would judge by a model in which nothing waits."""
    with world(cards=2) as made:
        driver = standin.built() / made.version
        environment = standin.environment(made.state, made.version, cards=2)
        done = subprocess.run(
            [str(compiled("core_waits.c")), "event", "10", "20000", "0.5"],
            env=environment | {"LD_LIBRARY_PATH": str(driver)},
            input="\n", capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
    launches = int(done.stdout.split()[2])
    assert 20 <= launches <= 50, "each waits for a kernel of 20 ms; a stream is waited for after 20"
