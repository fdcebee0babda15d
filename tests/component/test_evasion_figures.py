"""The figures that the watchdog compares: who holds a slot of a page, who a host process is to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.processes import CgroupProcesses
from gpu_manager.domain.errors import NodeUnready, Tampered
from tests.fakes.pages import LIMIT, NAME, register, usage_file
from tests.fakes.waiting import PATIENCE
from vcuda.page.usage import USAGE_SIZE

EXITING, RUNNING = 0x404, 0x400  # PF_EXITING beside PF_RANDOMIZE


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[FileControlPages]:
    pages = FileControlPages(tmp_path / "pages")
    pages.open(NAME, [LIMIT])
    yield pages
    pages.close()


def test_processes_with_a_slot_are_registered_by_the_id_they_know_themselves_by(
    tenants: FileControlPages, tmp_path: Path
) -> None:
    assert tenants.registered(NAME) == frozenset()
    lock = register(usage_file(tmp_path / "pages"), 0, pid=17)
    assert tenants.registered(NAME) == {17}
    os.close(lock)
    assert tenants.registered(NAME) == {17}, "a program may have closed the library's descriptor"


def test_an_attack_on_a_page_is_remembered_whoever_meets_it_first(
    tenants: FileControlPages, tmp_path: Path
) -> None:
    assert tenants.attacks(NAME) == (0, "")
    os.truncate(usage_file(tmp_path / "pages"), 4096)
    with pytest.raises(Tampered):
        tenants.activity(NAME)
    count, what = tenants.attacks(NAME)
    assert count == 1
    assert what.startswith(f"it had 4096 bytes instead of {USAGE_SIZE}")


def test_a_page_that_is_gone_was_not_tampered_with(tenants: FileControlPages) -> None:
    with pytest.raises(NodeUnready) as gone:
        tenants.registered("f" * 32)
    assert not isinstance(gone.value, Tampered)
    assert tenants.attacks("f" * 32) == (0, "")


def process(proc: Path, pid: int, *, flags: int = RUNNING, inner: str | None = None, **threads: int) -> None:
    """A process of a recorded tree; threads are ``t<id>=<flags>``."""
    for path, value in ((f"{pid}", flags), *((f"{pid}/task/{n[1:]}", f) for n, f in threads.items())):
        (proc / path).mkdir(parents=True)
        (proc / path / "stat").write_text(f"{pid} (a (b) c) S 1 1 1 0 -1 {value} 0 0\n")
    text = "Name:\tx\n" + (f"NStgid:\t{inner}\n" if inner is not None else "")
    (proc / str(pid) / "status").write_text(text)


def test_a_host_process_is_known_by_the_id_of_its_innermost_namespace(tmp_path: Path) -> None:
    process(tmp_path, 4711, inner="4711\t93\t5")
    process(tmp_path, 4712, inner="4712")
    processes = CgroupProcesses(tmp_path)
    assert processes.inner_pid(4711) == 5
    assert processes.inner_pid(4712) == 4712


def test_a_process_on_its_way_out_is_nobody_any_more(tmp_path: Path) -> None:
    process(tmp_path, 1, flags=EXITING, inner="1", t1=EXITING)
    process(tmp_path, 2, flags=EXITING, inner="2\t7", t2=EXITING, t3=RUNNING)
    process(tmp_path, 3, inner=None)
    processes = CgroupProcesses(tmp_path)
    assert processes.inner_pid(1) is None
    assert processes.inner_pid(2) == 7, "its first thread has ended, another works on"
    assert processes.inner_pid(3) is None, "a kernel that does not tell"
    assert processes.inner_pid(99) is None
    assert processes.inner_pid(0) is None


def test_a_living_process_of_this_machine_is_known_and_a_dead_one_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = CgroupProcesses()
    assert processes.inner_pid(child.pid) == child.pid
    child.communicate(b"\n", timeout=PATIENCE)
    assert processes.inner_pid(child.pid) is None
