"""An OCI bundle for runc: this machine's programs under an /etc of their own, and the edits of a CDI spec.

It needs runc alone, without a cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files import cdi
from gpu_manager.domain.injection import Injection

RUNC: Final = shutil.which("runc") or "runc"  # make cluster CMD=packages installs it
_TREES: Final = [tree for tree in ("usr", "lib", "lib64", "bin", "sbin") if Path("/", tree).exists()]


def make(place: Path) -> None:
    """The root file system, whose cache of libraries lists nothing."""
    root = place / "rootfs"
    for name in (*_TREES, "etc", "proc", "dev", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copytree("/etc/ld.so.conf.d", root / "etc/ld.so.conf.d")
    shutil.copyfile("/etc/ld.so.conf", root / "etc/ld.so.conf")
    (root / "etc/ld.so.cache").touch()


def config(place: Path, args: Sequence[str]) -> dict[str, Any]:
    """``runc spec`` with these arguments and the machine's programs; :func:`write` puts it down."""
    (place / "config.json").unlink(missing_ok=True)
    subprocess.run([RUNC, "spec"], cwd=place, check=True)
    found: dict[str, Any] = json.loads((place / "config.json").read_text("utf-8"))
    found["process"] |= {"terminal": False, "args": list(args)}
    found["root"] = {"path": "rootfs", "readonly": False}
    found["mounts"] += [bind(f"/{tree}", f"/{tree}", ["rbind", "ro"]) for tree in _TREES]
    return found


def bind(path: str, source: str, options: Sequence[str]) -> dict[str, Any]:
    """A bind mount of the OCI specification."""
    return {"destination": path, "source": source, "type": "bind", "options": list(options)}


def edits(injection: Injection) -> Mapping[str, Any]:
    """Of the container, as the agent's CDI spec says them."""
    (device,) = json.loads(cdi.encode("0" * 32, injection))["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found


def device(node: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A device node of a spec as runtimes write it for runc (CDI, "OCI Edits"): the node, and its permission."""
    number = Path(node["hostPath"]).stat().st_rdev
    named = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
    return {"path": node["path"], **named}, {"allow": True, **named, "access": node["permissions"]}


def write(place: Path, spec: Mapping[str, Any]) -> None:
    """Put the container's specification into the bundle."""
    (place / "config.json").write_text(json.dumps(spec), encoding="utf-8")
