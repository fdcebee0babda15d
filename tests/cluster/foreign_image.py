"""An image for another architecture, run under an emulator: its programs answer and all of its modules load.

``python -m tests.cluster foreign ARCHIVE`` unpacks the image into a directory and starts its programs there by
chroot (root), with QEMU's user emulator. No container runtime, no cluster.
"""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster.parts import ROOT

PATH: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
EMULATORS: Final = {"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}
MANIFEST: Final = ROOT / "docs/examples/nginx.yaml"
LOAD_ALL: Final = """
import importlib, pkgutil
names = [
    found.name
    for package in ("gpu_manager", "admission", "vcuda")
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    if not found.name.endswith("__main__")
]
for name in names:
    importlib.import_module(name)
print(len(names), "modules load,", __import__("platform").machine())
"""


def main(archive: Path) -> int:
    """Each step is told as it is done; exit code 1 if one fails or cannot be tried here."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        architecture = unpack(archive, root)
        emulator = shutil.which(EMULATORS[architecture])
        if emulator is None:
            return _end(f"{EMULATORS[architecture]} is needed (Debian: apt-get install qemu-user-static)")
        shutil.copy(emulator, root / "emulator")
        shutil.copy(MANIFEST, root / "pod.yaml")
        for words in (
            ("/usr/local/bin/gpu-manager", "version"),
            ("/usr/local/bin/gpu-manager", "check", "/pod.yaml"),
            ("/usr/local/bin/gpu-manager", "run", "--help"),
            ("/usr/local/bin/gpu-quota-admission", "--help"),
            ("/usr/local/bin/kubectl-vcuda", "version"),
            ("-c", LOAD_ALL),
        ):
            command = ("chroot", str(root), "/emulator", "/usr/bin/python3.11", "-I", *words)
            done = subprocess.run(command, env=PATH, capture_output=True, text=True, check=False)
            shown = " ".join(words) if words[0] != "-c" else "every module"
            if done.returncode:
                return _end(f"{shown} ended with {done.returncode}: {done.stderr or done.stdout}")
            sys.stdout.write(f"{shown}: {done.stdout.rstrip().splitlines()[-1]}\n")
    sys.stdout.write(
        f"the image for {architecture} runs on {platform.machine()} under {Path(emulator).name}\n"
    )
    return 0


def unpack(archive: Path, root: Path) -> str:
    """Extract the layers of an OCI archive, and return the architecture that its configuration names."""
    with tarfile.open(archive) as tar:
        [entry] = json.loads(_read(tar, "index.json"))["manifests"]
        manifest = json.loads(_read(tar, _blob(entry)))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(_read(tar, _blob(layer)))) as files:
                files.extractall(root, filter="tar")
        return str(json.loads(_read(tar, _blob(manifest["config"])))["architecture"])


def _blob(descriptor: Mapping[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    found = tar.extractfile(name)
    assert found is not None, name
    return found.read()


def _end(why: str) -> int:
    sys.stdout.write(f"failed: {why}\n")
    return 1
