"""The container runtime, from its configuration and sockets; the strategy is the agent's own judgement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files import Strategy, detect
from gpu_manager.adapters.driver_files.detect import containerd_config, crio_config, evidence, sockets
from gpu_manager.adapters.driver_files.elf import multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.domain.doctor.facts import RuntimeFacts, Version

_TOOLKIT: Final = re.compile(r"libnvidia-container\.so\.(\d+)\.(\d+)\.(\d+)")
_PLACES: Final = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "usr/local/nvidia/toolkit")


def gather_runtime(
    host: HostFiles, cri: str | None, *, injection: str = "auto", sysfs: Path = Path("/sys")
) -> RuntimeFacts:
    """``cri`` is the socket that the kubelet is told to use; ``injection`` what the agent is told."""
    strategy, why = detect(host.root)
    if injection != "auto":
        why = f"--device-injection says so; auto would take {strategy.value} ({why})"
        strategy = Strategy(injection)
    known = sockets(host)
    if cri is not None and cri not in known and host.exists(cri):
        known = (*known, cri)
    config, default, runtimes, systemd = _configured(host)
    return RuntimeFacts(
        strategy=strategy.value,
        why=why,
        config=config,
        default_runtime=default,
        runtimes=runtimes,
        missing=frozenset(name for name, binary in runtimes.items() if _missing(host, binary)),
        systemd_cgroup=systemd,
        cdi=_cdi(host),
        sockets=known,
        cri=cri,
        toolkit=_toolkit(host),
        cgroups=cgroup_version(sysfs),
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


def _configured(host: HostFiles) -> tuple[str, str, dict[str, str], bool | None]:
    """(file, default runtime, name → binary, whether runc keeps cgroups through systemd)."""
    found = containerd_config(host)
    if found is not None:
        path, config, cri = found
        if not config:
            return "", "", {}, None
        containerd = _table(cri, "containerd")
        tables = _table(containerd, "runtimes")
        options = {name: _table(_table(tables, name), "options") for name in tables}
        systemd = _flag(options.get("runc", {}).get("SystemdCgroup"))
        binaries = {name: _string(values.get("BinaryName")) for name, values in options.items()}
        # An absent switch is containerd's default, which is off.
        return path, _string(containerd.get("default_runtime_name")), binaries, systemd or False
    crio = crio_config(host)
    if crio is None:
        return "", "", {}, None
    tables = _table(crio, "runtimes")
    binaries = {name: _string(_table(tables, name).get("runtime_path")) for name in tables}
    systemd = _string(crio.get("cgroup_manager")) in ("", "systemd")  # CRI-O's default
    return "/etc/crio", _string(crio.get("default_runtime")), binaries, systemd


def _cdi(host: HostFiles) -> bool | None:
    """Whether the runtime reads CDI specs; None where its files leave that to its version."""
    if any(found is Strategy.CDI for found, _ in evidence(host)):
        return True
    containerd, crio = containerd_config(host), crio_config(host)
    said = crio is not None or (
        containerd is not None and any(key in containerd[2] for key in ("enable_cdi", "cdi_spec_dirs"))
    )
    return False if said else None


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


def _table(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
