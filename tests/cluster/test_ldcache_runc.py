"""The hook that refreshes ldconfig's cache, as runc runs it: in the container, as its user, before its program.

It needs runc alone, without a cluster.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.cdi import HOOK_PATH
from gpu_manager.domain.injection import Injection, Mount, RuntimeHook
from tests.cluster import bundle
from tests.native.tools import build_tests

LISTED = "listed=$(/sbin/ldconfig -p 2>/dev/null | grep -c libc.so.6); echo started, $listed listed"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A bundle."""
    bundle.make(tmp_path)
    return tmp_path


def started(place: Path, *, user: int = 0, readonly: bool = False, hook: bool = True) -> str:
    """What the container's program says."""
    program = build_tests("vcuda-ldcache") / "vcuda-ldcache"
    edits = bundle.edits(
        Injection(mounts=(Mount(HOOK_PATH, str(program)),), hooks=(RuntimeHook("startContainer", HOOK_PATH),))
    )
    config = bundle.config(place, ["/bin/sh", "-c", LISTED])
    config["process"]["user"] = {"uid": user, "gid": 0}
    config["root"]["readonly"] = readonly
    (mount,) = edits["mounts"]
    # /usr is this machine's own and read-only here: the program lies where a directory can be made for it.
    at = "/opt/ldcache"
    config["mounts"].append(bundle.bind(at, mount["hostPath"], mount["options"]))
    if hook:
        config["hooks"] = {one["hookName"]: [{"path": at, "args": [at]}] for one in edits["hooks"]}
    bundle.write(place, config)
    done = subprocess.run(
        [bundle.RUNC, "--root", place / "state", "run", f"t{secrets.token_hex(4)}"], cwd=place, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_cache_lists_libraries_once_the_hook_has_run(place: Path) -> None:
    assert started(place, hook=False) == "started, 0 listed"
    assert started(place) == "started, 1 listed"


def test_a_container_with_a_read_only_root_starts(place: Path) -> None:
    assert started(place, readonly=True) == "started, 0 listed"


def test_a_container_of_an_ordinary_user_starts(place: Path) -> None:
    assert started(place, user=1000) == "started, 0 listed"
