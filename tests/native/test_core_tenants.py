"""Several containers on one card, with the host's co-activity loop between them."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.native.core_world import Tenant, World, one_machine, until, world
from tests.native.shapes import H100
from vcuda.page.usage import USAGE_HEAD_SIZE

INFLIGHT = 64  # of a slot: words by card
LOOK_MS = 50
SILENT_NS = 2_500_000_000
"""token_bucket.h, half of BUCKET_HEARTBEAT_FRESH_NS: what a host said last is then said of a moment that is gone."""


@pytest.fixture
def shared() -> Iterator[World]:
    with world(state=one_machine()) as made:
        yield made


SETTLED_NS = 1_500_000_000
"""Containers that met have their shares by then."""


def begun(made: World, *tenants: Tenant) -> bool:
    """Wait until each of these containers has used a fifth of a second of the card."""
    return until(lambda: all(made.usage(tenant).busy_ns > 2e8 for tenant in tenants))


@pytest.mark.parametrize("cores", [(50, 50), (30, 70), (25, 25, 25, 25), (20, 20)])
def test_containers_divide_a_card_by_their_limits(shared: World, cores: tuple[int, ...]) -> None:
    """Kernels of 4 ms at 30 and 70: had 24.7 and 74.7, charged 30.2 and 70.5, in each of 20 runs."""
    tenants, watch = [shared.tenant(limit) for limit in cores], shared.watch(LOOK_MS)
    with shared.host(*tenants, driver=True):
        loads = [shared.start(tenant, "stream", 4000, 60.0) for tenant in tenants]
        assert begun(shared, *tenants)
        shares = watch.shares([load.process.pid for load in loads], SETTLED_NS, 3_000_000_000)
    for limit, share in zip(cores, shares, strict=True):
        assert limit - 7 <= share <= limit + 7, shares


def test_a_container_that_comes_and_goes_leaves_the_others_their_share(shared: World) -> None:
    steady, guest, watch = shared.tenant(50), shared.tenant(50), shared.watch(LOOK_MS)
    with shared.host(steady, guest):
        load = shared.start(steady, "stream", 4000, 60.0)
        assert begun(shared, steady)
        begin = time.monotonic_ns()
        for _ in range(2):
            shared.start(guest, "stream", 4000, 1.2, 100).finish()
        assert until(lambda: (told := shared.limits(steady)).co_active == 1.0 and not told.others_most)
        gone = time.monotonic_ns()
        (alone,) = watch.shares([load.process.pid], 500_000_000, 1_000_000_000)
    (beside,) = watch.between([load.process.pid], begin, gone)
    assert 40 <= beside <= 53
    assert alone < 56


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
            load, watch = shared.start(honest, "stream", 2000, 60.0), shared.watch(LOOK_MS)
            assert begun(shared, honest)
            (share,) = watch.shares([load.process.pid], SETTLED_NS, 3_000_000_000)
    finally:
        stop.set()
        lying.join()
        accomplice.process.send_signal(18)
    assert share < 33


@pytest.mark.parametrize("limit", [30, 50])
def test_a_dead_host_leaves_no_container_without_a_limit(shared: World, limit: int) -> None:
    """Judged from when no library takes the host's last factor for one of the present."""
    tenants, watch = [shared.tenant(limit), shared.tenant(limit)], shared.watch(LOOK_MS)
    one, other = (shared.start(tenant, "stream", 3000, 60.0) for tenant in tenants)
    with shared.host(*tenants):
        assert until(lambda: all(shared.usage(tenant).busy_ns > 6e8 for tenant in tenants))
    shares = watch.shares([one.process.pid, other.process.pid], SILENT_NS, 2_000_000_000)
    assert max(shares) < limit + 5, shares
    assert min(shares) > 0.75 * limit, shares
    other.kill()
    (alone,) = watch.shares([one.process.pid], 500_000_000, 1_500_000_000)
    assert limit - 5 < alone < limit + 3, "nobody says that the other has gone"


def stalls(
    made: World, waiting: Tenant, other: Tenant, kernel_us: int, launches: int, **settings: object
) -> int:
    """How many launches of known length of a container stalled beside another one, of so many or a few more."""
    made.start(waiting, "stream", 500, 120.0)
    assert until(lambda: made.usage(waiting).busy_ns > 12e8), "it learns what its kernels take alone"
    made.start(other, "stream", kernel_us, 120.0, **settings)
    assert begun(made, other)
    before = made.usage(waiting)
    assert until(lambda: made.usage(waiting).known_launches >= before.known_launches + launches)
    return made.usage(waiting).stalled_launches - before.stalled_launches


def test_a_longer_time_slice_for_oneself_is_seen_in_the_neighbours_page() -> None:
    """Kernels of half a millisecond are interrupted for tens; those of the other are long enough to be divided."""
    with world(settings=H100) as made:
        waiting, attacker = made.tenant(50), made.tenant(50)
        with made.host(waiting, attacker):
            assert stalls(made, waiting, attacker, 10_000, 1000, slice_us=300_000) >= 20


def test_long_kernels_in_slices_that_all_have_stall_nobody() -> None:
    """A few in a thousand: the machine stops a thread between two of its calls."""
    with world(settings=H100) as made:
        waiting, other = made.tenant(50), made.tenant(50)
        with made.host(waiting, other):
            assert stalls(made, waiting, other, 100_000, 1000) <= 5
