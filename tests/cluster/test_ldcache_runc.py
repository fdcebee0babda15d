"""The hook that refreshes ldconfig's cache, as runc runs it: in the container, as its user, before its program.

It needs runc alone, without a cluster.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.driver_files import cdi
from gpu_manager.adapters.driver_files.content import HOOK_PATH
from gpu_manager.domain.injection import Injection, Mount, RuntimeHook
from tests.native.tools import build_tests

RUNC = shutil.which("runc") or "runc"  # make cluster-packages installs it
LISTED = "listed=$(/sbin/ldconfig -p 2>/dev/null | grep -c libc.so.6); echo started, $listed listed"
TREES = [tree for tree in ("usr", "lib", "lib64", "bin", "sbin") if Path("/", tree).exists()]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """This machine's programs under an /etc of its own, whose cache lists nothing."""
    root = tmp_path / "rootfs"
    for name in (*TREES, "etc", "proc", "dev", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copytree("/etc/ld.so.conf.d", root / "etc/ld.so.conf.d")
    shutil.copyfile("/etc/ld.so.conf", root / "etc/ld.so.conf")
    (root / "etc/ld.so.cache").touch()
    return tmp_path


def edits() -> dict[str, Any]:
    """Of the container, as the agent's CDI spec says them."""
    program = build_tests("vcuda-ldcache") / "vcuda-ldcache"
    given = Injection(
        mounts=(Mount(HOOK_PATH, str(program)),), hooks=(RuntimeHook("startContainer", HOOK_PATH),)
    )
    (device,) = json.loads(cdi.encode("0" * 32, given))["devices"]
    return dict(device["containerEdits"])


def started(bundle: Path, *, user: int = 0, readonly: bool = False, hook: bool = True) -> str:
    """What the container's program says."""
    (bundle / "config.json").unlink(missing_ok=True)
    subprocess.run([RUNC, "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {
        "terminal": False,
        "args": ["/bin/sh", "-c", LISTED],
        "user": {"uid": user, "gid": 0},
    }
    config["root"] = {"path": "rootfs", "readonly": readonly}
    added = edits()
    config["mounts"] += [
        {"destination": f"/{tree}", "source": f"/{tree}", "type": "bind", "options": ["rbind", "ro"]}
        for tree in TREES
    ]
    (mount,) = added["mounts"]
    # /usr is this machine's own and read-only here: the program lies where a directory can be made for it.
    place = "/opt/ldcache"
    config["mounts"].append(
        {"destination": place, "source": mount["hostPath"], "type": "bind", "options": mount["options"]}
    )
    if hook:
        config["hooks"] = {h["hookName"]: [{"path": place, "args": [place]}] for h in added["hooks"]}
    (bundle / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [RUNC, "--root", bundle / "state", "run", f"t{secrets.token_hex(4)}"], cwd=bundle, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_cache_lists_libraries_once_the_hook_has_run(bundle: Path) -> None:
    assert started(bundle, hook=False) == "started, 0 listed"
    assert started(bundle) == "started, 1 listed"


def test_a_container_with_a_read_only_root_starts(bundle: Path) -> None:
    assert started(bundle, readonly=True) == "started, 0 listed"


def test_a_container_of_an_ordinary_user_starts(bundle: Path) -> None:
    assert started(bundle, user=1000) == "started, 0 listed"
