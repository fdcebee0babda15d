"""Each machine and compiler: the same programs, the same answers, on x86-64 by gcc and clang and on aarch64 (under
qemu's user mode).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native import fake_driver
from tests.native.conftest import usage_of
from tests.native.tools import build_tree, run

CLIENT = r"""
#include <dlfcn.h>
#include <stdio.h>

typedef int plain(void);
typedef int init_fn(unsigned);
typedef int many(long, long, long, long, long, long, double, double, double, double, double, double, double, double,
                 long, long, long, long);
typedef int resolve_fn(const char *, void **, int, unsigned long, int *);

int main(int argc, char **argv)
{
    void *interposer = dlopen(argv[1], RTLD_NOW), *real = dlopen(argv[2], RTLD_NOW);
    if (!interposer || !real)
        return printf("%s\n", dlerror()), 1;
    many *checked = (many *)dlsym(interposer, "cuSurfObjectGetResourceDesc");
    for (int i = 0; i < 2; i++)
        printf("%d ", checked(1, 2, 4, 8, 16, 32, 100, 101, 102, 103, 104, 105, 106, 107, 64, 128, 256, 512));
    printf("%d ", ((init_fn *)dlsym(interposer, "cuInit"))(0));
    plain *version = (plain *)dlsym(interposer, "cuDriverGetVersion");
    printf("%d ", version() == ((plain *)dlsym(real, "cuDriverGetVersion"))());
    printf("%d ", ((plain *)dlsym(interposer, "cuLogicalEndpointCreate"))());
    void *pointer = NULL;
    int status = -1;
    int code = ((resolve_fn *)dlsym(interposer, "cuGetProcAddress_v2"))("cuInit", &pointer, 2000, 0, &status);
    printf("%d %d %d\n", code, status, pointer != dlsym(real, "cuInit") && ((init_fn *)pointer)(77) == 4321);
    return 0;
}
"""


@dataclass(frozen=True)
class Machine:
    name: str
    compiler: str
    build: Path
    run: tuple[str, ...]


UNITS = {"unit_token_bucket": "all hold\n", "unit_allocation_table": "whole\n", "unit_loader": "all hold\n"}
"""Programs of the library's own code, and what they say when all is well."""


def build_with(compiler: str, name: str, *options: str) -> Path:
    targets = ("vcuda", "vcuda-ml", "sandbox-cuda", "sandbox-ml", *UNITS)
    return build_tree(
        name, *targets, options=(f"-DCMAKE_C_COMPILER={compiler}", "-DVCUDA_TESTS=ON", *options)
    )


@pytest.fixture(scope="module", params=["own", "clang", "aarch64"])
def machine(request: pytest.FixtureRequest, native: Path, compiler: str) -> Machine:
    if request.param == "own":
        return Machine(os.uname().machine, compiler, native, ())
    if request.param == "clang":
        clang = shutil.which("clang")
        if not clang:
            pytest.skip("clang is not installed (Debian: apt-get install clang)")
        return Machine(os.uname().machine, clang, build_with(clang, "native-clang"), ())
    cross = shutil.which("aarch64-linux-gnu-gcc")
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not cross or not emulator:
        lacks = [
            name
            for name, there in (("gcc-aarch64-linux-gnu", cross), ("qemu-user-static", emulator))
            if not there
        ]
        pytest.skip(
            f"not installed: {', '.join(lacks)} (Debian: apt-get install {' '.join(lacks)} libc6-dev-arm64-cross)"
        )
    options = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    build = build_with(cross, "native-aarch64", *options)
    return Machine("aarch64", cross, build, (emulator, "-L", "/usr/aarch64-linux-gnu"))


def test_arguments_hooks_pages_and_routing_work_on_this_machine(
    machine: Machine, root: Path, tmp_path: Path
) -> None:
    real = fake_driver.build(machine.compiler, "cuda", "12.2", root / fake_driver.REAL / "libcuda.so.1")
    source = tmp_path / "client.c"
    source.write_text(CLIENT)
    run(machine.compiler, "-w", source, "-o", tmp_path / "client", "-ldl")
    interposer = machine.build / "sandbox/libcuda.so.1"
    done = subprocess.run(
        [*machine.run, str(tmp_path / "client"), str(interposer), str(real)], capture_output=True, text=True, check=False,
        env={"VCUDA_ROOT": str(root), "FAKE_SELF": str(real)}, timeout=60,
    )  # fmt: skip
    total = sum(factor * 2**n for n, factor in enumerate(range(1, 11)))
    total += sum(factor * value for factor, value in zip(range(11, 19), range(100, 108), strict=True))
    assert (done.stdout, done.stderr) == (f"{total} {total} 0 1 500 0 0 1\n", "")
    (slot,) = usage_of(root).slots
    assert slot.pid > 0


@pytest.mark.parametrize("file", ["libvcuda.so", "libvcuda-ml.so"])
def test_the_build_for_this_machine_exports_the_same_names_from_libc_alone(
    machine: Machine, file: str
) -> None:
    library = machine.build / file
    kind = "cuda" if file == "libvcuda.so" else "nvml"
    lines = run("readelf", "--dyn-syms", "-W", library).splitlines()
    rows = [line.split() for line in lines if " FUNC " in line or " NOTYPE " in line]
    rows = [row for row in rows if len(row) > 7]
    assert {row[7].split("@")[0] for row in rows if row[6] != "UND"} == fake_driver.all_names(kind) | {
        "__asan_default_options"
    }
    versions = {row[7].split("@GLIBC_")[1] for row in rows if "@GLIBC_" in row[7]}
    assert max(tuple(int(part) for part in version.split(".")) for version in versions) <= (2, 17)
    assert run("readelf", "-d", library).count("(NEEDED)") == 1


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "machine", ["clang", "aarch64"], indirect=True
)  # this machine's own have tests of their own
def test_the_librarys_own_code_holds_on_other_machines(machine: Machine, unit: str) -> None:
    done = subprocess.run(
        [*machine.run, str(machine.build / unit)], capture_output=True, text=True, check=False, timeout=250
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, UNITS[unit]), done.stdout + done.stderr
