"""A container without a runtime: mounts of its own, the libraries at their own paths behind /etc/ld.so.preload."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Everything happens on mounts that only this shell sees.
SETUP = """
set -e
mount --make-rprivate /
mkdir "$ROOT/scratch"
mount -t tmpfs none "$ROOT/scratch"
mkdir "$ROOT/scratch/upper" "$ROOT/scratch/work"
mount -t overlay none -o "lowerdir=/etc,upperdir=$ROOT/scratch/upper,workdir=$ROOT/scratch/work" /etc
mount -t tmpfs none /usr/local
mkdir -p /usr/local/vcuda/real /etc/vcuda
cp "$NATIVE/libvcuda.so" "$NATIVE/libvcuda-ml.so" /usr/local/vcuda/
cp "$ROOT/usr/local/vcuda/real/libcuda.so.1" /usr/local/vcuda/real/
touch /etc/vcuda/usage
mount --bind "$ROOT/etc/vcuda/usage" /etc/vcuda/usage
touch /etc/vcuda/limits
mount --bind "$ROOT/etc/vcuda/limits" /etc/vcuda/limits
mount -o remount,bind,ro /etc/vcuda/limits
"""

PROBE = """
d=/mnt && mount --make-rprivate / && mount -t tmpfs none $d && mkdir $d/u $d/w &&
mount -t overlay none -o lowerdir=/etc,upperdir=$d/u,workdir=$d/w /etc
"""

CLIENT = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
    printf("%d\n", init ? init(0) : -1);
    fflush(stdout);
    if (argc > 2)
        getchar();
    return 0;
}
"""

PRELOAD = "echo /usr/local/vcuda/libvcuda.so > /etc/ld.so.preload\n"
"""The door that every program of the container goes through."""


def needs_mounts() -> None:
    """Skip the test where no mounts of its own can be made."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("needs root and unshare to make mounts of its own")
    if subprocess.run([unshare, "-m", "sh", "-c", PROBE], capture_output=True, check=False).returncode:
        pytest.skip("may not make overlay mounts here")


def inside(script: str, native: Path, root: Path, client: Path, *options: str) -> list[str]:
    """The lines that a shell in a container says."""
    done = subprocess.run(
        ["unshare", "-m", *options, "sh", "-c", SETUP + script], capture_output=True, text=True, check=False,
        timeout=60, env={"PATH": os.environ["PATH"], "ROOT": str(root), "NATIVE": str(native), "CLIENT": str(client),
                         "REAL": "/usr/local/vcuda/real/libcuda.so.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()
