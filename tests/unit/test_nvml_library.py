"""The agent finds the node's NVML through the mount of the node's root."""

from __future__ import annotations

import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.driver import find_nvml, multiarch
from gpu_manager.adapters.driver_files.host import HostFiles

NAME = "libnvidia-ml.so.1"


@pytest.fixture(scope="module")
def library() -> Path:
    """Any shared object of this machine."""
    spec = find_spec("_ctypes")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def put(root: Path, library: Path, place: str) -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, path)
    return path


@pytest.mark.parametrize("place", [f"usr/lib/{multiarch()}", "usr/lib64"])
def test_it_lies_where_distributions_put_it(tmp_path: Path, library: Path, place: str) -> None:
    real = put(tmp_path, library, f"{place}/{NAME}")
    assert find_nvml(HostFiles(tmp_path)) == real


def test_links_lead_within_the_node_not_into_the_agents_image(tmp_path: Path, library: Path) -> None:
    real = put(tmp_path, library, "opt/driver/libnvidia-ml.so.570.1")
    link = tmp_path / "usr/lib64" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/driver/libnvidia-ml.so.570.1")
    assert find_nvml(HostFiles(tmp_path)) == real


def test_a_drivers_own_root_is_looked_at_first(tmp_path: Path, library: Path) -> None:
    put(tmp_path, library, f"usr/lib64/{NAME}")
    driver = put(tmp_path, library, f"run/nvidia/driver/usr/lib64/{NAME}")
    assert find_nvml(HostFiles(tmp_path), "/run/nvidia/driver") == driver


def test_what_is_no_library_of_this_machine_is_none(tmp_path: Path, library: Path) -> None:
    assert find_nvml(HostFiles(tmp_path)) is None
    broken = put(tmp_path, library, f"usr/lib64/{NAME}")
    content = bytearray(broken.read_bytes())
    content[18] ^= 0xFF  # e_machine
    broken.write_bytes(content)
    assert find_nvml(HostFiles(tmp_path)) is None


def test_on_the_node_itself_the_loader_searches() -> None:
    assert platform.system() == "Linux"
    assert find_nvml(HostFiles()) is None
