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
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tools.release import ROOT
from tools.release.notes import notes
from tools.release.plugin import NAME, krew, plugin
from tools.release.sbom import bill
from tools.release.source import commit, commit_time, current_tag, export, version_of


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
    _python_packages(source, place, environment)
    _image(source, place, version, environment)
    _chart(source, place)
    _plugin(source, place, version, options.url)
    build = _image_module(source)
    created = dt.datetime.fromtimestamp(int(commit_time()), dt.UTC).isoformat()
    lock = (source / "deploy/image/requirements.lock").read_text("utf-8")
    (place / f"gpu-manager-{version}.cdx.json").write_text(
        bill(version, lock, build.PACKAGES, build.SUITE, created), "utf-8"
    )
    (place / "NOTES.md").write_text(notes((source / "CHANGELOG.md").read_text("utf-8"), version), "utf-8")
    _checksums(place)
    shutil.rmtree(source)
    for path in sorted(place.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size >> 10:,} KiB")


def _python_packages(source: Path, place: Path, environment: Mapping[str, str]) -> None:
    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps")
    _run(
        *wheel,
        f"--wheel-dir={place}",
        str(source),
        str(source / "sandbox"),
        at=source,
        environment=environment,
    )
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(place)!r})"
    _run(sys.executable, "-c", code, at=source, environment=environment)


def _image(source: Path, place: Path, version: str, environment: Mapping[str, str]) -> None:
    machine = os.uname().machine
    output = source / "build/image/gpu-manager.tar"
    # The stages that do not depend on the version are kept between builds.
    kept = ROOT / "build" / "image"
    for stage in ("debian", "dependencies"):
        if (kept / stage).is_dir():
            (source / "build/image").mkdir(parents=True, exist_ok=True)
            shutil.copytree(kept / stage, source / "build/image" / stage, symlinks=True)
            for stamp in (f"{stage}.packages", f"{stage}.lock"):
                if (kept / stamp).exists():
                    shutil.copy(kept / stamp, source / "build/image" / stamp)
    _run(sys.executable, "deploy/image/build.py", f"--output={output}", at=source, environment=environment)
    name = _image_module(source).ARCHITECTURES[machine]
    shutil.move(output, place / f"gpu-manager-{version}-{name}.oci.tar")


def _image_module(source: Path) -> ModuleType:
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
    program = plugin(source, version, int(commit_time()))
    (place / NAME).write_bytes(program)
    (place / NAME).chmod(0o755)
    licence = (source / "LICENSE").read_bytes()
    for name, data in krew(program, licence, version, url, int(commit_time())).items():
        (place / name).write_bytes(data)


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
