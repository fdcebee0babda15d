"""A container sets thousands of locks and slots on its own page: what that costs the agent, and who notices."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import NodeUnready, Tampered
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.page_looks import ModelledClock, fill_slots, second_of_looks
from tests.fakes.pages import LIMIT, NAME, register, usage_file
from vcuda.page.usage import MAX_SLOTS

OTHER = "f" * 32
LOCKS = 4000  # ten seconds of a tenant's time make 20,000: 470 ms a look


@pytest.fixture(autouse=True)
def _as_in_the_agent() -> Iterator[None]:
    """Whose collector never goes through what existed at its start."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def clock() -> ModelledClock:
    return ModelledClock()


@pytest.fixture
def pages(root: Path, clock: ModelledClock) -> Iterator[FileControlPages]:
    made = FileControlPages(root, monotonic_ns=clock)
    made.open(NAME, [LIMIT])
    made.open(OTHER, [LIMIT])
    yield made
    made.close()


@pytest.fixture
def tenant() -> Iterator[HostileTenant]:
    with HostileTenant() as running:
        yield running


@pytest.mark.parametrize("alive", [0, 1, 16])
def test_locks_far_behind_the_slots_cost_a_tenth_of_a_second_a_second_and_are_named(
    pages, root, tenant, clock, alive
):
    page = usage_file(root)
    fill_slots(page)
    # A lock behind the last slot that is asked about: one question cannot answer for all.
    assert tenant.order("locks", page, count=alive, start=MAX_SLOTS - 1 - 2 * alive) == 0
    assert tenant.order("locks", page, count=LOCKS, start=1 << 20) == 0
    for _ in range(3):
        cost, refused = second_of_looks(pages, clock, NAME)
        assert cost <= 0.1
        assert bool(refused) == bool(alive)
    count, what = pages.attacks(NAME)
    assert (count > 0) == bool(alive)
    assert not alive or "locks" in what
    assert pages.tampering() == ({NAME: count} if alive else {})
    assert second_of_looks(pages, clock, OTHER) < (0.1, 1)
    tenant.order("give_back", page)
    clock.now += 10**10
    assert pages.usage(NAME)[0].processes == 0


def test_a_full_page_of_an_honest_container_is_read_and_costs_no_more(pages, root, clock):
    """As many processes as a page holds: each look costs, so that the agent looks less often."""
    page = usage_file(root)
    locks = [register(page, slot) for slot in range(MAX_SLOTS)]
    clock.now += 10**10
    assert pages.usage(NAME)[0].processes == MAX_SLOTS
    for _ in range(2):
        assert second_of_looks(pages, clock, NAME) < (0.1, 1)
    for lock in locks:
        os.close(lock)
    clock.now += 10**10
    assert pages.usage(NAME)[0].processes == 0


def test_a_page_with_locks_is_reset_at_its_container_s_start_in_bounded_time(pages, root, tenant):
    page = usage_file(root)
    fill_slots(page)
    assert tenant.order("locks", page, count=1, start=MAX_SLOTS - 1) == 0
    assert tenant.order("locks", page, count=LOCKS, start=1 << 20) == 0
    began = time.thread_time()
    pages.reset(NAME)
    assert time.thread_time() - began <= 0.05


def test_what_is_said_of_a_page_at_rest_is_the_last_finding(pages, root, tenant, clock):
    page = usage_file(root)
    fill_slots(page)
    tenant.order("locks", page, count=1, start=MAX_SLOTS - 1)
    tenant.order("locks", page, count=LOCKS, start=1 << 20)
    with pytest.raises(Tampered, match="locks") as first:
        pages.usage(NAME)
    with pytest.raises(NodeUnready) as second:
        pages.usage(NAME)
    assert str(second.value) == str(first.value)
    assert pages.tampering() == {NAME: 1}
