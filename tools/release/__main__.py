"""``make release``: everything that users install and how they check it, under build/release."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from tools.release import ROOT, index
from tools.release.notes import head, must_be_ready, notes
from tools.release.provenance import statement
from tools.release.sbom import bill
from tools.release.signature import signer
from tools.release.source import (
    ICON,
    RUNBOOKS,
    Published,
    commit,
    commit_time,
    current_tag,
    export,
    is_trial,
    must_be_committed,
    version_of,
)

BESIDE: Final = (RUNBOOKS, ICON, Path("SECURITY.md"), Path("CHANGELOG.md"))
"""Files of the sources that lie beside what is built."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make release", description="Build everything that a user installs."
    )
    parser.add_argument("--tag", default="", help="For a trial: v1.2.3rc1. Default: the tag of this commit.")
    parser.add_argument("--url", default="", help="Where the files are published: https://host/path.")
    parser.add_argument("--image", default="", help="Where the image is published: registry/path/name.")
    parser.add_argument("--contact", default="", help="Who is told of a vulnerability; a release needs one.")
    parser.add_argument("--key", default="", help="Signs: an EC key, or cosign's; a release needs one.")
    options = parser.parse_args()
    version = version_of(options.tag or current_tag())
    # What a person has to give is asked for before minutes of work.
    signs = signer(options.key, version)
    if not options.contact and not is_trial(version):
        sys.exit("a release names whom to tell of a vulnerability: make release CONTACT=security@example.org")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not is_trial(version):
        must_be_committed()
        must_be_ready(changelog, version)
    head(changelog, version)
    published = Published(options.url.rstrip("/"), options.image, options.contact)
    place = ROOT / "build" / "release" / version
    shutil.rmtree(place, ignore_errors=True)
    source = place.with_name(f"{version}.source")
    revision, dated = commit(), commit_time()  # once: the checkout may move while this builds
    export(version, source, published, revision)
    place.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": dated, "REVISION": revision}
    build = image_module(source)
    _python_packages(source, place, environment)
    for machine in build.ARCHITECTURES:
        _wheel(source, place, {**build.compiling(machine), **environment})
    digest = _image(source, place / f"gpu-manager-{version}.oci.tar", build.ARCHITECTURES, environment)
    _chart(source, place)
    _plugin(source, place, version, dated, published.url)
    _documentation(source, place, version, environment)
    created = dt.datetime.fromtimestamp(int(dated), dt.UTC).isoformat()
    lock = (source / "locks/image.lock").read_text("utf-8")
    (place / f"gpu-manager-{version}.cdx.json").write_text(
        bill(version, lock, build.PACKAGES, build.SUITE, created), "utf-8"
    )
    for name in BESIDE:
        shutil.copy(source / name, place)
    (place / "NOTES.md").write_text(notes(changelog, version, digest, signs.mark), "utf-8")
    locks = _sums(*sorted((source / "locks").iterdir()))
    built = {**_sums(*place.iterdir()), "image index": digest.removeprefix("sha256:")}
    (place / f"gpu-manager-{version}.provenance.json").write_text(
        statement(built, version=version, commit=revision, locks=locks, url=published.url), "utf-8"
    )
    rows = (f"{value}  {name}\n" for name, value in sorted(_sums(*place.iterdir()).items()))
    (place / "SHA256SUMS").write_text("".join(rows), "utf-8")
    signs.sign(place)
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


def _image(
    source: Path, output: Path, architectures: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """One archive of the image for all architectures; returns the digest of its index."""
    parts = []
    for machine, name in architectures.items():
        parts.append(output.with_name(f"{name}.oci.tar"))
        # `--work` keeps build stages; those that do not contain the version are used again.
        options = (f"--machine={machine}", f"--output={parts[-1]}", f"--work={ROOT / 'build/image'}")
        _run(sys.executable, "deploy/image/build.py", *options, at=source, environment=environment)
    digest = index.join(parts, output, int(environment["SOURCE_DATE_EPOCH"]))
    for part in parts:
        part.unlink()
    return digest


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


def _plugin(source: Path, place: Path, version: str, dated: str, url: str) -> None:
    """In a Python without site: this one's would import the working tree instead of the commit."""
    path = os.pathsep.join((str(source), sysconfig.get_path("purelib")))
    made = (sys.executable, "-S", "-m", "tools.release.plugin", version, dated, str(place), url)
    _run(*made, at=source, environment={**os.environ, "PYTHONPATH": path})


def _documentation(source: Path, place: Path, version: str, environment: Mapping[str, str]) -> None:
    """The site, which names its version, as one archive that opens without a server's help."""
    site = source / "build/site"
    named = {**environment, "DOCS_NAME": f"gpu-manager {version}", "NO_MKDOCS_2_WARNING": "1"}
    _run(sys.executable, "-m", "mkdocs", "build", at=source, environment=named)
    with tarfile.open(place / f"gpu-manager-docs-{version}.tar.xz", "w:xz") as archive:
        for path in (site, *sorted(site.rglob("*"))):
            name = Path(f"gpu-manager-docs-{version}", path.relative_to(site))
            entry = archive.gettarinfo(path, arcname=str(name))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(environment["SOURCE_DATE_EPOCH"])
            with path.open("rb") if entry.isreg() else contextlib.nullcontext() as data:
                archive.addfile(entry, data)


def _sums(*paths: Path) -> dict[str, str]:
    """SHA-256 of files by their names."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _run(*command: str, at: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a program; its failure ends this one."""
    code = subprocess.run(command, cwd=at, env=environment, check=False).returncode
    if code:
        sys.exit(f"{command[0]} failed with {code}: {' '.join(command)}")


if __name__ == "__main__":
    main()
