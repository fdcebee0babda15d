"""A container's root takes leases on the files that the agent shares with it (fcntl's F_SETLEASE)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.gates import holders
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import Tampered
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import Limit
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.open_files import open_files
from tests.fakes.pages import CARD, LIMIT, NAME, limits_of, usage_file
from tests.fakes.waiting import until

OTHER = "f" * 32
SMALLER = Limit(CARD, GIB, 10, 10)


@pytest.fixture
def tenant() -> Iterator[HostileTenant]:
    with HostileTenant() as running:
        yield running


def limits_file(root: Path) -> Path:
    return root / NAME / "limits"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_no_lease_is_given_on_a_page_that_the_agent_serves(tenants, root, tenant, kind):
    tenants.open(NAME, [LIMIT])
    assert tenant.order("lease", limits_file(root), kind=kind) == errno.EAGAIN
    assert tenant.order("lease", usage_file(root), kind=kind, writable=kind == "write") == errno.EAGAIN
    tenants.open(NAME, [SMALLER])
    tenants.publish(NAME, 5, {})
    assert limits_of(root).cards[0].memory_limit == GIB
    assert tenants.usage(NAME)[0].memory == 0
    assert tenants.tampering() == {}


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_lease_on_the_limits_that_was_taken_while_no_agent_ran_is_named_and_got_past(root, tenant, kind):
    with_before(root)
    assert tenant.order("lease", limits_file(root), kind=kind) == 0
    tenants = FileControlPages(root)
    with pytest.raises(Tampered, match=f"{NAME}.* lease"):
        tenants.open(NAME, [SMALLER])
    assert tenants.attacks(NAME)[0] > 0
    until(lambda: shrinks(tenants))
    assert limits_of(root).cards[0].memory_limit == GIB
    assert tenant.order("lease", limits_file(root), kind=kind) == errno.EAGAIN
    tenants.close()


def test_a_lease_on_the_usage_page_blinds_the_agent_for_a_moment_and_is_named(root, tenant):
    with_before(root)
    assert tenant.order("lease", usage_file(root), kind="write", writable=True) == 0
    tenants = FileControlPages(root)
    with pytest.raises(Tampered, match=f"{NAME}.* lease"):
        tenants.usage(NAME)
    until(lambda: reads(tenants))
    assert tenant.order("lease", usage_file(root), kind="write", writable=True) == errno.EAGAIN
    tenants.close()


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_lease_on_a_gate_keeps_nobody_from_starting_on_that_card(root, tenant, kind):
    best_effort = Limit(CARD, GIB, 10, 10, Priority.BEST_EFFORT)
    with_before(root, best_effort)
    gate = FileControlPages(root).gates.path(CARD)
    assert tenant.order("lease", gate, kind=kind) == 0
    tenant.order("keep_lease", gate)
    tenants = FileControlPages(root)
    tenants.open(OTHER, [best_effort])
    assert tenants.usage(OTHER)[0].memory == 0
    assert tenants.gates.leases() == {CARD: (tenant.pid,)}
    tenant.order("give_back", gate)
    until(lambda: opens(tenants, gate))
    assert tenant.order("lease", gate, kind=kind) == errno.EAGAIN
    tenants.close()


def test_leases_that_are_never_given_up_cost_their_own_container_alone_for_45_seconds(root, tenant):
    """Agent, keeper and watcher were away at once. The kernel ends such leases after fs.lease-break-time; here
    the container gives them back when a modelled clock says so.
    """
    own, others = (Limit(CARD, GIB, 30, 30, priority) for priority in (Priority.BEST_EFFORT, Priority.NORMAL))
    earlier = with_before(root, own)
    with_before(root, others, OTHER)
    files = (limits_file(root), usage_file(root), earlier.gates.path(CARD))
    for file in files:
        assert tenant.order("lease", file, kind="read") == 0
        tenant.order("keep_lease", file)
    clock = [10**12]
    tenants = FileControlPages(root, monotonic_ns=lambda: clock[0])
    waiting = []
    for second in range(45):
        clock[0] += 10**9
        with pytest.raises(Tampered, match="lease"):
            tenants.open(NAME, [replace(own, cores=5)])
        with pytest.raises(Tampered, match="lease"):
            tenants.usage(NAME)
        tenants.open(OTHER, [replace(others, cores=40 + second)])
        assert limits_of(root, OTHER).cards[0].core_limit == 40 + second
        assert tenants.usage(OTHER)[0].memory == 0
        assert tenants.gates.leases() == {CARD: (tenant.pid,)}
        waiting.append(sum(thread.name == "lease" for thread in threading.enumerate()))
    assert limits_of(root).cards[0].core_limit == 30, "its own limit waits"
    assert len(set(waiting)) == 1, "one thread waits for each file, however often it is asked for"
    for file in files:
        tenant.order("give_back", file)
    until(lambda: shrinks(tenants))
    until(lambda: opens(tenants, files[2]))
    until(lambda: reads(tenants))
    tenants.close()


def test_the_search_for_a_leases_holder_reads_no_more_than_its_bound_of_the_kernels_locks(tmp_path):
    gate, locks = tmp_path / "gate", tmp_path / "locks"
    gate.touch()
    status = gate.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    other = "1: OFDLCK ADVISORY  WRITE -1 00:1b:4711 0 0\n"
    lease = f"2: LEASE  ACTIVE    READ  4711 {place} 0 EOF\n"
    locks.write_text(other * 1000 + lease + other * 1000)
    assert holders(locks, status) == (4711,)
    locks.write_text(other * 150_000 + lease)
    assert holders(locks, status) == ()


def test_a_page_that_is_run_as_a_program_while_no_agent_ran_is_named(root, tenant):
    """The kernel lets nobody open it for writing then (ETXTBSY)."""
    with_before(root)
    if tenant.order("execute", usage_file(root)) == errno.EACCES:
        pytest.skip("the file system here runs no programs")
    tenants = FileControlPages(root)
    for _ in range(2):
        with pytest.raises(Tampered, match="runs the usage page as its program"):
            tenants.usage(NAME)
    tenants.close()


def test_no_lease_is_given_on_a_gate_that_the_agent_serves(tenants, tenant):
    tenants.open(NAME, [Limit(CARD, GIB, 10, 10, Priority.BEST_EFFORT)])
    for kind in ("read", "write"):
        assert tenant.order("lease", tenants.gates.path(CARD), kind=kind) == errno.EAGAIN


def test_a_removed_directory_keeps_no_descriptor(root):
    tenants = FileControlPages(root)
    before = len(open_files())
    tenants.open(NAME, [LIMIT])
    tenants.usage(NAME)
    tenants.remove(NAME)
    assert len(open_files()) == before
    tenants.close()


def with_before(root: Path, limit: Limit = LIMIT, name: str = NAME) -> FileControlPages:
    """An agent made the pages, and ended."""
    earlier = FileControlPages(root)
    earlier.open(name, [limit])
    earlier.close()
    return earlier


def shrinks(tenants: FileControlPages) -> bool:
    try:
        tenants.open(NAME, [SMALLER])
    except Tampered:
        return False
    return True


def reads(tenants: FileControlPages) -> bool:
    try:
        tenants.usage(NAME)
    except Tampered:
        return False
    return True


def opens(tenants: FileControlPages, gate: Path) -> bool:
    """True once the agent has the gate open for good."""
    tenants.gates.ensure(CARD)
    return str(gate.resolve()) in open_files()
