"""The cluster as one object: up, down, any part killed and started again, its API and its files.

A process of its own is not needed: what runs is written to ``cluster.json`` below the scratch directory, and
every object of :class:`Cluster` reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.driver_files.delivery import find_native_libraries
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.domain.card import Card
from tests.cluster import images, layout, processes
from tests.cluster.api import Api, ApiError
from tests.cluster.parts import BUILD, PRODUCT, MissingError, Parts, find
from tests.cluster.periods import chosen
from tests.cluster.pki import Pki

PROFILE: Final = "a100x8"
DIVIDED: Final = "mig-h200"
"""Two cards divided into eleven MIG instances beside a whole one, for the tests of instances."""
HIERARCHIES: Final = Path("/sys/fs/cgroup")
_HERE: Final = Path(__file__).resolve().parent
_STOP_SECONDS: Final = 10.0  # then it is killed, as a supervisor does
_STARTED: Final[list[subprocess.Popen[bytes]]] = []  # they outlive us: nobody waits for them


class NotRunningError(RuntimeError):
    """There is no cluster; the text is one line and says how to get one."""


@dataclass(slots=True)
class Running:
    """What ``cluster.json`` holds: the first process of the namespaces, the API's port on loopback, parts."""

    init: int
    port: int
    parts: dict[str, int]
    periods: str  # the name of the profile, see periods.py
    image: str = ""  # digest of the product's archive that containerd was given last


class Cluster:
    """One cluster of this machine."""

    def __init__(self, scratch: Path = BUILD / "run") -> None:
        self.scratch = scratch
        self.pki = Pki(scratch / "pki")

    @cached_property
    def parts(self) -> Parts:
        """The programs; raises MissingError."""
        return find()

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """The node's simulated cards, as the agent makes them."""
        return tuple(s.card for s in SimulatedCards.named(PROFILE, node=layout.NODE).list())

    @cached_property
    def divided(self) -> tuple[Card, ...]:
        """The cards of a node of :data:`DIVIDED`, instances among them, as the agent makes them."""
        found = SimulatedCards.named(DIVIDED, node=layout.NODE, instances=lambda: True)
        return tuple(state.card for state in found.list())

    # Life.

    def up(self, product: Path = PRODUCT) -> None:
        """Start everything, with the image in ``product``; a cluster that runs already stays, and gets the image if it
        has another.

        Raises:
            MissingError: something must be installed or built first.
        """
        parts = self.parts
        running = self._running()
        if running is not None:
            self._must_be(parts.kubernetes, running.periods)
            if product.exists() and images.digest(product) != running.image:
                self._load_product(product)
            return
        if self._read() is None and _occupied():
            raise MissingError(
                f"another cluster runs here, in the control group {layout.CGROUP}: end it first"
            )
        self.down()
        self.scratch.mkdir(mode=0o700, parents=True)
        native = find_native_libraries()
        if native.client is None or native.driver is None:
            raise MissingError("the stand-in driver is not built: make setup")
        archives = images.make(parts, native, (*self.cards, *self.divided), self.scratch / "images")
        if not product.exists():
            raise MissingError("the image is not built: make image")
        self.pki.make(layout.SERVER, layout.NODE, ("127.0.0.1", layout.ADDRESS, layout.SERVICE))
        layout.write_files(self.pki, self.scratch, resource_limits=_may_lower_oom_score())
        for hierarchy in _hierarchies():
            (hierarchy / layout.CGROUP).mkdir(exist_ok=True)
        self._hold()
        for part in ("etcd", "kube-apiserver"):
            self.start(part)
        self._relay()
        self.wait(lambda: self.api.get("/readyz", text=True) == "ok", 60, "the API server is not ready")
        for part in layout.ORDER[2:-2]:
            self.start(part)
        self.wait(lambda: self.inside("test", "-S", layout.CONTAINERD).returncode == 0, 20, "no containerd")
        for archive in archives:
            self.load(archive)
        self._load_product(product)
        self.start("kubelet")
        self.wait(self.node_ready, 60, "the node is not ready")
        if parts.services:
            self.start("kube-proxy")
        self._write_kubeconfig()

    def _must_be(self, version: str, periods: str) -> None:
        found = self.wait(lambda: self.api.get("/version"), 60, "the API server does not answer")
        if found["gitVersion"] != version:
            raise MissingError(
                f"Kubernetes {found['gitVersion']} runs here, not {version}: make cluster CMD=down first"
            )
        if periods != chosen().name:
            raise MissingError(
                f"the cluster runs with {periods} periods, not {chosen().name}: make cluster CMD=down first"
            )

    def down(self) -> None:
        """End everything and remove every trace. Idempotent."""
        running = self._read()
        if running is not None:
            processes.end(running.init)  # and with it all processes of its PID namespace
            ends = time.monotonic() + 20
            while _alive(running.init) and time.monotonic() < ends:
                time.sleep(0.05)
        for hierarchy in _hierarchies():
            _remove_cgroup(hierarchy / layout.CGROUP)
        if self.scratch.exists():
            _remove_tree(self.scratch)

    def _hold(self) -> None:
        command = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", sys.executable]
        command += [str(_HERE / "holder.py"), str(self.scratch)]
        command += [layout.ADDRESS, layout.NODE, layout.SERVICE, layout.NAMES]
        with (self.scratch / "holder.log").open("wb") as log:
            outer = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd="/")
        _STARTED.append(outer)
        held = self.scratch / "held"
        ends = time.monotonic() + 20
        while not held.exists():
            if outer.poll() is not None or time.monotonic() > ends:
                raise MissingError(f"the namespaces cannot be made: see {self.scratch / 'holder.log'}")
            time.sleep(0.05)
        [init] = _children(outer.pid)
        self._save(Running(init, 0, {}, chosen().name))

    def _relay(self) -> None:
        listening = socket.create_server(("127.0.0.1", _free_port()))
        running = self.running
        running.port = listening.getsockname()[1]
        self._save(running)
        descriptor = listening.fileno()
        target = [str(_HERE / "relay.py"), str(descriptor), layout.ADDRESS, "443"]
        self._spawn("relay", [sys.executable, *target], fds=(descriptor,))
        listening.close()

    # Parts.

    def start(self, part: str) -> None:
        """Start a part that does not run; returns at once."""
        argv = layout.commands(self.parts, self.pki, self.scratch, sys.executable)[part]
        self._spawn(part, list(argv))

    def run(self, name: str, argv: list[str]) -> None:
        """Start a program of a test inside, under a name that :meth:`kill` knows."""
        self._spawn(name, argv)

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        """End a part and wait until it has ended."""
        pid = self.pid(part)
        if not pid:
            return
        processes.end(pid, number)
        running = self.running
        running.parts.pop(part, None)
        self._save(running)
        ends = time.monotonic() + _STOP_SECONDS
        while _alive(pid):
            if time.monotonic() > ends:  # kube-apiserver waits a minute for its watches
                processes.end(pid)
            time.sleep(0.05)

    def restart(self, part: str, number: int = signal.SIGKILL) -> None:
        """Kill and start again."""
        self.kill(part, number)
        self.start(part)

    def mend(self) -> None:
        """Start again what has ended by itself, as a supervisor does; what was killed stays down.

        A part that is restarted at once may find its port still taken; kube-scheduler ends itself when a
        restarted API server first shows it an older state.
        """
        for part in layout.ORDER:
            if part in self.running.parts and not self.pid(part):
                self.start(part)

    def pid(self, part: str) -> int:
        """The part's own process (not the one that entered the namespaces for it); 0 if there is none."""
        outer = self.running.parts.get(part, 0)
        children = _children(outer) if outer else []
        return children[0] if children else 0

    def _spawn(self, part: str, argv: list[str], fds: tuple[int, ...] = ()) -> None:
        with (self.scratch / f"{part}.log").open("ab") as log:
            enter = ["nsenter", f"--target={self.running.init}", "--mount", "--pid", "--net", "--"]
            started = subprocess.Popen(
                [*enter, *argv], stdout=log, stderr=log, start_new_session=True, cwd="/", pass_fds=fds
            )
        _STARTED.append(started)
        ends = time.monotonic() + 10
        while not _children(started.pid) and started.poll() is None and time.monotonic() < ends:
            time.sleep(0.01)
        running = self.running
        running.parts[part] = started.pid
        self._save(running)

    def inside(self, *command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's namespaces."""
        enter = ["nsenter", f"--target={self.running.init}", "--mount", "--pid", "--net", "--"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=check, cwd="/")

    def load(self, archive: Path) -> None:
        """Give containerd an image."""
        images_import = ("images", "import", "--local", "--all-platforms", str(archive))
        done = self.inside(self.parts["ctr"], "-a", layout.CONTAINERD, "-n", "k8s.io", *images_import)
        if done.returncode:
            raise MissingError(f"{archive} cannot be loaded: {done.stderr.strip()}")

    def _load_product(self, archive: Path) -> None:
        self.load(archive)
        running = self.running
        running.image = images.digest(archive)
        self._save(running)

    # What is there.

    @property
    def running(self) -> Running:
        """Raises NotRunningError."""
        found = self._running()
        if found is None:
            raise NotRunningError("no cluster runs: make cluster CMD=up")
        return found

    def root(self, path: str) -> Path:
        """A path of the node, as this process reaches it."""
        return Path(f"/proc/{self.running.init}/root") / path.lstrip("/")

    @property
    def api(self) -> Api:
        """The API server, as an administrator."""
        token = Path(self.pki / "admin.token").read_text("utf-8")
        return Api("127.0.0.1", self.running.port, token, Path(self.pki / "ca.crt"))

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and helm on this machine."""
        return self.scratch / "kubeconfig"

    def node_ready(self) -> bool:
        """True once the real node takes pods, and its kubelet itself says that it is well.

        The node's status alone may be that of a kubelet that has ended.
        """
        path = f"/api/v1/nodes/{layout.NODE}"
        try:
            node = self.api.get(path)
            if self.api.get(f"{path}/proxy/healthz", text=True) != "ok":
                return False
        except ApiError:
            return False
        conditions = node["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """What kubectl says; raises CalledProcessError with its words."""
        return self._tool("kubectl", arguments, given)

    def helm(self, *arguments: str) -> str:
        """The same for helm."""
        return self._tool("helm", arguments, None)

    def _tool(self, name: str, arguments: tuple[str, ...], given: str | None) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            [self.parts[name], *arguments],
            input=given,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if done.returncode:
            said = "\n".join(filter(None, (done.stderr.strip(), done.stdout.strip())))
            raise RuntimeError(f"{name} {' '.join(arguments)}: exit code {done.returncode}: {said}")
        return done.stdout

    def wait(self, holds: Callable[[], Any], seconds: float, otherwise: str) -> Any:
        """Poll until something holds; its value. Raises TimeoutError."""
        ends = time.monotonic() + seconds
        while True:
            with contextlib.suppress(ApiError, OSError):
                if value := holds():
                    return value
            self.mend()
            if time.monotonic() > ends:
                raise TimeoutError(f"{otherwise} within {seconds:g} s")
            time.sleep(0.1)

    def _write_kubeconfig(self) -> None:
        text = Path(self.pki / "admin.kubeconfig").read_text("utf-8")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(
            text.replace(layout.SERVER, f"https://127.0.0.1:{self.running.port}"), "utf-8"
        )

    # The record.

    def _save(self, running: Running) -> None:
        draft = self.scratch / "cluster.json.new"
        draft.write_text(json.dumps(asdict(running)))
        draft.replace(self.scratch / "cluster.json")

    def _read(self) -> Running | None:
        try:
            return Running(**json.loads((self.scratch / "cluster.json").read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _running(self) -> Running | None:
        found = self._read()
        return found if found is not None and _is_holder(found.init) else None


def _is_holder(pid: int) -> bool:
    try:
        return b"holder.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _alive(pid: int) -> bool:
    """False for a zombie: it has ended, and its parent has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _hierarchies() -> list[Path]:
    """Each mounted cgroup hierarchy: one directory for v2, one a controller for v1."""
    if (HIERARCHIES / "cgroup.controllers").exists():
        return [HIERARCHIES]
    return [
        d
        for d in HIERARCHIES.iterdir()
        if d.is_dir() and not d.is_symlink() and (d / "cgroup.procs").exists()
    ]


def _occupied() -> bool:
    """True if processes are in our control group, which every cluster of this machine would use."""
    paths = (
        path for hierarchy in _hierarchies() for path in hierarchy.glob(f"{layout.CGROUP}/**/cgroup.procs")
    )
    return any(map(processes.members, paths))


def _remove_cgroup(directory: Path) -> None:
    """A cgroup and all below it; its processes have ended, the kernel may need a moment to agree."""
    if not directory.is_dir():
        return
    for path in sorted((d for d in directory.rglob("*") if d.is_dir()), reverse=True):
        _remove_directory(path)
    _remove_directory(directory)


def _remove_directory(path: Path) -> None:
    ends = time.monotonic() + 5
    while path.is_dir():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


def _remove_tree(directory: Path) -> None:
    """Mounts were in the namespaces that have ended; overlayfs leaves a directory without rights."""
    for work in directory.glob("*.work"):
        for inner in work.iterdir():
            inner.chmod(0o700)
    shutil.rmtree(directory)


def _may_lower_oom_score() -> bool:
    """CAP_SYS_RESOURCE, bit 24."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
