"""The container runtime, from its configuration and sockets; the strategy is the agent's own judgement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files import Strategy
from gpu_manager.adapters.driver_files.detect import choose
from gpu_manager.adapters.driver_files.elf import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.runtimes import ContainerRuntime, in_use, plain, sockets
from gpu_manager.domain.doctor.facts import RuntimeFacts, Version

_TOOLKIT: Final = re.compile(r"libnvidia-container\.so\.(\d+)\.(\d+)\.(\d+)")
_PLACES: Final = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "usr/local/nvidia/toolkit")
_NOTHING: Final = ContainerRuntime("", "", None, "")


def gather_runtime(
    host: HostFiles, cri: str | None, *, injection: str = "auto", sysfs: Path = Path("/sys")
) -> RuntimeFacts:
    """``cri`` is the socket that the kubelet is told to use; ``injection`` what the agent is told."""
    found, none = in_use(host, cri)
    strategy, why = choose(host, found, none)
    if injection != "auto":
        why = f"--device-injection says so; auto would take {strategy.value} ({why})"
        strategy = Strategy(injection)
    known = sockets(host)
    if cri is not None and plain(cri) in known:
        cri = plain(cri)
    elif cri is not None and host.exists(cri):
        known = (*known, cri)
    one = found[0] if len(found) == 1 else _NOTHING
    return RuntimeFacts(
        strategy=strategy.value,
        why=why,
        config=one.config,
        default_runtime=one.default,
        runtimes=one.runtimes,
        missing=frozenset(name for name, binary in one.runtimes.items() if _missing(host, binary)),
        systemd_cgroup=one.systemd if one.config else None,
        cdi=one.cdi,
        sockets=known,
        cri=cri,
        toolkit=_toolkit(host),
        cgroups=cgroup_version(sysfs),
        broken=one.broken,
    )


def cgroup_version(sysfs: Path) -> int | None:
    """1 (also where v2 is mounted beside it) or 2; None if nothing is mounted."""
    root = sysfs / "fs/cgroup"
    if (root / "cgroup.controllers").exists():
        return 2
    try:
        return 1 if any(root.iterdir()) else None
    except OSError:
        return None


def _missing(host: HostFiles, binary: str) -> bool:
    if not binary:
        return False
    if binary.startswith("/"):
        return not host.exists(binary)
    return not any(host.exists(f"/{place}/{binary}") for place in _PLACES)


def _toolkit(host: HostFiles) -> Version | None:
    places = (f"/usr/lib/{multiarch()}", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/toolkit")
    found = (_TOOLKIT.fullmatch(name) for place in places for name in host.listing(place))
    return max((tuple(map(int, match.groups())) for match in found if match), default=None)
