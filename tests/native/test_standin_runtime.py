"""NVIDIA's own CUDA runtime, from its wheels, on the stand-in driver.

The runtime looks up every driver function, starts the driver and reads the cards. Then it asks the driver's export
tables for what no document describes, ending with a proof that the driver is NVIDIA's own. The stand-in's tables are
opaque and it does not pretend to be what it isn't, so there the runtime stops with error 35. What programs do after
that point, the other tests of the stand-in do with the same driver calls.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.tools import ROOT, run, tool

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


@pytest.fixture(scope="session", params=sorted(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """(version, directory with the shared and the static library)."""
    target = ROOT / "build" / "cuda-runtime" / request.param
    if not target.exists():
        got = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, RUNTIMES[request.param]],
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        if got.returncode != 0:
            pytest.skip(
                f"the package index did not give {RUNTIMES[request.param]}: {got.stderr.strip()[-200:]}"
            )
    return request.param, next(target.rglob("libcudart_static.a")).parent


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_cuda_runtime_starts_and_stops_where_it_asks_for_more_than_a_documented_driver(
    runtime: tuple[str, Path], kind: str, tmp_path: Path
) -> None:
    version, libraries = runtime
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(CLIENT)
    library = libraries / "libcudart_static.a" if kind == "static" else next(libraries.glob("libcudart.so.*"))
    run(tool("cc"), source, "-o", program, library, f"-Wl,-rpath,{libraries}", "-ldl", "-lpthread", "-lrt")
    env = standin.environment(tmp_path, version)
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=False, timeout=60)
    major, minor = version.split(".")
    number = int(major) * 1000 + int(minor) * 10
    assert done.stdout == f"0 {number} 0 {number}\n35\n", done.stderr


def test_the_cuda_runtime_finds_no_card_where_none_is_visible(
    runtime: tuple[str, Path], tmp_path: Path
) -> None:
    version, libraries = runtime
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(CLIENT)
    shared = next(libraries.glob("libcudart.so.*"))
    run(tool("cc"), source, "-o", program, shared, f"-Wl,-rpath,{libraries}")
    env = {**standin.environment(tmp_path, version), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[1] == "100"
