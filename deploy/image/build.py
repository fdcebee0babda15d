"""Build the image of agent and admission from Debian's packages and locked wheels: no registry, no Docker.

Three layers, the seldom changed first: Python as Debian ships it, the locked dependencies, the project. The
archive is an OCI layout that ``docker load`` reads too. The same sources give the same layers: entries are
sorted, owned by root and dated by ``SOURCE_DATE_EPOCH`` or the commit.

An image for another architecture needs its cross compiler and nothing else: packages and wheels are
extracted, and none of their programs runs.
"""

from __future__ import annotations

import argparse
import compileall
import datetime as dt
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from archive import Image, pack, write_archive

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "locks/image.lock"
SUITE: Final = "bookworm"  # whose python3 is 3.11
PACKAGES: Final = ("base-files", "base-passwd", "libc6", "libstdc++6", "python3.11")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # the machine's word → Debian's and OCI's
GLIBCS: Final = (17, 24, 26, 27, 28, 31, 34, 35, 36)  # of wheels that run on SUITE
SITE: Final = "usr/local/lib/python3.11/dist-packages"
NOBODY: Final = 65532
TELL_SECONDS: Final = 10.0  # of silence, after which a line says what still runs
PRUNED: Final = (  # what no service reads
    *(
        f"usr/share/{name}"
        for name in ("doc", "man", "info", "locale", "lintian", "perl5", "bash-completion")
    ),
    *(f"usr/lib/python3.11/{name}" for name in ("test", "idlelib", "lib2to3", "tkinter", "ensurepip")),
    *("usr/lib/*/perl*", "usr/lib/*/gconv", "usr/bin/perl*", "var/lib/apt", "var/cache", "var/log"),
    *("usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/turtle.py", "dev", "usr/lib/apt"),
)
# kubernetes.aio is a second client, as large as the first.
PRUNED_WHEELS: Final = ("numpy/**/tests", "numpy/f2py", "bin", "*/_pyinstaller", "kubernetes/aio")
SCRIPT: Final = "#!/usr/bin/python3.11 -I\nfrom {module} import {function}\n\n{function}()\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="deploy/image/build.py", description="Build the image.")
    parser.add_argument("--output", type=Path, default=ROOT / "build/image/gpu-manager.tar")
    parser.add_argument("--work", type=Path, default=ROOT / "build/image", help="Where stages are kept.")
    parser.add_argument("--machine", default=platform.machine(), choices=ARCHITECTURES)
    options = parser.parse_args()
    output: Path = options.output
    machine: str = options.machine
    if shutil.which("mmdebstrap") is None:
        sys.exit("mmdebstrap is needed (Debian: apt-get install mmdebstrap)")
    work = options.work / ARCHITECTURES[machine]
    work.mkdir(parents=True, exist_ok=True)
    dated = commit_time()
    image = describe(machine, dated)
    for what, stage in (
        ("Python and what it needs, of Debian's packages", debian),
        ("locked wheels", dependencies),
        ("this project", project),
    ):
        print(f"{what} ...", flush=True)
        image.layers.append(pack(stage(work, machine), dated))
    write_archive(image, output, dated)
    print(f"{output}: {image.tag}, {output.stat().st_size >> 20} MiB")


def describe(machine: str, dated: int) -> Image:
    """The image's name and configuration, without layers yet."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    created = dt.datetime.fromtimestamp(dated, dt.UTC).isoformat()
    label = "org.opencontainers.image"
    return Image(
        tag=f"gpu-manager:{version}",
        architecture=ARCHITECTURES[machine],
        created=created,
        config={
            "User": f"{NOBODY}:{NOBODY}",  # the agent's pod says 0: the kubelet's sockets are root's
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1"],
            "Cmd": ["gpu-manager", "run"],
            "Labels": {
                f"{label}.title": "gpu-manager",
                f"{label}.description": "Share NVIDIA cards between Kubernetes pods",
                f"{label}.version": version,
                f"{label}.revision": revision(),
                f"{label}.created": created,
                f"{label}.licenses": "Apache-2.0",
                f"{label}.base.name": f"debian:{SUITE}",
            },
        },
    )


def debian(work: Path, machine: str) -> Path:
    """Python and what it needs, extracted from the packages: no package's script runs, none is left."""
    target, stamp = work / "debian", work / "debian.packages"
    wanted = "\n".join((SUITE, *PACKAGES, *PRUNED))
    if target.is_dir() and stamp.exists() and stamp.read_text("utf-8") == wanted:
        return target
    shutil.rmtree(target, ignore_errors=True)
    tar = work / "debian.tar"
    hook = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    options = ["--quiet", "--variant=extract", "--skip=check/qemu", hook]
    options.append(f"--architectures={ARCHITECTURES[machine]}")
    run("mmdebstrap", *options, f"--include={','.join(PACKAGES)}", SUITE, str(tar))
    target.mkdir()
    run("tar", "-C", str(target), "--exclude=./dev/*", "--no-same-owner", "-xf", str(tar))
    tar.unlink()
    prune(target, PRUNED)
    for name in ("passwd", "group"):
        shutil.copy(target / f"usr/share/base-passwd/{name}.master", target / "etc" / name)
    with (target / "etc/passwd").open("a", encoding="utf-8") as users:
        users.write(f"nonroot:x:{NOBODY}:{NOBODY}::/nonexistent:/usr/sbin/nologin\n")
    (target / "usr/bin/python3").symlink_to("python3.11")
    compile_all(target / "usr/lib/python3.11", "/usr/lib/python3.11")
    stamp.write_text(wanted, "utf-8")
    return target


def dependencies(work: Path, machine: str) -> Path:
    """The wheels that the lock names, by hash."""
    target, stamp = work / "dependencies", work / "dependencies.lock"
    wanted = LOCK.read_text("utf-8") + "\n".join(PRUNED_WHEELS)
    if target.is_dir() and stamp.exists() and stamp.read_text("utf-8") == wanted:
        return target
    shutil.rmtree(target, ignore_errors=True)
    site = target / SITE
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBCS]
    version = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", *platforms]
    pip("install", "--require-hashes", "--no-deps", "--no-compile", *version, f"--target={site}", f"-r{LOCK}")
    prune(site, PRUNED_WHEELS)
    compile_all(site, f"/{SITE}")
    stamp.write_text(wanted, "utf-8")
    return target


def project(work: Path, machine: str) -> Path:
    """The project's wheel, and its programs."""
    target, wheels = work / "project", work / "wheel"
    for old in (target, wheels):
        shutil.rmtree(old, ignore_errors=True)
    wheel_of = ["wheel", "--no-build-isolation", "--no-deps", f"--wheel-dir={wheels}", str(ROOT)]
    pip(*wheel_of, environment=compiling(machine))
    site = target / SITE
    [wheel] = wheels.glob("*.whl")
    foreign = ["--only-binary=:all:", f"--platform=linux_{machine}"]
    pip("install", "--no-deps", "--no-compile", "--no-index", *foreign, f"--target={site}", str(wheel))
    prune(site, ("bin", "*.dist-info/direct_url.json"))
    compile_all(site, f"/{SITE}")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    programs = target / "usr/local/bin"
    programs.mkdir(parents=True)
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        (programs / name).write_text(SCRIPT.format(module=module, function=function), "utf-8")
        (programs / name).chmod(0o755)
    return target


def compiling(machine: str) -> dict[str, str]:
    """The environment in which a wheel for ``machine`` is built.

    Raises:
        SystemExit: it is not this machine, and its cross compiler is not installed.
    """
    if machine == platform.machine():
        return dict(os.environ)
    compiler = f"{machine}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        package = f"gcc-{machine.replace('_', '-')}-linux-gnu"
        sys.exit(f"{compiler} is needed to build for {machine} (Debian: apt-get install {package})")
    cmake = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": machine, "C_COMPILER": compiler}
    return {
        **os.environ,
        "CMAKE_ARGS": " ".join(f"-DCMAKE_{name}={value}" for name, value in cmake.items()),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",  # what sysconfig says, and so the wheel's name
    }


def compile_all(directory: Path, inside: str) -> None:
    """Byte code beside the sources: the image's file system is read-only where it runs."""
    compileall.compile_dir(
        directory,
        quiet=2,
        stripdir=str(directory),
        prependdir=inside,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def prune(directory: Path, patterns: Iterable[str]) -> None:
    """Remove what the patterns name."""
    for pattern in patterns:
        for path in list(directory.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def commit_time() -> int:
    """Seconds since 1970 that every file of the image is dated by."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or git("log", "-1", "--format=%ct") or 0)


def revision() -> str:
    """The commit, with a word where the tree differs from it; ``REVISION`` where the sources are a copy."""
    if given := os.environ.get("REVISION"):
        return given
    changed = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "HEAD") + changed


def git(*arguments: str) -> str:
    """What git says; empty outside a repository."""
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run this interpreter's pip."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, *arguments, environment=environment)


def run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a program; its failure ends this one, with its words on the terminal."""
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment) as running:
        while running.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                running.wait(TELL_SECONDS)
                break
            print(f"  {command[0].rpartition('/')[2]}: {time.monotonic() - began:.0f} s", flush=True)
    if code := running.returncode:
        sys.exit(f"{command[0]} failed with {code}: {' '.join(command)}")


if __name__ == "__main__":
    main()
