"""A container gets its share of a card's time and no more: alone, in any shape of work, with any limit.

Small sizes and wide bounds here, because the machine's own scheduling shows; the figures are in bench/limits_share.py.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator

import pytest

from gpu_manager.ports.control_pages import Correction
from tests.native import standin
from tests.native.core_world import CARD, Load, Tenant, World, until, world
from tests.native.driven import OUT, Program, interposers, program

LIMITS = (10, 30, 50, 80)
SHAPES = {
    "8 ms kernels, each waited for": ("sync", 8000, 2.4, 100),
    "100 ms kernels, each waited for": ("sync", 100_000, 5.0, 100),
    "a stream of 40 us kernels": ("stream", 40, 2.4, 100),
    "5 ms kernels that fill the card": ("stream", 5000, 2.4, 100),
    "a graph of 12 ms, waited for": ("graph", 750, 2.4, 100),
    "bursts of 30 x 2 ms with pauses": ("bursts", 2000, 2.8, 100),
    "four threads": ("threads", 3000, 2.4, 100),
}
DEMAND = {"bursts": 60.0}


@pytest.fixture
def one() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_share_is_kept_at_every_limit(shape: tuple[str, int, float, int]) -> None:
    mode, length, seconds, window = shape
    with contextlib.ExitStack() as stack:
        worlds = {limit: stack.enter_context(world()) for limit in LIMITS}
        loads: dict[int, tuple[World, Tenant, Load]] = {}
        for limit, made in worlds.items():
            tenant = made.tenant(limit)
            loads[limit] = (made, tenant, made.start(tenant, mode, length, seconds, window, 0.8))
        for limit, (made, tenant, load) in loads.items():
            share = load.finish().share
            expected = min(limit, DEMAND.get(mode, 100.0))
            slack = 3.0 + length / 1e6 / (seconds - 0.8) * 100  # one kernel more or less
            assert share <= expected + slack, (limit, load.windows)
            assert share >= expected - slack - 2, (limit, load.windows)
            usage = made.usage(tenant)
            assert usage.busy_ns <= (limit / 100 * seconds + 2 * length / 1e6 + 0.1) * 1e9
            assert usage.launches > 0
            assert usage.starved == 0


def test_a_limit_of_a_hundred_holds_nothing_back(one: World) -> None:
    tenant = one.tenant(100)
    load = one.start(tenant, "stream", 2000, 1.5, 100, 0.3).finish()
    assert load.share > 85
    assert one.usage(tenant).throttle_ns < 5e8


def test_processes_of_a_container_share_its_limit(one: World) -> None:
    tenant = one.tenant(40)
    loads = [one.start(tenant, "sync", 4000, 3.0, 100, 1.0) for _ in range(3)]
    shares = [load.finish().share for load in loads]
    assert 36 <= sum(shares) <= 43, shares
    assert min(shares) > 4, shares


def test_a_change_of_the_limit_is_seen_at_once(one: World) -> None:
    tenant = one.tenant(80)
    load = one.start(tenant, "sync", 1000, 3.0, 20)
    load.wait_running()
    assert until(lambda: one.usage(tenant).busy_ns > 8e8)
    one.limit(tenant.name, 10)
    changed = one.usage(tenant).busy_ns
    assert until(lambda: load.process.poll() is not None)
    used = (one.usage(tenant).busy_ns - changed) / 1e9
    load.finish()
    assert used < 0.10 * 2.2 + 0.05


@pytest.mark.parametrize(("mode", "length"), [("sync", 8000), ("stream", 40), ("graph", 750)])
def test_a_factor_of_the_host_holds_a_container_whose_account_is_too_low(
    one: World, mode: str, length: int
) -> None:
    """As the second witness sets it: of what the library measures every millisecond is charged as two."""
    tenant = one.tenant(60)
    one.tenants.publish(tenant.name, time.monotonic_ns(), {CARD: Correction(gain=2.0)})
    load = one.start(tenant, mode, length, 2.4, 100, 0.8).finish()
    assert 25 <= load.share <= 33, load.windows
    assert one.usage(tenant).busy_ns == pytest.approx(0.6 * 2.4e9, rel=0.15)
    one.tenants.publish(tenant.name, time.monotonic_ns(), {CARD: Correction(gain=1.0)})
    load = one.start(tenant, mode, length, 2.4, 100, 0.8).finish()
    assert 55 <= load.share <= 63, load.windows


def test_a_waiting_process_sees_a_raised_limit(one: World) -> None:
    tenant = one.tenant(1)
    load = one.start(tenant, "sync", 20_000, 2.5, 50)
    load.wait_running()
    assert until(lambda: one.usage(tenant).credit_ns < 0)
    one.limit(tenant.name, 90)
    assert sum(load.finish().windows[-10:]) / 10 > 60, load.windows


def test_an_idle_card_is_used_up_to_the_ceiling_and_given_back_when_another_comes(one: World) -> None:
    elastic, other = one.tenant(30, ceiling=90), one.tenant(50)
    with one.host(elastic, other):
        load = one.start(elastic, "stream", 2000, 5.0, 100)
        load.wait_running()
        assert until(lambda: one.usage(elastic).busy_ns > 1e9)
        second = one.start(other, "stream", 2000, 2.4, 100, 1.2)
        second.finish()
        load.finish()
    windows = list(zip(load.ends, load.windows, strict=True))  # one clock for all processes
    alone = [share for end, share in windows if end < second.ends[0] - 1.2]
    beside = [share for end, share in windows if second.ends[0] < end < second.ends[-1]]
    assert max(alone) > 60, load.windows
    assert sum(beside) / len(beside) < 75, load.windows
    assert second.share > 40


def test_a_ceiling_needs_a_host_that_watches(one: World) -> None:
    tenant = one.tenant(30, ceiling=90)
    assert one.start(tenant, "stream", 2000, 2.0, 100, 0.5).finish().share < 34


def test_without_a_host_the_last_limits_stay_in_force(one: World) -> None:
    tenant = one.tenant(30)
    with one.host(tenant):
        first = one.start(tenant, "sync", 4000, 1.2, 100)
        first.finish()
    assert 26 <= one.start(tenant, "sync", 4000, 2.0, 100, 0.5).finish().share <= 33


def test_a_process_killed_while_it_waits_holds_nobody_up(one: World) -> None:
    tenant = one.tenant(20)
    victims = [one.start(tenant, "sync", 8000, 30, 100) for _ in range(3)]
    for victim in victims:
        victim.wait_running()
    assert until(lambda: one.usage(tenant).throttle_ns > 1e8)
    for victim in victims:
        victim.kill()
    assert 17 <= one.start(tenant, "sync", 8000, 2.4, 100, 0.8).finish().share <= 23


def seen_once(made: World, tenant: Tenant) -> int:
    """How busy the card is to a program like nvidia-smi, which asks once and ends: percent."""
    env = made.environment(tenant) | {"LD_LIBRARY_PATH": str(interposers())}
    monitor = Program(program("prog_call"), env)
    assert monitor("nvmlInit_v2").result == 0
    card = monitor("nvmlDeviceGetHandleByIndex_v2", 0, OUT).out[0]
    gpu, _ = struct.unpack("<II", monitor("nvmlDeviceGetUtilizationRates", card, bytes(8)).bytes)
    monitor.end()
    return int(gpu)


def test_a_monitor_that_asks_once_sees_how_much_of_the_share_is_in_use(one: World) -> None:
    tenant = one.tenant(40)
    real = tenant.root / "usr/local/vcuda/real/libnvidia-ml.so.1"
    real.symlink_to(standin.built() / one.version / "libnvidia-ml.so.1")
    assert seen_once(one, tenant) == 0
    load = one.start(tenant, "stream", 2000, 60, 100)
    load.wait_running()
    assert until(lambda: one.usage(tenant).busy_ns > 6e8)
    assert seen_once(one, tenant) >= 70, "40 % of the card are its whole share"
    load.kill()
    assert until(lambda: seen_once(one, tenant) == 0)


def test_garbage_in_the_credit_words_stalls_nobody(one: World) -> None:
    tenant = one.tenant(50)
    path = one.base / "pages" / tenant.name / "usage"
    load = one.start(tenant, "sync", 2000, 60, 100)
    load.wait_running()
    begin, before = time.monotonic(), one.usage(tenant).busy_ns
    with path.open("r+b", buffering=0) as file:
        for word in (b"\xff" * 16, b"\x00" * 7 + b"\x80" + b"\xff" * 8, b"\xff" * 7 + b"\x7f" + bytes(8)):
            file.seek(4096 + 128)  # credit and refill stamp
            file.write(word)
            busy = one.usage(tenant).busy_ns
            assert until(lambda busy=busy: one.usage(tenant).busy_ns > busy + 10_000_000)
    assert until(lambda: time.monotonic() > begin + 2.4)
    used = (one.usage(tenant).busy_ns - before) / 1e9
    load.kill()
    assert used < 0.60 * (time.monotonic() - begin)
