"""What the built libraries look like from outside: exports, needs, versions, weight."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.fake_driver import RELEASES, all_names, hooked, names
from tests.native.tools import run

INTERPOSERS = {"cuda": ("libvcuda.so", "libcuda.so.1"), "nvml": ("libvcuda-ml.so", "libnvidia-ml.so.1")}
EVERY = [("cuda", "libvcuda.so"), ("nvml", "libvcuda-ml.so"),
         ("cuda", "sandbox/libcuda.so.1"), ("nvml", "sandbox/libnvidia-ml.so.1")]  # fmt: skip


@pytest.mark.parametrize(("kind", "file"), EVERY)
def test_it_exports_every_name_of_every_release_and_one_for_the_address_sanitizer(
    native: Path, kind: str, file: str
) -> None:
    lines = run("nm", "-D", "--defined-only", native / file).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines}
    assert exported == all_names(kind) | {"__asan_default_options"}
    assert {line.split()[-2] for line in lines} == {"T"}


@pytest.mark.parametrize("release", RELEASES)
def test_the_names_that_drivers_export_and_no_header_declares_are_there(release: str) -> None:
    """nvidia-smi asks NVML for a table of its own, and ends if there is none; cuda-gdb asks the driver."""
    assert "nvmlInternalGetExportTable" in names("nvml", release)
    assert {"cudbgGetAPI", "cudbgGetAPIVersion"} <= set(names("cuda", release))


@pytest.mark.parametrize(("kind", "file"), EVERY)
def test_it_needs_libc_alone_and_no_symbol_newer_than_glibc_2_17(native: Path, kind: str, file: str) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", native / file))
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    versions = re.findall(r"GLIBC_([0-9.]+|\w+)", run("objdump", "-T", native / file))
    assert versions
    assert max(tuple(int(part) for part in version.split(".")) for version in versions) <= (2, 17)


@pytest.mark.parametrize(("kind", "file"), EVERY)
def test_it_has_the_drivers_soname_and_stays_loaded(native: Path, kind: str, file: str) -> None:
    dynamic = run("readelf", "-d", native / file)
    assert f"[{INTERPOSERS[kind][1]}]" in dynamic
    assert "NOW" in dynamic
    assert "NODELETE" in dynamic


@pytest.mark.parametrize(("kind", "file"), EVERY)
def test_it_runs_nothing_when_it_is_loaded(native: Path, kind: str, file: str) -> None:
    """One entry is the compiler's own, which registers nothing in C."""
    sizes = re.findall(r"\((?:INIT|PREINIT)_ARRAYSZ\)\s+(\d+)", run("readelf", "-d", native / file))
    assert sizes in ([], ["8"])


@pytest.mark.parametrize("kind", ["cuda", "nvml"])
def test_the_library_a_container_receives_reads_no_environment(native: Path, kind: str) -> None:
    undefined = run("nm", "-D", "--undefined-only", native / INTERPOSERS[kind][0])
    assert "getenv" not in undefined
    assert b"VCUDA_ROOT" not in (native / INTERPOSERS[kind][0]).read_bytes()


@pytest.mark.parametrize("symbol", ["exit", "_exit", "abort", "system", "execve", "setenv", "umask"])
def test_it_can_do_nothing_a_guest_may_not(native: Path, symbol: str) -> None:
    for _, file in EVERY:
        undefined = {
            line.split()[-1].split("@")[0] for line in run("nm", "-D", "-u", native / file).splitlines()
        }
        assert symbol not in undefined


def test_every_hook_is_an_exported_name() -> None:
    assert hooked() <= all_names("cuda") | all_names("nvml")
    assert {"cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"} <= hooked()


WORKS_OR_WAITS = re.compile(
    r"^cu(Launch|Mem(cpy|set)|\w*(Wait|Prefetch|Decompress|BatchMemOp|HostFunc)|StreamAddCallback)"
)
"""Names of functions that put work or a wait into a stream."""


def test_every_call_that_puts_work_or_a_wait_into_a_stream_is_hooked() -> None:
    """A wait that the meter does not hear of seems to be work in flight: a gate stays closed for it."""
    found = {name for name in all_names("cuda") if WORKS_OR_WAITS.match(name) and "Node" not in name}
    assert found - hooked() == set()
