"""``make release``: wheels, sdist, image, chart, checksums, bill of materials and notes under
build/release.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tools.release import ROOT
from tools.release.notes import notes
from tools.release.sbom import bill
from tools.release.source import RUNBOOKS, commit, commit_time, current_tag, export, version_of


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make release", description="Build everything that a user installs."
    )
    parser.add_argument("--tag", default="", help="For a trial: v1.2.3rc1. Default: the tag of this commit.")
    parser.add_argument("--url", default="", help="Where the files are published: https://host/path.")
    options = parser.parse_args()
    version = version_of(options.tag or current_tag())
    place = ROOT / "build" / "release" / version
    shutil.rmtree(place, ignore_errors=True)
    source = place.with_name(f"{version}.source")
    export(version, source, options.url)
    place.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time(), "REVISION": commit()}
    build = image_module(source)
    _python_packages(source, place, environment)
    for machine, name in build.ARCHITECTURES.items():
        _wheel(source, place, {**build.compiling(machine), **environment})
        _image(source, place / f"gpu-manager-{version}-{name}.oci.tar", machine, environment)
    _chart(source, place)
    _plugin(source, place, version, options.url)
    created = dt.datetime.fromtimestamp(int(commit_time()), dt.UTC).isoformat()
    lock = (source / "locks/image.lock").read_text("utf-8")
    (place / f"gpu-manager-{version}.cdx.json").write_text(
        bill(version, lock, build.PACKAGES, build.SUITE, created), "utf-8"
    )
    (place / "NOTES.md").write_text(notes((source / "CHANGELOG.md").read_text("utf-8"), version), "utf-8")
    shutil.copy(source / RUNBOOKS, place)
    _checksums(place)
    shutil.rmtree(source)
    for path in sorted(place.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size >> 10:,} KiB")


def _python_packages(source: Path, place: Path, environment: Mapping[str, str]) -> None:
    """The sdist, and the sandbox's wheel, which fits every machine."""
    _wheel(source / "sandbox", place, environment)
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(place)!r})"
    _run(sys.executable, "-c", code, at=source, environment=environment)


def _wheel(source: Path, place: Path, environment: Mapping[str, str]) -> None:
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps")
    _run(*pip, f"--wheel-dir={place}", str(source), at=source, environment=environment)


def _image(source: Path, output: Path, machine: str, environment: Mapping[str, str]) -> None:
    # The stages that do not depend on the version are kept between builds.
    options = (f"--machine={machine}", f"--output={output}", f"--work={ROOT / 'build/image'}")
    _run(sys.executable, "deploy/image/build.py", *options, at=source, environment=environment)


def image_module(source: Path) -> ModuleType:
    """The program ``deploy/image/build.py`` of these sources, which is in no package."""
    spec = importlib.util.spec_from_file_location("image_build", source / "deploy/image/build.py")
    if spec is None or spec.loader is None:
        sys.exit("deploy/image/build.py is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _chart(source: Path, place: Path) -> None:
    helm = str(ROOT / "build/tools/helm")
    _run(helm, "package", str(source / "deploy/helm/gpu-manager"), "--destination", str(place), at=source)


def _plugin(source: Path, place: Path, version: str, url: str) -> None:
    """In a Python without site: this one's would import the working tree instead of the commit."""
    path = os.pathsep.join((str(source), sysconfig.get_path("purelib")))
    made = (sys.executable, "-S", "-m", "tools.release.plugin", version, commit_time(), str(place), url)
    _run(*made, at=source, environment={**os.environ, "PYTHONPATH": path})


def _checksums(place: Path) -> None:
    rows = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(place.iterdir())
    ]
    (place / "SHA256SUMS").write_text("".join(rows), "utf-8")


def _run(*command: str, at: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a program; its failure ends this one."""
    code = subprocess.run(command, cwd=at, env=environment, check=False).returncode
    if code:
        sys.exit(f"{command[0]} failed with {code}: {' '.join(command)}")


if __name__ == "__main__":
    main()
