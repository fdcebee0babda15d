"""Triton and torch.compile find the driver in a container, and what refreshes ldconfig's cache never stops a start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.driver import multiarch
from tests.native import triton_lookup
from tests.native.contained import needs_mounts
from tests.native.tools import build_tests, run, tool

ARCH = f"/usr/lib/{multiarch()}"
# A container's own /etc and library directory, with the driver mounted as the agent delivers it.
SETUP = f"""
set -e
mount --make-rprivate /
mkdir -p "$ROOT/scratch"
mount -t tmpfs none "$ROOT/scratch"
mkdir "$ROOT/scratch/eu" "$ROOT/scratch/ew" "$ROOT/scratch/lu" "$ROOT/scratch/lw"
mount -t overlay none -o "lowerdir=/etc,upperdir=$ROOT/scratch/eu,workdir=$ROOT/scratch/ew" /etc
mount -t overlay none -o "lowerdir={ARCH},upperdir=$ROOT/scratch/lu,workdir=$ROOT/scratch/lw" {ARCH}
rm -f {ARCH}/libcuda.so*
ldconfig
touch {ARCH}/libcuda.so.1
mount --bind "$DRIVER" {ARCH}/libcuda.so.1
unset TRITON_LIBCUDA_PATH LD_LIBRARY_PATH
"""


@pytest.fixture(scope="module")
def hook() -> Path:
    return build_tests("vcuda-ldcache") / "vcuda-ldcache"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A library of the driver's name; nothing calls it."""
    source, target = tmp_path / "made_up.c", tmp_path / "libcuda.so.1"
    source.write_text("int made_up = 1;\n")
    run(tool("cc"), "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", source, "-o", target)
    return target


def contained(script: str, root: Path, hook: Path, driver: Path) -> list[str]:
    """The lines that a shell says in the container."""
    needs_mounts()
    asked = f'triton() {{ "{sys.executable}" "{triton_lookup.__file__}"; }}\n'
    keep = {name: os.environ[name] for name in ("PATH", "TRITON_WHEEL") if name in os.environ}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SETUP + asked + script], capture_output=True, text=True, check=False, timeout=60,
        env={**keep, "ROOT": str(root), "HOOK": str(hook), "DRIVER": str(driver)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_triton_stops_where_nothing_tells_it_of_the_driver(tmp_path: Path, hook: Path, driver: Path) -> None:
    """The driver is there and the loader finds it, but no cache lists it."""
    assert contained("triton", tmp_path, hook, driver) == ["not found"]


def test_triton_finds_the_driver_by_the_variable_that_is_delivered(
    tmp_path: Path, hook: Path, driver: Path
) -> None:
    script = f"export TRITON_LIBCUDA_PATH={ARCH}\ntriton"
    assert contained(script, tmp_path, hook, driver) == [ARCH]


def test_triton_finds_the_driver_by_the_cache_once_the_hook_has_run(
    tmp_path: Path, hook: Path, driver: Path
) -> None:
    """Also for a program that dropped its environment."""
    found = contained('"$HOOK"\ntriton', tmp_path, hook, driver)
    assert found in ([ARCH], [ARCH.removeprefix("/usr")]), "by either of the directory's names"


def test_the_hook_leaves_a_read_only_root_as_it_is(tmp_path: Path, hook: Path, driver: Path) -> None:
    script = """
before=$(stat -c %Y.%s /etc/ld.so.cache)
mount -o remount,ro /etc
"$HOOK" && echo ended well
test "$before" = "$(stat -c %Y.%s /etc/ld.so.cache)" && echo untouched
"""
    assert contained(script, tmp_path, hook, driver) == ["ended well", "untouched"]


def test_the_hook_ends_well_for_a_user_who_may_not_write(tmp_path: Path, hook: Path, driver: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed: there is nothing to become another user with")
    script = 'cp "$HOOK" /etc/hook\nsetpriv --reuid 65534 --regid 65534 --clear-groups /etc/hook && echo ended well'
    assert contained(script, tmp_path, hook, driver) == ["ended well"]


def test_the_hook_ends_well_in_an_image_with_nothing_in_it(tmp_path: Path, hook: Path, driver: Path) -> None:
    """Not even a loader: the program stands alone."""
    script = 'mkdir "$ROOT/scratch/empty"\ncp "$HOOK" "$ROOT/scratch/empty/hook"\nchroot "$ROOT/scratch/empty" /hook && echo ended well'
    assert contained(script, tmp_path, hook, driver) == ["ended well"]


def test_the_hook_ends_well_whatever_the_image_s_ldconfig_does(
    tmp_path: Path, hook: Path, driver: Path
) -> None:
    for number, text in enumerate(("#!/bin/sh\nexit 1\n", "no program", "#!/bin/sh\nexec sleep 600\n")):
        fake = tmp_path / f"ldconfig{number}"
        fake.write_text(text)
        fake.chmod(0o755)
        place = 'real=$(readlink -f /sbin/ldconfig)\nmount --bind "$FAKE" "$real"\n"$HOOK" && echo ended well'
        begin = time.monotonic()
        assert contained(place.replace("$FAKE", str(fake)), tmp_path, hook, driver) == ["ended well"]
        assert time.monotonic() - begin < 30, "five seconds at most are the hook's"
