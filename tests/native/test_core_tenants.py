"""Several containers on one card, with the host's co-activity loop between them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from tests.native.core_world import CARD, World, one_machine, until, world
from vcuda.page.usage import USAGE_HEAD_SIZE

INFLIGHT = 64  # of a slot: words by card


@pytest.fixture
def shared() -> Iterator[World]:
    with world(state=one_machine()) as made:
        yield made


@pytest.mark.parametrize("cores", [(50, 50), (30, 70), (25, 25, 25, 25), (20, 20)])
def test_containers_divide_a_card_by_their_limits(shared: World, cores: tuple[int, ...]) -> None:
    tenants = [shared.tenant(limit) for limit in cores]
    with shared.host(*tenants, driver=True):
        loads = [shared.start(tenant, "stream", 4000, 5.0, 200, 2.0) for tenant in tenants]
        shares = [load.finish().share for load in loads]
    for limit, share in zip(cores, shares, strict=True):
        assert limit - 7 <= share <= limit + 5, shares


def test_a_container_that_comes_and_goes_leaves_the_others_their_share(shared: World) -> None:
    steady, guest = shared.tenant(50), shared.tenant(50)
    with shared.host(steady, guest) as service:
        load = shared.start(steady, "stream", 4000, 6.0, 100, 0.5)
        load.wait_running()
        assert until(lambda: shared.usage(steady).busy_ns > 5e8)
        for _ in range(2):
            shared.start(guest, "stream", 4000, 1.2, 100).finish()
        assert until(lambda: service._published.get((steady.name, CARD), (1.0, 1.0)) == (1.0, 1.0))
        load.finish()
    assert 40 <= load.share <= 53, load.windows
    assert sum(load.windows[-5:]) / 5 < 56, load.windows


def test_a_container_that_claims_to_work_gains_its_neighbour_nothing(shared: World) -> None:
    """One process holds a slot and says it has work in flight for ever; the neighbour's charge must not halve."""
    liar, honest = shared.tenant(50), shared.tenant(30)
    accomplice = shared.start(liar, "sync", 1000, 6.0, 100)
    accomplice.wait_running()
    assert until(lambda: shared.usage(liar).busy_ns > 0)
    accomplice.process.send_signal(19)  # stopped: its slot lives, nothing of it runs
    path = shared.base / "pages" / liar.name / "usage"
    stop = threading.Event()

    def lie() -> None:
        with path.open("r+b", buffering=0) as file:
            while not stop.wait(0.01):
                file.seek(USAGE_HEAD_SIZE + INFLIGHT)
                file.write(struct.pack("<I", 7))

    lying = threading.Thread(target=lie)
    lying.start()
    try:
        with shared.host(liar, honest):
            share = shared.start(honest, "stream", 2000, 5.0, 100, 2.0).finish().share
    finally:
        stop.set()
        lying.join()
        accomplice.process.send_signal(18)
    assert share < 33


def test_a_dead_host_leaves_no_container_without_a_limit(shared: World) -> None:
    one, two = shared.tenant(30), shared.tenant(30)
    loads = [shared.start(tenant, "stream", 3000, 7.0, 100, 4.5) for tenant in (one, two)]
    with shared.host(one, two):
        assert until(lambda: shared.usage(one).busy_ns > 6e8)
    shares = [load.finish().share for load in loads]
    assert max(shares) < 35, shares
    assert min(shares) > 22, shares
