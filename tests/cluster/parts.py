"""The foreign programs that a cluster is made of, and where each comes from.

Debian's packages, kubectl and helm from the package index, and what ``make cluster CMD=build`` builds of Go modules.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build/cluster"
PRODUCT: Final = ROOT / "build/image/gpu-manager.tar"
MODULE: Final = Path(__file__).resolve().parent / "kubernetes"
RUNTIME: Final = Path(__file__).resolve().parent / "containerd"
CONTAINERD: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
LINES: Final = (
    MODULE,
    MODULE / "newer",
    MODULE / "older",
)  # the one that is run unless another is named first
LINE: Final = "KUBERNETES"  # the variable of the environment that names one of them, as 1.33
KUBERNETES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
# Program → Debian's package.
DEBIAN: Final = {
    "etcd": "etcd-server",
    "runc": "runc",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "nft": "nftables",
}
CNI: Final = Path("/usr/lib/cni")


class MissingError(RuntimeError):
    """Something that must be installed first; the text is one line and says how."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Every program by name."""

    kubernetes: str  # version
    paths: dict[str, Path]
    services: bool  # this kernel translates addresses: kube-proxy can work

    def __getitem__(self, name: str) -> str:
        return str(self.paths[name])

    def versions(self) -> dict[str, str]:
        """What each program says of itself, for the results' record."""
        found = {"kubernetes": self.kubernetes}
        for name, flag in (("containerd", "--version"), ("runc", "--version"), ("etcd", "--version")):
            text = subprocess.run((self[name], flag), capture_output=True, text=True, check=False).stdout
            number = re.search(r"\d+\.\d+\.\d+", text)
            found[name] = number[0] if number else "unknown"
        return found


def kubernetes_version() -> str:
    """The version that is wanted. Raises MissingError: its line is not pinned here."""
    return _pinned(module())


def usual() -> str:
    """The version that is run unless another line is named."""
    return _pinned(MODULE)


def minor() -> int:
    """Of the version that is wanted: 36 of v1.36.3."""
    return int(kubernetes_version().split(".")[1])


def module() -> Path:
    """The module that pins the line of Kubernetes that is wanted, the usual one unless another is named.

    Raises:
        MissingError: there is none for that line.
    """
    wanted = os.environ.get(LINE, "").removeprefix("v")
    for place in LINES:
        if f"{_pinned(place)}.".startswith(f"v{wanted}." if wanted else "v"):
            return place
    known = " and ".join(_pinned(place) for place in LINES)
    raise MissingError(f"{LINE}={wanted}: there are {known}")


def _pinned(place: Path, name: str = "k8s.io/kubernetes") -> str:
    text = (place / "go.mod").read_text("utf-8")
    [version] = re.findall(rf"^require {re.escape(name)} (v\S+)$", text, re.MULTILINE)
    return str(version)


def find() -> Parts:
    """Every program. Nothing is built or downloaded here.

    Raises:
        MissingError: a package of Debian, kubectl and helm, or what is built from Go modules is not there.
    """
    absent = sorted({package for name, package in DEBIAN.items() if shutil.which(name) is None})
    if not CNI.is_dir():
        absent.append("containernetworking-plugins")
    if absent:
        raise MissingError(f"not installed: apt-get install --no-install-recommends {' '.join(absent)}")
    tools = ROOT / "build/tools"
    if not (tools / "helm").exists():
        raise MissingError("kubectl and helm are missing: make tools")
    paths = {name: Path(str(shutil.which(name))) for name in DEBIAN}
    paths |= {name: tools / name for name in ("kubectl", "helm")}
    for programs in (kubernetes(), containerd()):
        if not programs.built:
            raise MissingError(f"{programs.name} is not built: make cluster CMD=build")
        paths |= programs.paths
    return Parts(kubernetes_version(), paths, _translates())


@dataclass(frozen=True, slots=True)
class GoPrograms:
    """Programs that are built from one pinned Go module, and the directory that holds them once they are."""

    name: str  # for people, with the version
    module: Path  # the directory of go.mod
    directory: Path
    packages: Mapping[str, str]  # program → Go package
    variables: Mapping[str, str]  # what the linker sets: versions

    @property
    def paths(self) -> dict[str, Path]:
        """Program → where it lies once it is built."""
        return {name: self.directory / name for name in self.packages}

    @property
    def built(self) -> bool:
        """True if every program is there; a build puts them there all at once."""
        return all(path.exists() for path in self.paths.values())


def kubernetes() -> GoPrograms:
    """Kubernetes' programs, of the line that is wanted. Raises MissingError: it is not pinned here."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    names = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return GoPrograms(
        f"Kubernetes {version}",
        module(),
        BUILD / f"bin-{version}",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
        {f"k8s.io/component-base/version.{key}": value for key, value in names.items()},
    )


def containerd() -> GoPrograms:
    """containerd's programs: Debian's has no CDI, and kubelets to come will not take it."""
    path = "github.com/containerd/containerd/v2"
    version = _pinned(RUNTIME, path)
    return GoPrograms(
        f"containerd {version}",
        RUNTIME,
        BUILD / f"containerd-{version}",
        {name: f"{path}/cmd/{name}" for name in CONTAINERD},
        {f"{path}/version.Version": version.removeprefix("v")},
    )


def _translates() -> bool:
    """True if the kernel takes the rules that kube-proxy writes, in a network namespace that ends at once."""
    rules = "add table ip t; add chain ip t c {type nat hook output priority -100;}; "
    rules += "add rule ip t c fib daddr type local tcp dport 1 dnat to 127.0.0.1:2"
    return (
        subprocess.run(["unshare", "--net", "nft", rules], capture_output=True, check=False).returncode == 0
    )
