"""The watcher of gates: a real program, real pages, and tenants that write what they like into theirs."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.pages import FileControlPages, NativeGateWatcher
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import GateWatch, Limit, WatchedTenant
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.open_files import open_files
from tests.fakes.pages import register
from tests.native.core_world import until
from tests.native.tools import build_tests
from vcuda.page.layout import read_gate
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE, USAGE_SIZE

CARD = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")
SECOND = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc51")
PROTECTED, BEST_EFFORT, OTHER, THIRD = (letter * 32 for letter in "abcd")
INFLIGHT = 64  # in a slot: of the first card
MOST_SECONDS = 5.0


class Node:
    """Pages of one protected and one best-effort container on a card, its gate, and the watcher."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pages = FileControlPages(root)
        self.pages.open(PROTECTED, [Limit(CARD, GIB, 40, 40, Priority.PROTECTED)])
        self.pages.open(BEST_EFFORT, [Limit(CARD, GIB, 60, 60, Priority.BEST_EFFORT)])
        program = build_tests("vcuda-gates") / "vcuda-gates"
        self.watcher = NativeGateWatcher(program, root, self.pages.gates.path)
        self.page = root / PROTECTED / "usage"

    def watch(self, cores: int = 40) -> None:
        tenants = (WatchedTenant(PROTECTED, 0, cores),)
        self.watcher.watch([GateWatch(CARD, tenants, (WatchedTenant(BEST_EFFORT, 0, 60),))])

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.watcher._process is not None
        return self.watcher._process

    def closed(self) -> bool:
        gate = read_gate(self.pages.gates.path(CARD).read_bytes())
        return gate.closed_until_ns > time.monotonic_ns()

    def closings(self, card: CardUuid = CARD) -> int:
        return read_gate(self.pages.gates.path(card).read_bytes()).closings

    def say(self, in_flight: int, slot: int = 0, *, ring: bool = True) -> None:
        """As the library does: first the word, then the file's times."""
        with self.page.open("r+b", buffering=0) as page:
            os.pwrite(
                page.fileno(), struct.pack("<I", in_flight), USAGE_HEAD_SIZE + slot * SLOT_SIZE + INFLIGHT
            )
            if ring:
                os.utime(page.fileno())

    def close(self) -> None:
        self.watcher.close()
        self.pages.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_the_gate_is_closed_while_a_protected_process_has_work_in_flight(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    assert not node.closed()
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    for _ in range(5):  # it stays so, for longer than any deadline, while the tenant's share lasts
        threading.Event().wait(0.03)
        assert node.closed()
    node.say(0)
    assert until(lambda: not node.closed(), MOST_SECONDS)
    os.close(lock)


def test_work_that_a_library_does_not_announce_is_found_all_the_same(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    for _ in range(5):
        node.say(1, ring=False)
        assert until(node.closed, MOST_SECONDS)
        node.say(0, ring=False)
        assert until(lambda: not node.closed(), MOST_SECONDS)
    os.close(lock)


def test_a_slot_counts_while_its_process_lives(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    os.close(lock)  # what the kernel does when the process is killed; nobody rings
    assert until(lambda: not node.closed(), MOST_SECONDS)
    node.say(1)
    threading.Event().wait(0.1)
    assert not node.closed()


def test_a_watcher_that_is_killed_leaves_no_gate_closed_for_a_tenth_of_a_second_and_is_started_again(
    node: Node,
) -> None:
    lock = register(node.page, 0)
    node.watch()
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    node.process.send_signal(signal.SIGKILL)
    node.process.wait()
    left = read_gate(node.pages.gates.path(CARD).read_bytes()).closed_until_ns - time.monotonic_ns()
    assert left <= 100_000_000
    assert until(lambda: not node.closed(), MOST_SECONDS)
    node.watch()
    assert until(node.closed, MOST_SECONDS), "the work is still in flight"
    os.close(lock)


def test_all_gates_are_opened_when_the_agent_is_gone(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    process = node.process
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does for a killed agent
    assert process.wait(MOST_SECONDS) == 0
    assert not node.closed()
    os.close(lock)


def test_a_card_that_is_watched_no_more_has_its_gate_opened(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    node.watcher.watch([])
    assert not node.closed()
    node.watch()
    assert until(node.closed, MOST_SECONDS)
    os.close(lock)


def test_a_tenant_that_always_says_it_has_work_closes_the_gate_for_its_share_alone(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch(cores=10)
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    assert until(lambda: not node.closed(), MOST_SECONDS), "a tenth of a second is its share of one"
    begin = time.monotonic()
    closed = total = 0
    while time.monotonic() - begin < 2.0:
        closed += node.closed()
        total += 1
        threading.Event().wait(0.002)
    assert closed / total < 0.3
    os.close(lock)


@pytest.mark.parametrize("seed", range(4))
def test_no_page_disturbs_the_watcher(node: Node, seed: int) -> None:
    chance = random.Random(seed)
    node.watch()
    for _ in range(60):
        match chance.randrange(5):
            case 0:
                node.page.write_bytes(chance.randbytes(chance.randrange(USAGE_SIZE)))
            case 1:
                os.truncate(node.page, chance.choice((0, 1, 33, USAGE_HEAD_SIZE + 7, 2 * USAGE_SIZE)))
            case 2:
                with node.page.open("r+b") as page:
                    page.seek(32)
                    page.write(b"\xff" * 4)
            case 3:
                with node.page.open("r+b") as page:
                    page.seek(USAGE_HEAD_SIZE)
                    page.write(b"\xff" * 20_000)
            case _:
                os.utime(node.page)
    threading.Event().wait(0.05)
    assert node.process.poll() is None
    node.page.write_bytes(bytes(USAGE_SIZE))
    lock = register(node.page, 0)
    node.say(1)
    assert until(node.closed, MOST_SECONDS), "it goes on"
    os.close(lock)


def test_a_page_or_gate_that_is_not_there_is_left_out(node: Node) -> None:
    gone = GateWatch(CARD, (WatchedTenant("c" * 32, 0, 10), WatchedTenant(PROTECTED, 0, 10)), ())
    node.watcher.watch([gone])
    lock = register(node.page, 0)
    node.say(1)
    assert until(node.closed, MOST_SECONDS)
    node.pages.gates.path(CARD).unlink()
    node.watcher.watch([])
    node.watcher.watch([gone])
    threading.Event().wait(0.05)
    assert node.process.poll() is None
    os.close(lock)


def test_a_lease_on_one_card_s_gate_keeps_no_other_card_waiting(node: Node) -> None:
    node.pages.open(OTHER, [Limit(SECOND, GIB, 40, 40, Priority.BEST_EFFORT)])
    node.pages.open(THIRD, [Limit(SECOND, GIB, 40, 40, Priority.PROTECTED)])
    node.pages.close()  # the agent is away as well
    gate, page = node.pages.gates.path(CARD), node.root / THIRD / "usage"
    locks = [register(node.page, 0), register(page, 0)]
    with HostileTenant() as tenant:
        assert tenant.order("lease", gate, kind="read") == 0
        tenant.order("keep_lease", gate)
        node.watcher.watch(
            [
                GateWatch(CARD, (WatchedTenant(PROTECTED, 0, 40),), ()),
                GateWatch(SECOND, (WatchedTenant(THIRD, 0, 40),), ()),
            ]
        )
        node.page = page
        node.say(1)
        assert until(lambda: node.closings(SECOND), MOST_SECONDS)
        assert node.closings() == 0
        tenant.order("give_back", gate)
        node.page = node.root / PROTECTED / "usage"
        node.say(1)
        assert until(node.closings, MOST_SECONDS)
        assert tenant.order("lease", gate, kind="read") == errno.EAGAIN
    for lock in locks:
        os.close(lock)


def test_thousands_of_locks_on_one_page_cost_the_watcher_a_tenth_of_a_core(node: Node) -> None:
    for slot in range(64):
        node.say(1, slot)
        os.close(register(node.page, slot))  # marked live, and its process has ended
        node.say(1, slot)
    with HostileTenant() as tenant:
        assert tenant.order("locks", node.page, count=1, start=63) == 0
        assert tenant.order("locks", node.page, count=4000, start=4096) == 0
        node.watch()
        began, before = time.monotonic(), _cpu_seconds(node.process.pid)
        while time.monotonic() - began < 1.5:
            node.say(1)
        cost = (_cpu_seconds(node.process.pid) - before) / (time.monotonic() - began)
        assert cost <= 0.1


def test_without_an_inotify_instance_gates_are_closed_by_looking(node: Node, tmp_path: Path) -> None:
    """Containers' root and the node's share one bound of instances: here it is nought, of a user namespace."""
    program = tmp_path / "started-without"
    limit = "echo 0 >/proc/sys/user/max_inotify_instances"
    program.write_text(
        f"#!/bin/sh\nexec unshare -Ur sh -c '{limit} && exec \"$0\"' {node.watcher._program}\n"
    )
    program.chmod(0o700)
    if subprocess.run(["unshare", "-Ur", "sh", "-c", limit], check=False, capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    node.watcher = NativeGateWatcher(program, node.root, node.pages.gates.path)
    lock = register(node.page, 0)
    node.watch()
    for _ in range(5):
        node.say(1)
        assert until(node.closed, MOST_SECONDS)
        node.say(0)
        assert until(lambda: not node.closed(), MOST_SECONDS)
    os.close(lock)


def test_what_the_keeper_holds_gives_no_lease_while_the_agent_is_away(node: Node) -> None:
    gate = node.pages.gates.path(CARD)
    files = [node.root / name / file for name in (PROTECTED, BEST_EFFORT) for file in ("limits", "usage")]
    keeper = subprocess.Popen([str(node.watcher._program), "keep", str(node.root)])

    try:
        assert until(
            lambda: {str(path) for path in (*files, gate)} <= set(open_files(keeper.pid)), MOST_SECONDS
        )
        node.pages.close()
        with HostileTenant() as tenant:
            for path in (*files, gate):
                for kind in ("read", "write"):
                    assert tenant.order("lease", path, kind=kind) == errno.EAGAIN
        FileControlPages(node.root).remove(PROTECTED)
        assert until(lambda: not any(PROTECTED in path for path in open_files(keeper.pid)), MOST_SECONDS)
        assert str(gate) in open_files(keeper.pid)
        keeper.terminate()
        assert keeper.wait(MOST_SECONDS) == 0
    finally:
        keeper.kill()
        keeper.wait()


def test_a_program_that_is_not_there_is_an_error_with_a_cure(tmp_path: Path) -> None:
    pages = FileControlPages(tmp_path)
    for program, says in ((None, "install the wheel"), (tmp_path / "none", "cannot be started")):
        watcher = NativeGateWatcher(program, tmp_path, pages.gates.path)
        with pytest.raises(NodeUnready, match=says):
            watcher.watch([GateWatch(CARD, (), ())])
        watcher.close()


def test_instructions_that_make_no_sense_are_passed_over(node: Node) -> None:
    node.watch()
    assert node.process.stdin is not None
    nonsense = (
        b"card\n",
        b"tenant 99 1 /x\n",
        b"tenant -1 1 /x\n",
        b"beside x\n",
        b"\n",
        b"x" * 100_000 + b"\n",
        b"go\n",
    )
    for line in nonsense:
        node.process.stdin.write(line)
    node.process.stdin.flush()
    threading.Event().wait(0.05)
    assert node.process.poll() is None


def test_idle_tenants_cost_next_to_nothing(node: Node) -> None:
    lock = register(node.page, 0)
    node.watch()
    threading.Event().wait(0.1)
    before = _cpu_seconds(node.process.pid)
    threading.Event().wait(2.0)
    assert _cpu_seconds(node.process.pid) - before <= 0.03
    os.close(lock)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
