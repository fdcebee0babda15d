"""Maps host processes to pods and containers by ``<proc>/<pid>/cgroup``.

The path of a process's cgroup names both, whatever made it (``<uid>`` with ``_`` for ``-`` in slices)::

    cgroupfs driver    …/kubepods[/burstable|/besteffort]/pod<uid>/[crio-]<container>
    systemd driver     …/kubepods[-qos]-pod<uid>.slice/{docker,cri-containerd,crio}-<container>.scope
    containerd without SystemdCgroup under a systemd kubelet
                       …/kubepods[-qos]-pod<uid>.slice:cri-containerd:<container>

in front of it there may be anything: a node that is itself a container (kind), or ``/../..`` where our own
cgroup namespace is private. The *first* pod in the path counts: what comes after is made by the tenant.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_manager.domain.injection import MountPoint
from gpu_manager.domain.kube.pod import PodUid

_LARGEST = 64 << 10  # bytes of a cgroup file: some 13 lines of at most 4 KiB
_MOST_PROCESSES = 1 << 16  # bounds a scan; beyond it nothing is concluded from absence
_MOST_FILES = 64  # looked at of a process that may wait to be started, which has a few
_MOST_THREADS = 64  # looked at where the first has ended
_LARGEST_MOUNTS = 1 << 20  # bytes of a list of mounts
_MOST_NAMESPACES = 8  # mount namespaces of a container that are looked at: a tenant can make more
_ESCAPED = re.compile(r"\\([0-7]{3})")  # as the kernel writes a blank in a path
_EXITING = 0x4  # PF_EXITING, linux/include/linux/sched.h
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/include/linux/proc_ns.h
_CREDENTIALS = struct.Struct("iII")  # struct ucred, unix(7): pid, uid, gid
_CONNECT_SECONDS = 1.0
# Where v1 hierarchies disagree, the one that lets a process open the cards is believed.
_PREFERRED = ("devices", "memory", "pids", "name=systemd")

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"  # 32: static pods
_POD = re.compile(
    rf"(?:pod{_UID}|.*-pod{_UID.replace('<uid>', '<slice>')}\.slice(?::[\w.-]+:(?P<inline>\S+))?)"
)
_CONTAINER = re.compile(r"(?:(?!crio-conmon-)[a-z][a-z-]*-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")


@dataclass(frozen=True, slots=True)
class _Owner:
    pod: PodUid
    container: str  # empty for a process of the pod in none of its containers


def parse_cgroup(text: str) -> tuple[PodUid, str] | None:
    """The (pod UID, container id) that a cgroup file names; None if it names no container of a pod."""
    owner = _owner(text)
    return (owner.pod, owner.container) if owner is not None and owner.container else None


class CgroupProcesses:
    """:class:`gpu_manager.ports.containers.Processes` on /proc. Needs the host's PID namespace (``hostPID:
    true``).
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        kubelet: Path | None = None,
        keep_seconds: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """One scan of ``proc`` serves every question for ``keep_seconds``.

        ``kubelet`` is a socket at which it listens: where its process is seen, so are those of its pods.
        """
        self._proc, self._keep, self._monotonic = proc, keep_seconds, monotonic
        self._kubelet = kubelet
        self._lock = threading.Lock()
        self._scanned: tuple[float, frozenset[PodUid], bool] | None = None
        self._visible: bool | None = None

    def container_of(self, pid: int) -> tuple[PodUid, str] | None:
        """(pod UID, container id) of a process; None if it is in no pod, or gone."""
        try:
            return parse_cgroup(self._cgroup(pid) or "") if pid > 0 else None
        except PermissionError:
            return None

    def in_no_pod(self, pid: int) -> bool | None:
        """See :meth:`gpu_manager.ports.containers.OutsideProcesses.in_no_pod`."""
        if not self.host_pid():
            return None
        try:
            text = self._cgroup(pid) if pid > 0 else None
        except PermissionError:
            return None
        return text is not None and _owner(text) is None

    def alive(self, pod: PodUid) -> bool | None:
        """True while a process of the pod lives; None if that is not visible (no hostPID, too many)."""
        if not self.host_pid():
            return None
        with self._lock:
            now = self._monotonic()
            if self._scanned is None or now - self._scanned[0] >= self._keep:
                self._scanned = (now, *self._scan())
            _, pods, complete = self._scanned
        return True if pod in pods else False if complete else None

    def look_again(self, pods: Collection[PodUid], *, answer: bool = True) -> None:
        """See :meth:`gpu_manager.ports.containers.Processes.look_again`."""
        with self._lock:
            if self._scanned is not None and any((pod in self._scanned[1]) is answer for pod in pods):
                self._scanned = None

    def unstarted(self, pod: PodUid) -> bool:
        """See :meth:`gpu_manager.ports.containers.Processes.unstarted`.

        Its runtime waits at ``exec.fifo``, below its own directory of the container, and closes that file
        when the program begins (runc, libcontainer/standard_init_linux.go; crun likewise). An agent without
        privileges cannot see files of others, and goes by runc's command line: that proves less, but whoever
        asks does so once the kubelet has ended the pod's programs.
        """
        found = False
        for pid in self._pids():
            try:
                owner = _owner(self._cgroup(pid) or "")
            except PermissionError:
                return False
            if owner is not None and owner.pod == pod:
                found = True
                if not (owner.container and self._waits_to_start(pid, owner.container)):
                    return False
        return found

    def _waits_to_start(self, pid: int, container: str) -> bool:
        try:
            for file in list((self._proc / f"{pid}/fd").iterdir())[:_MOST_FILES]:
                with contextlib.suppress(FileNotFoundError):
                    if str(file.readlink()).endswith(f"/{container}/exec.fifo"):
                        return True
        except PermissionError:
            return self._is_runc_init(pid)
        except OSError:
            pass
        return False

    def _is_runc_init(self, pid: int) -> bool:
        try:
            return self._read(f"{pid}/cmdline") == "runc\0init\0"
        except OSError:
            return False

    def mounts(
        self, containers: Collection[tuple[PodUid, str]]
    ) -> Mapping[tuple[PodUid, str], Sequence[Sequence[MountPoint]]]:
        """The mounts of these containers, from one pass over all processes: proc(5), ``mountinfo``.

        A container's processes share a mount namespace, except those that created their own.
        """
        if not self.host_pid():
            return {}
        found: dict[tuple[PodUid, str], dict[str, Sequence[MountPoint]]] = {}
        for pid in self._pids():
            owner = self.container_of(pid)
            if owner not in containers or owner is None:
                continue
            seen = found.setdefault(owner, {})
            try:
                namespace = str((self._proc / f"{pid}/ns/mnt").readlink())
            except OSError:
                namespace = str(pid)
            if namespace in seen or len(seen) >= _MOST_NAMESPACES:
                continue
            try:
                with (self._proc / f"{pid}/mountinfo").open("rb") as file:
                    text = file.read(_LARGEST_MOUNTS).decode("utf-8", "replace")
            except OSError:  # it has ended, or is hidden from us
                continue
            if text:  # a process that ends has no mounts any more
                seen[namespace] = tuple(_mount_points(text))
        return {owner: tuple(seen.values()) for owner, seen in found.items() if seen}

    def inner_pid(self, pid: int) -> int | None:
        """The process's id in its innermost PID namespace, as it sees itself; None if it ends or is gone.

        A process whose first thread has ended, while others work on, is not ending.
        """
        try:
            return self._inner(pid) if pid > 0 and self._works(pid) else None
        except (OSError, ValueError, IndexError):
            return None

    def _inner(self, pid: int) -> int | None:
        for line in self._read(f"{pid}/status").splitlines():
            name, _, value = line.partition(":")
            if name == "NStgid":  # Linux 4.1
                return int(value.split()[-1])
        return None

    def _works(self, pid: int) -> bool:
        """True if a thread of it is not exiting: a process that exits has released its slot already."""
        if not self._exits(f"{pid}/stat"):
            return True
        threads = [entry.name for entry in (self._proc / str(pid) / "task").iterdir()][:_MOST_THREADS]
        return any(not self._exits(f"{pid}/task/{thread}/stat") for thread in threads)

    def _exits(self, path: str) -> bool:
        """Field 9 of the file, behind the name, which may hold anything."""
        return bool(int(self._read(path).rpartition(")")[2].split()[6]) & _EXITING)

    def _read(self, path: str) -> str:
        with (self._proc / path).open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")

    def host_pid(self) -> bool:
        """True if all processes of the node are visible. That cannot change while the agent runs."""
        if self._visible is not None:
            return self._visible
        known = self._in_first_namespace() or _is_seen(self._kubelet)
        if known is not None or self._kubelet is None:
            self._visible = self._sees_host() if known is None else known
            return self._visible
        return self._sees_host()  # until the kubelet listens

    def _in_first_namespace(self) -> bool:
        try:
            return str((self._proc / "self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
        except OSError:  # not a Linux /proc, or hidden from us
            return False

    def _sees_host(self) -> bool:
        # In a namespace of a node that is itself a container (kind), pid 1 is that node's init. In a pod's
        # own namespace it is a container: ours, or the pause container, which a private cgroup namespace
        # shows as a sibling (/../cri-containerd-….scope).
        try:
            first, own = self._cgroup(1), self._cgroup("self")
        except PermissionError:
            return False
        if first is None or first == own or _owner(first) is not None:
            return False
        return not any(
            p.startswith("/../") and _CONTAINER.fullmatch(p.rpartition("/")[2]) for p in _paths(first)
        )

    def _scan(self) -> tuple[frozenset[PodUid], bool]:
        """The pods that have a process, and whether every process was looked at."""
        pods: set[PodUid] = set()
        pids = self._pids()
        complete = 0 < len(pids) <= _MOST_PROCESSES
        for pid in pids[:_MOST_PROCESSES]:
            try:
                owner = _owner(self._cgroup(pid) or "")
            except PermissionError:
                complete = False
                continue
            if owner is not None:
                pods.add(owner.pod)
        return frozenset(pods), complete

    def _pids(self) -> list[int]:
        """The processes, at most one more than are looked at; none if they cannot be listed."""
        try:
            pids = [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal()]
        except OSError:
            return []
        return pids[: _MOST_PROCESSES + 1]

    def _cgroup(self, pid: int | str) -> str | None:
        """The file's text; None if the process ended. Raises PermissionError if it is hidden from us."""
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return file.read(_LARGEST).decode("utf-8", "replace")
        except PermissionError:
            raise
        except OSError:  # ENOENT, or ESRCH where it ended between opening and reading
            return None


def _is_seen(listening: Path | None) -> bool | None:
    """Whether the process behind a socket is in our PID namespace or below; None if no process listens."""
    if listening is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_CONNECT_SECONDS)
            line.connect(str(listening))
            said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return bool(_CREDENTIALS.unpack(said)[0])  # 0 for a process outside our PID namespace


def _owner(text: str) -> _Owner | None:
    for path in _paths(text):
        segments = path.removesuffix(" (deleted)").split("/")
        for at, segment in enumerate(segments):
            match = _POD.fullmatch(segment)
            if match is not None:
                inside = match["inline"] or (segments[at + 1] if at + 1 < len(segments) else "")
                container = _CONTAINER.fullmatch(inside)
                uid = PodUid((match["uid"] or match["slice"]).replace("_", "-"))
                return _Owner(uid, container["id"] if container is not None else "")
    return None


def _paths(text: str) -> Iterator[str]:
    """The paths of a cgroup file (``number:controllers:path`` a line), the most telling first."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    rank = {name: place for place, name in enumerate(_PREFERRED)}

    def place(controllers: str) -> int:
        return min((rank.get(c, len(rank)) for c in controllers.split(",")), default=len(rank))

    for _, _, path in sorted(lines, key=lambda parts: place(parts[1])):
        yield path


def _mount_points(text: str) -> Iterator[MountPoint]:
    """Fields 4 and 5 of each line: where in its file system the mount comes from, and where it is."""
    for line in text.splitlines():
        fields = line.split(" ", 5)
        if len(fields) == 6:
            root, path = (_ESCAPED.sub(lambda m: chr(int(m[1], 8)), field) for field in fields[3:5])
            yield MountPoint(path, root.removesuffix("//deleted"))
