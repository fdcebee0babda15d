"""The library at its card's gate: real processes, a modelled card, and a hand of the test's on the gate."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time

import pytest

from gpu_manager.domain.enforcement.protection import CardMember
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction
from tests.native.core_world import CARD, Tenant, World, world
from tests.native.gates import GatedHost, closed
from tests.native.programs import compiled

SECONDS = 4.0


def job(
    made: World, priority: Priority = Priority.BEST_EFFORT, *, granted: float = 100.0, cores: int = 30
) -> Tenant:
    tenant = made.tenant(cores, 100, priority=priority)
    made.tenants.publish(tenant.name, time.monotonic_ns(), {CARD: Correction(co_active=1.0, granted=granted)})
    return tenant


def share(made: World, tenant: Tenant, kind: str = "stream", us: int = 1000) -> float:
    """Percent of the card that a program gets which always has work, after a second."""
    watch = made.watch(100)
    load = made.start(tenant, kind, us, SECONDS, 0)
    load.wait_running()
    begin = time.monotonic_ns() + 1_500_000_000
    load.finish()
    return watch.shares_until([load.process.pid], begin, begin + 2_000_000_000)[0]


@pytest.mark.timed
@pytest.mark.parametrize("us", [100, 1000, 20_000])
def test_a_best_effort_container_at_a_closed_gate_has_its_own_share_and_little_more(us: int) -> None:
    with world() as made, closed(made):
        assert 28 <= share(made, job(made), us=us) <= 38


@pytest.mark.timed
@pytest.mark.parametrize(("kind", "us"), [("threads", 200), ("sync", 50)])
def test_what_is_measured_at_a_closed_gate_is_what_the_card_did(kind: str, us: int) -> None:
    """Streams that wait for each other, and a thread that is stopped between two calls, make no work cheaper."""
    with world() as made, closed(made):
        assert 22 <= share(made, job(made), kind, us) <= 38


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["stream", "sync", "threads", "graph"])
def test_at_an_open_gate_it_may_have_what_it_is_granted(kind: str) -> None:
    with world() as made:
        made.tenants.gates.ensure(CARD)
        assert share(made, job(made), kind) >= (50 if kind == "sync" else 85)


@pytest.mark.timed
@pytest.mark.parametrize(("used", "within"), [(0, 2), (60, 5)], ids=["idle", "idle, as is not known yet"])
def test_a_protected_container_whose_kernels_grow_keeps_to_its_limit(used: float, within: float) -> None:
    """Its data decide how long they take: what was known of them at first is of ten times shorter ones. The
    other container is idle; what it has used the host tells once a second.
    """
    with world() as made:
        service = made.tenant(40, priority=Priority.PROTECTED)
        idle = made.tenant(60, 100, priority=Priority.BEST_EFFORT)
        watch = made.watch(100)
        with made.host(service, idle), contextlib.closing(GatedHost(made)) as host:
            host.protect(
                [
                    CardMember(service.name, CARD, 0, 40, 40, Priority.PROTECTED, used=40),
                    CardMember(idle.name, CARD, 0, 60, 100, Priority.BEST_EFFORT, used=used),
                ]
            )
            load = made.start(service, "grows", 1000, SECONDS, 0)
            load.wait_running()
            begin = time.monotonic_ns()
            load.finish()
            had = watch.shares_until([load.process.pid], begin + 2_000_000_000, begin + 4_000_000_000)[0]
    assert had == pytest.approx(40, abs=within)


@pytest.mark.timed
def test_a_deadline_that_no_host_would_write_closes_nothing() -> None:
    with world() as made, closed(made, deadline_ns=10**15):
        assert share(made, job(made)) >= 85


@pytest.mark.timed
@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.PROTECTED])
def test_no_other_class_waits_at_a_gate(priority: Priority) -> None:
    with world() as made, closed(made):
        assert share(made, job(made, priority)) >= 85


@pytest.mark.timed
def test_without_protected_containers_on_the_card_it_does_not_wait() -> None:
    with world() as made, closed(made):
        tenant = job(made, granted=0.0)
        made.limit(tenant.name, 80, priority=Priority.BEST_EFFORT)
        assert share(made, tenant) >= 70


@pytest.mark.timed
def test_a_container_without_the_mount_keeps_little_in_flight_and_goes_on() -> None:
    with world() as made, closed(made):
        tenant = job(made)
        (made.base / "pages" / tenant.name / "gates").unlink()
        assert share(made, tenant) >= 85


@pytest.mark.timed
def test_long_kernels_pass_a_closed_gate_no_more_often_than_short_ones() -> None:
    """A call is held for 50 ms; the kernel that it launches then waits by itself."""
    with world() as made, closed(made):
        assert 9 <= share(made, job(made, cores=10), us=20_000) <= 16


def at_gate(made: World, tenant: Tenant, kind: str, us: int, seconds: float = 1.5) -> dict[str, float]:
    """What a program at the gate says of itself: milliseconds of its longest call, seconds that it took."""
    program = compiled("core_gate.c", "-lpthread")
    done = subprocess.run(
        [str(program), kind, str(us), str(seconds)],
        env=made.environment(tenant), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    return {words[0]: float(words[1]) for words in map(str.split, done.stdout.splitlines()) if words[1:]}


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["calls", "threads", "capture"])
def test_no_call_is_held_at_a_closed_gate_for_much_more_than_50_ms(kind: str) -> None:
    with world() as made, closed(made):
        assert 20 <= at_gate(made, job(made, cores=1), kind, 10_000)["longest"] <= 80


def test_a_thread_that_waits_at_the_gate_is_cancelled_after_its_launch_if_at_all() -> None:
    """The driver's call is no point of cancellation; and the gate would wait for the launch for ever."""
    with world() as made, closed(made):
        at_gate(made, job(made, cores=1), "cancel", 5_000)


@pytest.mark.parametrize("kind", ["destroy", "fork", "threads", "capture"])
def test_what_waits_at_the_gate_by_itself_runs_whatever_becomes_of_its_stream(kind: str) -> None:
    """The program waits for the card at its end, and every call succeeds."""
    with world() as made, closed(made):
        at_gate(made, job(made), kind, 5_000)


@pytest.mark.timed
def test_a_program_that_ends_does_not_wait_for_its_launches_at_the_gate() -> None:
    with world() as made, closed(made):
        tenant = job(made, cores=1)
        compiled("core_gate.c", "-lpthread")  # these two build, which is no part of the time
        made.environment(tenant)
        begin = time.monotonic()
        ran = at_gate(made, tenant, "calls", 20_000)["ran"]
        # About a second for those that wait at the gate (docs/internals/limits.md); one kernel alone waits for two.
        assert time.monotonic() - begin - ran <= 1.9


# A best-effort container that never gives the turn back: a lock on the file that it can read.
KEEP = "import fcntl, sys; gate = open(sys.argv[1]); fcntl.flock(gate, fcntl.LOCK_EX); print(flush=True); input()"


@pytest.mark.timed
@pytest.mark.parametrize(("us", "at_least"), [(200, 75), (20_000, 95)])
def test_of_several_best_effort_containers_one_has_work_in_flight_at_a_time(us: int, at_least: int) -> None:
    """They have equal parts of what they have. Each hand over of a turn needs a processor: short kernels have many,
    so a machine whose processors come late leaves the card idle between them, and that is no fault of the gate's.
    """
    with world(settings={"turns": "kernel"}) as made:
        made.tenants.gates.ensure(CARD)
        tenants = [job(made, granted=33.3) for _ in range(3)]
        watch = made.watch(100)
        loads = [made.start(tenant, "stream", us, SECONDS, 0) for tenant in tenants]
        for load in loads:
            load.wait_running()
        begin = time.monotonic_ns() + 1_500_000_000
        at_once: list[int] = []
        while time.monotonic_ns() < begin + 2_000_000_000:
            if time.monotonic_ns() > begin:
                at_once.append(sum(any(s.inflight[0] for s in made.slots(t)) for t in tenants))
            threading.Event().wait(0.001)
        for load in loads:
            load.finish()
        shares = watch.shares_until([load.process.pid for load in loads], begin, begin + 2_000_000_000)
    assert sum(count > 1 for count in at_once) <= len(at_once) / 10
    assert all(0.28 <= share / sum(shares) <= 0.38 for share in shares)
    assert at_least <= sum(shares) <= 101


@pytest.mark.timed
def test_a_container_that_keeps_the_turn_for_ever_takes_nothing_of_others_own_shares() -> None:
    with world() as made:
        made.tenants.gates.ensure(CARD)
        command = [sys.executable, "-c", KEEP, str(made.tenants.gates.path(CARD))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
            assert keeper.stdout
            assert keeper.stdin
            keeper.stdout.readline()
            had = share(made, job(made), us=1000)
            keeper.stdin.close()
        assert 28 <= had <= 45


@pytest.mark.timed
def test_a_protected_container_says_that_it_has_work_until_its_last_kernel_has_ended() -> None:
    """Beside kernels of 20 ms that run out, the last of a request may start long after it was launched."""
    with world(settings={"turns": "kernel"}) as made:
        service, beside = made.tenant(40, priority=Priority.PROTECTED), job(made)
        made.tenants.publish(service.name, time.monotonic_ns(), {CARD: Correction(granted=40.0)})
        watch = made.watch(5)
        load = made.start(beside, "stream", 20_000, SECONDS, 0)
        load.wait_running()
        request = [compiled("core_service.c", "-Wl,--no-as-needed", "-lm"), 1000, 60, 1, 2.0, 1]
        process = subprocess.Popen(
            [str(word) for word in request], env=made.environment(service), stdout=subprocess.DEVNULL
        )
        seen: list[tuple[int, bool]] = []
        while process.poll() is None:
            slots = made.slots(service)
            seen.append((time.monotonic_ns(), any(slot.inflight[0] for slot in slots)))
            threading.Event().wait(0.0005)
        load.finish()
        watch.shares_until([process.pid], seen[0][0], seen[-1][0])
        readings = watch.readings(process.pid, seen[0][0], seen[-1][0])
    ran = [(a, b) for a, b in itertools.pairwise(readings) if b[1] - a[1] > 100_000]
    assert len(ran) >= 100, "a request's kernels come one after each of the other's"
    silent = [a for a, b in ran if not any(said for at, said in seen if a[0] - 1_000_000 <= at <= b[0])]
    assert len(silent) <= len(ran) // 50


@pytest.mark.timed
def test_a_gate_that_is_none_is_passed_over() -> None:
    with world() as made:
        made.tenants.gates.ensure(CARD)
        tenant = job(made)
        made.tenants.gates.path(CARD).write_bytes(b"\xff" * 4096)
        assert share(made, tenant) >= 85
