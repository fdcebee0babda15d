"""Facts about the machine: its NVIDIA driver, the kubelet's files, the container runtime's configuration.

The injection strategy that belongs to the runtime is the agent's own judgement.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.driver import DriverFinder, multiarch
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.node_config import kubelet_config, kubelet_root, topology_policy
from gpu_manager.adapters.driver_files.runtimes import (
    ContainerRuntime,
    Strategy,
    choose,
    in_use,
    plain,
    shows_by_variable,
    sockets,
)
from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, MAX_BYTES
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.domain.contract import (
    CORE,
    CORE_SOCKET,
    DRA_SOCKET,
    KUBELET_SOCKET,
    MEMORY,
    MEMORY_SOCKET,
    NVIDIA,
    NVIDIA_SOCKET,
)
from gpu_manager.domain.doctor.facts import DriverFacts, KubeletFacts, RuntimeFacts, Version
from gpu_manager.domain.errors import RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.other_plugins import may_name_cards
from gpu_manager.ports.cards import Cards

# The NVIDIA driver of the machine: kernel module, libraries, nodes in /dev, and open copies of libcuda.


_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers, not the card's audio or USB functions
# By the name of a process, of which the kernel keeps 15 characters.
_ENFORCERS: Final = {
    "nvidia-cuda-mps": "NVIDIA's MPS (nvidia-cuda-mps-control)",
    "mpsd": "gpu-fractioning (mpsd)",
    "fractiond": "gpu-fractioning (fractiond)",
}
_OPEN: Final = re.compile(rb"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # a directory of a random name is made there
_MOST_PROCESSES: Final = 1 << 16
_TEXT: Final = 1 << 12  # characters of the kernel's small files
_MAPS_BYTES: Final = 4 << 20  # a process with CUDA and torch has about 1 MiB of maps


def gather_driver(
    host: HostFiles,
    driver_root: str,
    cards: Cards | None,
    *,
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> DriverFacts:
    """Facts about the driver. ``cards`` queries NVML, None to skip it; ``sysfs`` and ``proc`` are the
    kernel's.
    """
    library, problem = _library(host, driver_root)
    count, nvml = _ask(cards)
    return DriverFacts(
        pci_cards=_pci(sysfs),
        kernel=_content(sysfs / "module/nvidia/version"),
        library=library,
        library_problem=problem,
        nvml_problem=nvml,
        nvml_cards=count,
        devices=frozenset(name for name in host.listing("/dev") if name.startswith("nvidia")),
        in_use=_in_use(proc),
        enforcers=tuple(
            sorted(
                {_ENFORCERS[name] for pid in _pids(proc) if (name := _name(proc, pid))}
                | _limiter(host.seen("/sys/fs/cgroup"), proc)
            )
        ),
    )


def _library(host: HostFiles, driver_root: str) -> tuple[str | None, str]:
    with tempfile.TemporaryDirectory(
        dir=_scratch()
    ) as links:  # the finder makes links; none of ours may stay
        try:
            return DriverFinder(host, driver_root, Path(links)).find().version, ""
        except VcudaError as error:
            return None, str(error)


def _scratch() -> str:
    """A directory that can be written; in the agent's pod, whose root cannot, only shared memory is one."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _SHARED_MEMORY


def _ask(cards: Cards | None) -> tuple[int | None, str | None]:
    if cards is None:
        return None, None
    try:
        return len(cards.list()), ""
    except VcudaError as error:
        return None, str(error)


def _pci(sysfs: Path) -> int | None:
    try:
        slots = sorted((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        _content(slot / "vendor") == _NVIDIA and (_content(slot / "class") or "").startswith(_DISPLAY)
        for slot in slots
    )


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:_TEXT].strip()
    except OSError:
        return None


def _in_use(proc: Path) -> Mapping[str, int] | None:
    """Version of libcuda → processes that have it open; None where other users' processes are hidden."""
    found: Counter[str] = Counter()
    hidden = os.geteuid() != 0
    for pid in _pids(proc):
        try:
            with (proc / pid / "maps").open("rb") as file:
                text = file.read(_MAPS_BYTES)
        except PermissionError:
            hidden = True
            continue
        except OSError:  # it has ended
            continue
        found.update({match.decode() for match in _OPEN.findall(text)})
    return None if hidden and not found else found


def _name(proc: Path, pid: str) -> str:
    """The process's name, if it is one of those that hold others to shares; empty else."""
    name = _content(proc / pid / "comm") or ""
    return name if name in _ENFORCERS else ""


def _limiter(cgroups: Path, proc: Path) -> set[str]:
    """Who limits the cards' memory of control groups in which no process has our limits mounted."""
    limited = 0
    for place, _, names in islice(os.walk(cgroups), _MOST_PROCESSES):
        if "dmem.max" not in names:
            continue
        limits = (_content(Path(place) / "dmem.max") or "").splitlines()
        if all(line.endswith(" max") for line in limits):
            continue
        pids = (_content(Path(place) / "cgroup.procs") or "").split()[:1]
        with suppress(OSError):  # it has ended, or is hidden
            limited += any(b" /etc/vcuda/" not in (proc / pid / "mountinfo").read_bytes() for pid in pids)
    what = "a control group" if limited == 1 else f"{limited} control groups"
    return {f"a program that limits the cards' memory of {what} (dmem.max)"} if limited else set()


def _pids(proc: Path) -> Iterator[str]:
    try:
        names = os.listdir(proc)  # noqa: PTH208  # names, of which there may be thousands
    except OSError:
        return
    yield from [name for name in names if name.isdecimal()][:_MOST_PROCESSES]


_STATIC: Final = "/etc/kubernetes/manifests"  # kubeadm's


def gather_kubelet(
    host: HostFiles,
    directory: str,
    *,
    policy: str = "auto",
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> KubeletFacts | None:
    """The kubelet with this directory on the node; None if there is none. ``policy`` is the NUMA policy in
    the agent's settings, or auto.
    """
    if not host.exists(directory):
        return None
    config = kubelet_config(host, directory, proc)
    root = kubelet_root(host, directory, proc)
    plugins = f"{directory}/device-plugins"
    static = _text(config.get("staticPodPath")) or _STATIC
    driver = _text(config.get("cgroupDriver"))
    fail = config.get("failCgroupV1")
    registered = _registered(host.read(f"{plugins}/{FILE_NAME}", MAX_BYTES))
    return KubeletFacts(
        socket=host.exists(f"{plugins}/{KUBELET_SOCKET}"),
        pod_resources=host.exists(f"{root}/pod-resources/{KUBELET_SOCKET}"),
        registered=None if registered is None else frozenset(registered),
        others=frozenset(
            name
            for name, ids in (registered or {}).items()
            if name not in (CORE, MEMORY) and ids and (name == NVIDIA or may_name_cards(name, ids))
        ),
        own_sockets=frozenset(
            n for n in (CORE_SOCKET, MEMORY_SOCKET, NVIDIA_SOCKET) if host.exists(f"{plugins}/{n}")
        ),
        cgroup_driver=driver if config else None,
        fail_cgroup_v1=fail if isinstance(fail, bool) else None,
        cgroups=cgroup_version(sysfs),
        static_pods=_static_pods(host, static),
        claims=host.exists(f"{root}/{DRA_SOCKET}"),
        numa_policy=topology_policy(host, directory, proc),
        told_policy="" if policy == "auto" else policy,
        root="" if root == directory else root,
    )


def _registered(text: bytes | None) -> dict[str, list[str]] | None:
    """The resources that plugins have registered with their healthy ids, as the kubelet's checkpoint lists
    them.
    """
    try:
        devices = json.loads(text or b"")["Data"]["RegisteredDevices"] or {}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(devices, dict):
        return None
    return {
        str(name): [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
        for name, ids in devices.items()
    }


def _static_pods(host: HostFiles, directory: str) -> tuple[str, ...]:
    found = []
    for name in host.listing(directory):
        try:
            manifests = read_manifests(host.read(f"{directory}/{name}") or b"")
            pods = [parse_pod(m.pod) for m in manifests if m.pod is not None]
        except RequestInvalid:  # not a manifest: the kubelet passes it over as well
            continue
        found += [f"{pod.key} ({directory}/{name})" for pod in pods if pod.asks]
    return tuple(found)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_TOOLKIT: Final = re.compile(r"libnvidia-container\.so\.(\d+)\.(\d+)\.(\d+)")
_PLACES: Final = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "usr/local/nvidia/toolkit")
_NOTHING: Final = ContainerRuntime("", "", None, "")


def gather_runtime(
    host: HostFiles,
    cri: str | None,
    *,
    injection: str = "auto",
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> RuntimeFacts:
    """The container runtime. ``cri`` is the kubelet's configured socket; ``injection`` the agent's
    setting.
    """
    found, none = in_use(host, cri, proc=proc)
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
        by_variable=shows_by_variable(host, one),
    )


def cgroup_version(sysfs: Path) -> int | None:
    """1 (also if v2 is mounted beside it) or 2; None if no cgroup file system is mounted."""
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
