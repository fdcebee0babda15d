"""A whole node on a laptop: the real agent and admission between stand-ins of Kubernetes, simulated cards."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from gpu_manager.adapters.driver_files.delivery import (
    NativeLibraries,
    find_native_libraries,
    native_in,
)
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.adapters.simulated_control import read_control, write_control
from gpu_manager.domain.card import Card
from gpu_manager.domain.contract import CORE, MEMORY, MEMORY_SOCKET
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.runtime import threads
from sandbox import programs
from sandbox.admission import ADMISSION_TOKEN, AGENT_TOKEN, TOKENS, AdmissionProcess, find_program
from sandbox.agent_pod import show_agent
from sandbox.api import ADMIN_TOKEN, StandInApi
from sandbox.claim_controller import ClaimController
from sandbox.claim_kubelet import ClaimKubelet
from sandbox.claims import DEVICE_CLASSES, ClaimScheduler
from sandbox.extender import ExtenderClient
from sandbox.http_client import LoopbackClient
from sandbox.kept_process import KeptProcess
from sandbox.kubelet import NumaPolicy, StandInKubelet
from sandbox.node import NodeLoop
from sandbox.pod_worker import FIRST_PAUSE
from sandbox.processes import ProcessTable
from sandbox.runtime import Runtime, free_port
from sandbox.scheduler import Scheduler

NODE: Final = "sandbox"
LOCK: Final = "sandbox.lock"  # marks a directory as a sandbox's, and says by its lock whether one runs there
_RECORDS_MIB: Final = 8  # of decisions, of the agent in state/records and of admission in records
READY_SECONDS: Final = 30.0
_LONGEST_SOCKET: Final = 107  # of a unix socket's path
_SOCKETS: Final = f"kubelet/device-plugins/{MEMORY_SOCKET}"
_HTTP_SECONDS: Final = 5.0
_AGENT: Final = "from gpu_manager.cli.main import main; main()"
_OURS: Final = (
    "admission.kubeconfig",
    "admission.log",
    "agent.kubeconfig",
    "agent.log",
    "cards.yaml",
    "control.sock",
    "kubeconfig",
)
_OUR_DIRECTORIES: Final = ("bin", "cards", "cdi", "containers", "kubelet", "logs", "pages", "state")


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What a sandbox is made of. ``port`` 0 is any free one; ``scheduler`` off waits for another one;
    ``admission`` off leaves its webhooks and extender out, as where it is not installed; ``native`` is a
    build of the library and the stand-in driver, if not the installed one. ``numa`` is the kubelet's topology
    policy; with ``nvidia_resource`` the agent offers whole cards as ``nvidia.com/gpu`` too. ``front`` is the
    agent's: cards by extended resources, by ResourceClaims, or (split) the half of them by claims.
    """

    directory: Path
    profile: str = "a100x8"
    port: int = 0
    scheduler: bool = True
    admission: bool = True
    native: Path | None = None
    restart_pause: float = FIRST_PAUSE
    seed: int | None = None
    numa: NumaPolicy = NumaPolicy.NONE
    nvidia_resource: bool = False
    front: Front = Front.PLUGIN


class Sandbox:
    """Start it, use ``api``; everything it started ends with :meth:`stop`, or with this process.

    Raises:
        RequestInvalid: the profile, the port or the directory will not do.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.directory = settings.directory
        self.cards = _cards(settings.profile)
        if settings.front is Front.SPLIT and len(self.cards) < 2:
            raise RequestInvalid("--front split gives half the cards by claims: take a profile with more")
        self.native = _native(settings.native)
        self._lock = _take(self.directory)
        try:
            self.port = _port(settings.port)
            self._agent_pages = LoopbackClient(self.port, timeout=_HTTP_SECONDS)
            self._build()
        except BaseException:
            self._lock.close()
            raise
        self._away = threading.Lock()
        self._stopped = False

    def _build(self) -> None:
        settings, directory = self.settings, self.directory
        self.kubeconfig = directory / "kubeconfig"
        self.agent_log = directory / "agent.log"
        self.control = directory / "cards.yaml"
        self.processes = ProcessTable()
        self._program = find_program() if settings.admission else None
        by_claims = settings.front is not Front.PLUGIN
        self.admission = (
            AdmissionProcess(_two_ports(self.port), claims=by_claims) if self._program is not None else None
        )
        self.api = StandInApi(tokens=TOKENS, hooks=self.admission.hooks() if self.admission else ())
        seed = settings.seed if settings.seed is not None else int.from_bytes(os.urandom(4))
        self.kubelet = StandInKubelet(directory / "kubelet", seed=seed, numa=settings.numa)
        self.runtime = Runtime(
            directory,
            self.processes,
            cards=self.cards,
            native=self.native,
            programs=programs.commands(),
        )
        self._claims = ClaimScheduler(self.api, seed, classes=True) if by_claims else None
        kubelet = (
            ClaimKubelet(directory / "kubelet", directory / "cdi", self.api, self.kubelet)
            if by_claims
            else None
        )
        self._claim_kubelet = kubelet
        self._controller = (
            ClaimController(self.api, self._claims, kubelet) if self._claims and kubelet else None
        )
        self.node = NodeLoop(
            NODE,
            self.api,
            self.kubelet,
            self.runtime,
            restart_pause=settings.restart_pause,
            claims=kubelet,
        )
        extender = ExtenderClient(self.admission.extender_port) if self.admission else None
        self.scheduler = Scheduler(self.api, extender, self._claims) if settings.scheduler else None
        agent = [sys.executable, "-c", _AGENT, "run", *self._agent_arguments()]
        self.agent = KeptProcess(self.processes, "agent", agent, self.agent_log, directory)

    def _agent_arguments(self) -> list[str]:
        pairs: dict[str, object] = {
            "--node-name": NODE,
            "--kubeconfig": self.directory / "agent.kubeconfig",
            "--kubelet-dir": self.directory / "kubelet",
            "--state-dir": self.directory / "state",
            "--pages-dir": self.directory / "pages",
            "--http-address": "127.0.0.1",
            "--http-port": self.port,
            "--cards": f"simulated:{self.settings.profile}",
            "--control": self.control,
            "--device-injection": "simulated" if self.settings.front is Front.PLUGIN else "cdi",
            "--cdi-dir": self.directory / "cdi",
            "--front": self.settings.front.value,
            "--topology-manager-policy": self.settings.numa.value,
            "--record-mib": _RECORDS_MIB,
        }
        if self.native.complete:
            pairs |= {"--libraries": self.native.libraries, "--stand-in": self.native.driver}
        if self.settings.front is Front.SPLIT:
            pairs |= {"--claim-cards": len(self.cards) // 2}
        flags = ["--nvidia-resource"] if self.settings.nvidia_resource else []
        return [*(str(word) for pair in pairs.items() for word in pair), *flags]

    # Life.

    def start(self) -> Self:
        """Start everything; returns when pods can be served, or raises NodeUnready after some seconds."""
        self.prepare()
        self.agent.start()
        self.wait(self.ready, READY_SECONDS, "the agent has not registered with the kubelet")
        if self.admission is not None:
            log = self.directory / "admission.log"
            self.wait(self.admission.ready, READY_SECONDS, "the admission service does not answer", log)
        return self

    def prepare(self) -> None:
        """Start everything but the agent."""
        self.api.start()
        self.api.kubeconfig(self.kubeconfig)
        self.api.kubeconfig(self.directory / "agent.kubeconfig", AGENT_TOKEN)
        self.kubelet.start()
        self.node.start()
        if self._controller is not None:
            for one in DEVICE_CLASSES:
                self.api.create(one)
            self._controller.start()
        show_agent(self.api, NODE, self.port, self._agent_pages)
        if self.admission is not None and self._program is not None:
            config = self.api.kubeconfig(self.directory / "admission.kubeconfig", ADMISSION_TOKEN)
            self.admission.start(self.api, self.processes, self._program, self.directory, config)
        if self.scheduler is not None:
            self.scheduler.start()

    def stop(self) -> None:
        """End everything, containers included, and give the directory back. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self.node.stop()
        if self.scheduler is not None:
            self.scheduler.stop()
        if self.admission is not None:
            self.admission.stop()
        self.agent.stop()
        if self._controller is not None:
            self._controller.stop()
        if self._claim_kubelet is not None:
            self._claim_kubelet.close()
        self._agent_pages.close()
        self.processes.close()
        self.kubelet.stop()
        self.api.stop()
        self._lock.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self) -> bool:
        """True once the node can be given pods that ask for cards."""
        if self._claims is not None and not self._claims.devices(NODE):
            return False
        if self.settings.front is Front.DRA:
            return True
        node = self.api.get("nodes", NODE) or {}
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        return all(int(allocatable.get(resource, 0)) > 0 for resource in (CORE, MEMORY))

    def wait(
        self, holds: Callable[[], bool], seconds: float, otherwise: str, log: Path | None = None
    ) -> None:
        """Wait until something holds. Raises NodeUnready, with a log's last words (the agent's), if not."""
        ends = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > ends:
                raise NodeUnready(f"{otherwise} within {seconds:g} s{_last_words(log or self.agent_log)}")
            time.sleep(0.05)

    def explain(self, namespace: str, pod: str) -> str:
        """Why a pod waits, or where it is, in admission's words. Raises NodeUnready: it does not answer."""
        if self.admission is None:
            raise NodeUnready("the sandbox runs without admission")
        return self.admission.ask(f"/explain/{namespace}/{pod}", ADMIN_TOKEN)

    # The agent, by HTTP.

    @property
    def metrics_url(self) -> str:
        """Where the agent serves its metrics."""
        return f"http://127.0.0.1:{self.port}/metric"

    def ask(self, path: str, accept: str = "*/*") -> str:
        """GET from the agent. Raises NodeUnready while it does not answer."""
        headers = {"Accept": accept, "Authorization": f"Bearer {ADMIN_TOKEN}"}
        return self._agent_pages.ask("GET", path, headers=headers)[1].decode("utf-8", "replace")

    def graph(self) -> Mapping[str, Any]:
        """The agent's own picture: cards and who holds what of them. Raises NodeUnready."""
        try:
            picture: Mapping[str, Any] = json.loads(self.ask("/graph", "application/json"))
        except ValueError:
            raise NodeUnready("the agent's /graph is no JSON") from None
        return picture

    # Faults.

    def set_card(self, index: int, order: Mapping[str, Any]) -> None:
        """Change a card: ``healthy``, ``reason``, ``error``, ``removed``. Raises RequestInvalid."""
        if not 0 <= index < len(self.cards):
            raise RequestInvalid(f"there is no card {index}: there are 0 to {len(self.cards) - 1}")
        orders = read_control(self.control)
        orders[str(index)] = dict(order)
        write_control(self.control, orders)

    def take_api_away(self, seconds: float) -> None:
        """The API server refuses connections for so long; returns at once."""
        if not self._away.acquire(blocking=False):
            raise RequestInvalid("the API server is away already")

        def come_back() -> None:
            try:
                threading.Event().wait(seconds)
                if not self._stopped:
                    self.api.start()
            finally:
                self._away.release()

        self.api.stop()
        threads.once("api-comes-back", come_back).start()


def default_directory() -> Path:
    """Where a sandbox lives unless told otherwise: the same for every terminal of a user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "gpu-manager-sandbox"
    return Path(tempfile.gettempdir()) / f"gpu-manager-sandbox-{os.getuid()}"


def _cards(profile: str) -> Sequence[Card]:
    if Path(profile).suffix == ".txt":
        found = SimulatedCards.from_topology(Path(profile), node=NODE)
    else:
        found = SimulatedCards.named(profile, node=NODE)
    return tuple(state.card for state in found.list())


def _native(place: Path | None) -> NativeLibraries:
    if place is None:
        return find_native_libraries()
    found = native_in(place.absolute())
    if not found.complete:
        raise RequestInvalid(
            f"--native {place}: it needs libvcuda.so, sandbox/libcuda.so.1 and "
            "standin/<version>/libcuda.so.1, as cmake --install lays them out"
        )
    return found


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return f"; {log} ends with: {lines[-1]}" if lines else f"; {log} is empty"


def _port(wanted: int) -> int:
    port = free_port(wanted)
    if port is None:
        raise RequestInvalid(f"--port {wanted}: another program listens there; take another, or 0 for any")
    return port


def _two_ports(taken: int) -> tuple[int, int]:
    """Two free ones beside the agent's, which nobody listens at yet."""
    found: list[int] = []
    while len(found) < 2:
        port = _port(0)
        if port not in (taken, *found):
            found.append(port)
    return found[0], found[1]


def _take(directory: Path) -> IO[str]:
    """Make the directory ours and empty, and hold its lock. Raises RequestInvalid."""
    longest = len(os.fsencode(directory / _SOCKETS))
    if longest > _LONGEST_SOCKET:
        raise RequestInvalid(
            f"{directory} is {longest - _LONGEST_SOCKET} characters too long: sockets' paths in it must have "
            f"at most {_LONGEST_SOCKET}; take a shorter one with --directory"
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = directory.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
            raise RequestInvalid(f"{directory} is not a directory of yours: name another with --directory")
        if not (directory / LOCK).exists() and any(directory.iterdir()):
            raise RequestInvalid(f"{directory} holds other files: name an empty directory with --directory")
        lock = (directory / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise RequestInvalid(f"{directory}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RequestInvalid(
            f"a sandbox runs in {directory} already: apply to it, or name another directory with --directory"
        ) from None
    for name in _OURS:
        (directory / name).unlink(missing_ok=True)
    for name in _OUR_DIRECTORIES:
        shutil.rmtree(directory / name, ignore_errors=True)
    return lock
