"""``kubectl-vcuda`` as one file: a zip archive that Python runs, with all that its commands import and
nothing compiled.

It holds the modules that the commands reach, PyYAML without its C part, with its licence, and the bytecode
for the Python that built it; another Python compiles the sources at each start.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import marshal
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grimp

from gpu_manager.cli.kubectl.main import COMMANDS
from gpu_manager.cli.program import ROOM
from tools.release import ROOT
from tools.release.source import chart_version

NAME: Final = "kubectl-vcuda"
_FIRST: Final = "gpu_manager.cli.kubectl.main"
_MAIN: Final = """\
import os
import sys

if sys.version_info < (3, 11):
    from shutil import which

    for name in ("python3.14", "python3.13", "python3.12", "python3.11"):
        if which(name):
            os.execv(which(name), [name] + sys.argv)
    sys.exit(
        "kubectl vcuda needs Python 3.11 or newer; python3 is " + sys.version.split()[0] + ", and there is "
        "no python3.11 or newer on PATH: install one beside it (dnf install python3.11, "
        "apt install python3.11, brew install python)"
    )

from gpu_manager.cli.kubectl.main import complete, main

# kubectl asks a program of this name for completions: make it a link to this file.
complete() if os.path.basename(sys.argv[0]).startswith("kubectl_complete") else main()
"""
_METADATA: Final = "Metadata-Version: 2.1\nName: gpu-manager\nVersion: {version}\nLicense: Apache-2.0\n"
_KREW: Final = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: vcuda
spec:
  version: v{semver}
{homepage}  shortDescription: Show who holds which part of a GPU and why
  description: |
    Shows the fractions of NVIDIA cards that gpu-manager has given to containers, what they use of them,
    why a pod waits or fails, what it would take to place it, quotas and costs.
  caveats: |
    It needs Python 3.11 or newer, as python3 or as python3.11 and so on.
  platforms:
  - selector:
      matchExpressions:
      - {{key: os, operator: In, values: [linux, darwin]}}
    uri: {uri}
    sha256: {sha256}
    bin: {name}
    files:
    - {{from: {name}, to: .}}
    - {{from: LICENSE, to: .}}
"""


def modules(root: Path) -> Iterator[str]:
    """Paths below ``root`` of the modules that a command may import, and of the packages around them."""
    graph = grimp.build_graph("gpu_manager")
    roots = {_FIRST, *(ROOM + place.partition(":")[0] for place, _ in COMMANDS.values())}
    names = roots.union(*(graph.find_upstream_modules(name) for name in roots))
    names |= {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    for name in sorted(names):
        path = Path(*name.split("."))
        yield (path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py")).as_posix()


def plugin(root: Path, version: str, dated: int) -> bytes:
    """The program of the sources under ``root``; the same sources, Python and date give the same bytes."""
    files = {name: (root / name).read_bytes() for name in modules(root)}
    for file in importlib.metadata.files("PyYAML") or ():
        if file.suffix == ".py" or "licenses" in file.parts or file.name in ("LICENSE", "METADATA"):
            files[file.as_posix()] = file.read_binary()
    files["__main__.py"] = _MAIN.encode()
    files[f"gpu_manager-{version}.dist-info/METADATA"] = _METADATA.format(version=version).encode()
    files["LICENSE"] = (root / "LICENSE").read_bytes()
    files |= {f"{name}c": _bytecode(name, text) for name, text in files.items() if name.endswith(".py")}
    made = io.BytesIO()
    made.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(dated)[:6]), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _bytecode(name: str, text: bytes) -> bytes:
    """As importlib reads it, not checked against the source: both lie in one archive. Version 2 of marshal
    knows no references, whose use depends on what else the process holds.
    """
    unchecked = (1).to_bytes(4, "little")
    code = compile(text, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + unchecked + bytes(8) + marshal.dumps(code, 2)


def krew(program: bytes, licence: bytes, version: str, url: str, dated: int) -> Mapping[str, bytes]:
    """The archive that krew installs and its manifest, by file name.

    Args:
        program: what :func:`plugin` made.
        licence: the text of the licence; krew requires one beside the program.
        version: of the release.
        url: where the release's files are published; empty: krew is told the archive with ``--archive``.
        dated: seconds since 1970.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data, mode in ((NAME, program, 0o755), ("LICENSE", licence, 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, dated
            archive.addfile(entry, io.BytesIO(data))
    name = f"{NAME}-{version}.tar.gz"
    data = gzip.compress(packed.getvalue(), mtime=dated)
    manifest = _KREW.format(
        semver=chart_version(version),
        homepage=f"  homepage: {url}\n" if url else "",
        uri=f"{url}/{name}" if url else name,
        sha256=hashlib.sha256(data).hexdigest(),
        name=NAME,
    )
    return {name: data, "vcuda.yaml": manifest.encode()}


def main(version: str, dated: str, place: str, url: str = "") -> None:
    """Write the program, krew's archive and its manifest of the tree that this file lies in."""
    program = plugin(ROOT, version, int(dated))
    made = krew(program, (ROOT / "LICENSE").read_bytes(), version, url, int(dated))
    for name, data in {NAME: program, **made}.items():
        Path(place, name).write_bytes(data)
    Path(place, NAME).chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
