"""Containers without a container runtime: a container is a directory and a process, no root, no namespace.

``<sandbox>/containers/<id>/root`` stands for the container's file system: each mount that the kubelet was
handed is a link there, at its path in the container. The process runs on the machine's own files. It finds
the card's libraries because ``LD_LIBRARY_PATH`` leads into that root, and libvcuda finds its pages because
its sandbox build puts ``$VCUDA_ROOT`` before every path. So a sandbox shows what a container *receives* and
that its limits hold; it does not keep a process from other files of the machine's user.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpu_manager.adapters.driver_files.delivery import CUDA_FRONT, NVML_FRONT, NativeLibraries
from gpu_manager.adapters.driver_files.driver import multiarch
from gpu_manager.domain.card import Card
from gpu_manager.domain.contract import CARDS_ENV
from gpu_manager.domain.errors import NodeUnready, quoted
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from sandbox.processes import ProcessTable

ROOT_VARIABLE: Final = "VCUDA_ROOT"
START_ERROR: Final = 128  # what Kubernetes shows for a process that could not be started
# Our libraries as they are mounted → the build of them that looks below VCUDA_ROOT.
_SANDBOX_BUILD: Final = {CUDA_FRONT: "libcuda.so.1", NVML_FRONT: "libnvidia-ml.so.1"}
_MODELS: Final = ("h200", "h100", "a100", "a10", "l4", "t4")
_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._A-Za-z][-._A-Za-z0-9]*)\)")


@dataclass(frozen=True, slots=True)
class Started:
    """A running container."""

    id: str
    pid: int
    root: Path
    log: Path


class Runtime:
    """Makes, signals and removes containers in ``directory``. Thread-safe.

    ``programs`` are commands that every container finds on its PATH: name → argv that it stands for.
    """

    def __init__(
        self,
        directory: Path,
        processes: ProcessTable,
        *,
        cards: Sequence[Card] = (),
        native: NativeLibraries | None = None,
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._containers = directory / "containers"
        self._logs = directory / "logs"
        self._bin = directory / "bin"
        self._modelled = directory / "cards"
        self._processes = processes
        self._cards: dict[str, Card] = {card.uuid: card for card in cards}
        self._native = native or NativeLibraries()
        self._lock = threading.Lock()
        for made in (self._containers, self._logs, self._bin):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, argv in (programs or {}).items():
            script = self._bin / name
            words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8")
            script.chmod(0o700)

    def start(
        self,
        pod: Mapping[str, Any],
        container: Mapping[str, Any],
        response: ContainerAllocateResponse,
        ended: Callable[[int], None],
        container_id: str = "",
    ) -> Started:
        """Make a container from its spec and what the device plugins answered, and run its command.

        ``ended`` is called once, with the exit code. A container without ``command`` only waits.

        Raises:
            NodeUnready: a mount, the environment or the command cannot be had; nothing runs.
        """
        name = container_id or secrets.token_hex(32)
        directory = self._containers / name
        root, log = directory / "root", directory / "log"
        root.mkdir(mode=0o700, parents=True)
        for mount in response.mounts:
            self._link(root, mount.container_path, mount.host_path)
        env = self._environment(pod, container, response, root)
        self._machine(directory, env)
        argv = [_expand(str(word), env) for word in container.get("command") or ()]
        if argv:
            argv += [_expand(str(word), env) for word in container.get("args") or ()]
        self._name_log(pod, container, log)
        pid = self._processes.spawn(
            name, argv, env=env, cwd=_working_directory(container, root), log=log, ended=ended
        )
        return Started(name, pid, root, log)

    def signal(self, container_id: str, number: int) -> None:
        """Send a signal to the container's processes."""
        self._processes.signal(container_id, number)

    def remove(self, container_id: str) -> None:
        """Remove the directory of a container that has ended."""
        shutil.rmtree(self._containers / container_id, ignore_errors=True)

    def log(self, container_id: str) -> Path:
        """Where its output goes."""
        return self._containers / container_id / "log"

    def _link(self, root: Path, container_path: str, host_path: str) -> None:
        path = PurePosixPath(container_path)
        if not path.is_absolute() or ".." in path.parts:
            raise NodeUnready(f"mount {quoted(container_path)} is no absolute path in a container")
        if not Path(host_path).exists():
            raise NodeUnready(f"mount {quoted(container_path)}: the node has no {quoted(host_path)}")
        place = root / path.relative_to("/")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # the later mount covers the earlier
        place.symlink_to(self._sandbox_build(host_path))

    def _sandbox_build(self, host_path: str) -> str:
        name = _SANDBOX_BUILD.get(Path(host_path).name)
        fronts = self._native.fronts
        return str(fronts / name) if name is not None and fronts is not None else host_path

    def _environment(
        self,
        pod: Mapping[str, Any],
        container: Mapping[str, Any],
        response: ContainerAllocateResponse,
        root: Path,
    ) -> dict[str, str]:
        """The plugins' variables first and the pod's own over them, as the kubelet has it."""
        env = {"HOME": str(root), "HOSTNAME": str(pod["metadata"]["name"]), "LANG": "C.UTF-8"}
        env |= dict(response.envs)
        for entry in container.get("env") or ():
            env[str(entry["name"])] = _value(pod, entry, env)
        env[ROOT_VARIABLE] = str(root)
        below = [f"{root}/usr/lib/{multiarch()}", f"{root}/usr/lib64"]
        env["LD_LIBRARY_PATH"] = ":".join([*below, *filter(None, [env.get("LD_LIBRARY_PATH")])])
        interpreter = str(Path(sys.executable).parent)
        usual = env.get("PATH") or os.environ.get("PATH") or os.defpath
        env["PATH"] = ":".join([str(self._bin), f"{root}/usr/bin", usual, interpreter])
        return env

    def _machine(self, directory: Path, env: dict[str, str]) -> None:
        """Tell the stand-in driver which modelled cards this container sees: its own, and no other."""
        if self._native.driver is None:
            return
        mine = [self._cards[u] for u in env.get(CARDS_ENV, "").split(",") if u in self._cards]
        lines = [f"cards = {len(mine)}", f"state = {self._modelled}"]
        for index, card in enumerate(mine):
            model = next((m for m in _MODELS if m in card.model.lower()), "small")
            lines += [
                f"card.{index}.{key} = {value}"
                for key, value in (
                    ("model", model),
                    ("memory_mib", card.memory >> 20),
                    ("uuid", card.uuid),
                    ("pci", card.pci_bus_id),
                )
            ]
        path = directory / "standin.conf"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        env["VCUDA_STANDIN_CONFIG"] = str(path)

    def _name_log(self, pod: Mapping[str, Any], container: Mapping[str, Any], log: Path) -> None:
        meta = pod["metadata"]
        name = f"{meta.get('namespace', 'default')}_{meta['name']}_{container['name']}.log"
        with self._lock:
            link = self._logs / name.replace("/", "_")[:250]
            link.unlink(missing_ok=True)
            link.symlink_to(log)


def _working_directory(container: Mapping[str, Any], root: Path) -> Path:
    wanted = container.get("workingDir")
    return Path(wanted) if isinstance(wanted, str) and Path(wanted).is_dir() else root


def _value(pod: Mapping[str, Any], entry: Mapping[str, Any], env: Mapping[str, str]) -> str:
    source = entry.get("valueFrom")
    if source is None:
        return _expand(str(entry.get("value") or ""), env)
    path = (source.get("fieldRef") or {}).get("fieldPath")
    meta = pod["metadata"]
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", "default"),
        "metadata.uid": meta.get("uid", ""),
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
    }
    if path not in fields:
        known = ", ".join(sorted(fields))
        raise NodeUnready(f"variable {quoted(entry.get('name'))}: the sandbox fills in only fieldRef {known}")
    return str(fields[path])


def _expand(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` as Kubernetes expands it; ``$$`` is a dollar, an unknown name stays."""
    return _REFERENCE.sub(
        lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]),
        text,
    )


def free_port(wanted: int = 0) -> int | None:
    """A port of loopback that nobody has: ``wanted``, or any for 0; None if ``wanted`` is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return None
        return int(probe.getsockname()[1])
