"""NVIDIA's own CUDA runtime, from its wheels, through the interposer on the stand-in driver.

How far it gets, and why no further: it looks up all its functions, starts the driver, reads the cards, takes its
context and its tables. Then it asks one of the driver's export tables three times for 16 bytes that prove that the
driver is NVIDIA's own, which only NVIDIA's code can compute, and since the stand-in leaves them as they are it stops
with cudaErrorSoftwareValidityNotEstablished. That is documented (the runtime "may perform a minimal set of self-tests,
as well as CUDA driver tests, to establish the validity of both"); forging it is no business of this project. What
programs do after that point, the other tests do with the same driver calls, and ``make gpu`` with the real driver.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.driven import Container
from tests.native.tools import ROOT, run, tool

NO_DEVICE, VALIDITY_NOT_ESTABLISHED = 100, 103
RUNTIMES = {"12.9": "nvidia-cuda-runtime-cu12==12.9.79", "13.5": "nvidia-cuda-runtime==13.5.37"}
CLIENT = r"""
#include <stdio.h>
extern int cudaDriverGetVersion(int *), cudaRuntimeGetVersion(int *), cudaGetDeviceCount(int *);
int main(void) {
    int driver = 0, runtime = 0, count = -1;
    int first = cudaDriverGetVersion(&driver), second = cudaRuntimeGetVersion(&runtime);
    printf("%d %d %d %d\n", first, driver, second, runtime);
    printf("%d\n", cudaGetDeviceCount(&count));
}
"""


@dataclass(frozen=True)
class Asked:
    """What a runtime asks of a driver until it stops; counted with the wheels above."""

    lookups: int
    names: int
    per_thread: int
    """Look-ups in the mode of a default stream per thread."""
    tables: tuple[str, ...]
    """Export tables by the beginning of their ids; the last one is for the proof."""


ASKED = {
    "12.9": Asked(419, 334, 69, ("f8cff951", "6bd5fb6c", "a094798c", "42d85a81", "c693336e", "263e8860", "d4082055")),
    "13.5": Asked(
        481, 378, 80, ("f8cff951", "6bd5fb6c", "a094798c", "42d85a81", "21318c60", "c693336e", "263e8860", "d4082055")
    ),
}  # fmt: skip


@pytest.fixture(scope="session", params=sorted(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """(version, directory with the shared and the static library)."""
    target = ROOT / "build" / "cuda-runtime" / request.param
    if not target.exists():
        got = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, RUNTIMES[request.param]],
            capture_output=True, text=True, check=False, timeout=250,
        )  # fmt: skip
        if got.returncode != 0:
            pytest.skip(
                f"the package index did not give {RUNTIMES[request.param]}: {got.stderr.strip()[-200:]}"
            )
    return request.param, next(target.rglob("libcudart_static.a")).parent


def client(libraries: Path, kind: str, directory: Path) -> Path:
    """The program on the shared or on the static runtime."""
    source, program = directory / "client.c", directory / "client"
    source.write_text(CLIENT)
    library = libraries / "libcudart_static.a" if kind == "static" else next(libraries.glob("libcudart.so.*"))
    run(tool("cc"), source, "-o", program, library, f"-Wl,-rpath,{libraries}", "-ldl", "-lpthread", "-lrt")
    return program


def traced(program: Path, env: dict[str, str], trace: Path) -> tuple[list[str], list[str]]:
    """What the program says, and what the driver was asked."""
    done = subprocess.run(
        [program], env=env | {"VCUDA_STANDIN_TRACE": str(trace)}, capture_output=True, text=True, check=True, timeout=60
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines(), trace.read_text().splitlines()


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_cuda_runtime_finds_all_it_needs_through_the_interposer_up_to_nvidias_proof(
    runtime: tuple[str, Path], kind: str, tmp_path: Path
) -> None:
    version, libraries = runtime
    major, minor = version.split(".")
    number, asked = int(major) * 1000 + int(minor) * 10, ASKED[version]
    with Container(tmp_path, 1 << 30, version=version) as container:
        program = client(libraries, kind, tmp_path)
        said, trace = traced(program, container.env(), tmp_path / "trace")
        usage = container.usage
    assert said == [f"0 {number} 0 {number}", str(VALIDITY_NOT_ESTABLISHED)]
    lookups = [line.split(" ") for line in trace if line.startswith("resolve ")]
    per_thread = sum(mode == "2" for _, _, _, mode in lookups)
    found = Asked(
        len(lookups), len({name for _, name, _, _ in lookups}), per_thread,
        tuple(line.split()[1] for line in trace if line.startswith("table ")),
    )  # fmt: skip
    assert found == asked
    assert [line for line in trace if line.startswith("proof ")] == [
        f"proof of {number + n}" for n in range(3)
    ]
    calls = Counter(line.split()[1] for line in trace if line.startswith("call "))
    assert calls["cuInit"] == 1
    assert calls["cuDeviceTotalMem_v2"] >= 1
    assert calls["cuDeviceGetAttribute"] > 100
    assert "primary context of 0" in trace
    assert usage.slot_high == 1
    # No name of these releases is unknown to the interposer, and none had to be placed by its name.
    assert (usage.unknown_symbols, usage.routed_by_name) == (0, 0)


def test_the_cuda_runtime_asks_the_same_with_the_interposer_as_without(
    runtime: tuple[str, Path], tmp_path: Path
) -> None:
    version, libraries = runtime
    program = client(libraries, "shared", tmp_path)
    with Container(tmp_path, 1 << 30, version=version) as container:
        bare = {**container.env(), "LD_LIBRARY_PATH": str(container.root / "usr/local/vcuda/real")}
        alone = traced(program, bare, tmp_path / "bare")
        ours = traced(program, container.env(), tmp_path / "ours")
    assert ours[0] == alone[0]
    # The interposer itself asks the driver only for what it needs in order to hold limits.
    own = Counter(ours[1]) - Counter(alone[1])
    assert Counter(alone[1]) - Counter(ours[1]) == Counter()
    assert {line.split()[0] for line in own} <= {"call"}, own


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_program_that_runs_it_on_a_real_card_links_with_it_and_says_where_it_stopped(
    runtime: tuple[str, Path], kind: str, tmp_path: Path
) -> None:
    """What ``make gpu`` builds: here it comes as far as the proof."""
    version, libraries = runtime
    library = libraries / "libcudart_static.a" if kind == "static" else next(libraries.glob("libcudart.so.*"))
    program = tmp_path / "runtime"
    run(tool("cc"), "-Wall", "-Wextra", "-Werror", ROOT / "tests/gpu/programs/runtime.c", "-o", program, library,
        f"-Wl,-rpath,{libraries}", "-ldl", "-lpthread", "-lrt")  # fmt: skip
    with Container(tmp_path, 1 << 30, version=version) as container:
        done = subprocess.run(
            [program, "0", "16"], env=container.env(), capture_output=True, text=True, check=False, timeout=60
        )
    said = f"cudaGetDeviceCount failed with CUDA error {VALIDITY_NOT_ESTABLISHED}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_the_cuda_runtime_finds_no_card_where_none_is_visible(
    runtime: tuple[str, Path], tmp_path: Path
) -> None:
    version, libraries = runtime
    program = client(libraries, "shared", tmp_path)
    env = {**standin.environment(tmp_path, version), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[1] == str(NO_DEVICE)
