"""The C module that Triton compiles before its first kernel, built and run in a container as it is delivered.

Run by ``make triton-check``, which gets Triton's wheel (300 MB); the wheel is named by ``TRITON_WHEEL``.
Triton links it with ``-l:libcuda.so.1`` and the directory of ``TRITON_LIBCUDA_PATH``, before 3.5 with ``-lcuda``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.cdi import driver_mounts
from gpu_manager.adapters.driver_files.driver import CUDA, Driver
from tests.native.driven import MIB, Container, interposers
from tests.native.tools import run, tool

LIMIT = 1024 * MIB
BACKEND = "triton/backends/nvidia"
# What Triton asks on its way to the first launch; the primary context is PyTorch's.
PROGRAM = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
answers = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
answers.append(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
import cuda_utils
properties = cuda_utils.get_device_properties(0)
print(json.dumps({"answers": answers, "total": total.value, "properties": properties,
                  "device": cuda_utils.get_current_device()}))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's source and the headers that come with it."""
    directory = tmp_path_factory.mktemp("triton")
    with zipfile.ZipFile(os.environ["TRITON_WHEEL"]) as wheel:
        wanted = (f"{BACKEND}/driver.c", f"{BACKEND}/include/")
        wheel.extractall(directory, [name for name in wheel.namelist() if name.startswith(wanted)])
    return directory / BACKEND


@pytest.fixture
def delivered(tmp_path: Path) -> Path:
    """A directory with the names under which a fraction's container has the library."""
    directory = tmp_path / "delivered"
    directory.mkdir()
    front = interposers("") / CUDA
    driver = Driver({CUDA: str(front)}, "615.36.01")
    for mount in driver_mounts(driver, None, graphics=False):
        shutil.copy(mount.host_path, directory / Path(mount.container_path).name)
    return directory


@pytest.mark.parametrize("flag", ["-l:libcuda.so.1", "-lcuda"])
def test_the_module_that_triton_compiles_links_against_the_library_and_sees_the_share(
    flag: str, tmp_path: Path, source: Path, delivered: Path
) -> None:
    module = tmp_path / f"cuda_utils{sysconfig.get_config_var('EXT_SUFFIX')}"
    headers = (f"-I{source / 'include'}", f"-I{sysconfig.get_paths()['include']}")
    run(tool("gcc"), source / "driver.c", "-O1", "-shared", "-fPIC", "-Wno-psabi", "-o", module, flag,
        f"-L{delivered}", *headers)  # fmt: skip
    with Container(tmp_path, LIMIT) as container:
        env = {**container.env(), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    assert found["answers"] == [0, 0, 0, 0]
    assert found["total"] == LIMIT
    assert found["device"] == 0
    assert found["properties"]["warpSize"] == 32
    assert found["properties"]["multiprocessor_count"] > 0
