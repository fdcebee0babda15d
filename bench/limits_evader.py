"""How soon is a container named that gets round its limits? Hostile processes, from their start to the Event.

The agent, the pages, the API server's Events and NVML's figures are as on a node: the agent reads them from
the stand-in driver, on which the processes run. What cannot be had here is a container: a process's cgroup is
a recorded file beside its real /proc, and each container is a directory with its own pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.rows import Row
from bench.world import NODE, World
from gpu_manager.adapters.driver_files.delivery import NativeLibraries, find_native_libraries
from vcuda.page.limits import read_limits

BAR = "≤ 5"
LIMIT_UNITS = 2  # of 256 MiB: what ended pods held is given back after minutes only, so all must fit
CONTEXT = 64 << 20  # of the modelled card
GIVE_UP_SECONDS = 15.0
QUIET_SECONDS = 5.0
_INITIAL_NAMESPACE = "pid:[4026531836]"

# Takes a slot of the page as the library would, so that only figures can tell; then runs past the library.
_FORGE = """
import fcntl, os, struct, sys
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE
usage = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(usage, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 900, 1, 0))
os.pwrite(usage, struct.pack("<II", 1, os.getpid()), USAGE_HEAD_SIZE + 900 * SLOT_SIZE)
os.pwrite(usage, struct.pack("<I", 901), 32)  # slot_high
os.set_inheritable(usage, True)
os.execv(sys.argv[2], sys.argv[2:])
"""
_TRUNCATE = "import os, sys, time; os.truncate(sys.argv[1], 0); time.sleep(60)"


class NvmlWorld(World):
    """The world of the other groups, with an agent that asks the stand-in driver's NVML."""

    def __init__(self, native: NativeLibraries) -> None:
        super().__init__()
        self.native = native
        self.proc = self.root / "proc"
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/pid").symlink_to(_INITIAL_NAMESPACE)

    def start_agent(self) -> None:
        """As the base class, but for where cards and processes are read."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "bench.limits_evader", str(self.root), self.api.url],
                stdout=log,
                stderr=log,
                env=self.environment(),
            )
        self.await_devices()
        self.port = self._find_port()

    def environment(self) -> dict[str, str]:
        """What a process needs to find the modelled cards: two, with the driver itself first."""
        (self.root / "cards").mkdir(exist_ok=True)
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.native.driver),
            "VCUDA_STANDIN_STATE": str(self.root / "cards"),
            "VCUDA_STANDIN_MODEL": "small",
            "VCUDA_STANDIN_CARDS": "2",
        }


@dataclass
class Container:
    """A running pod's container: where it is, and how processes are started in it."""

    world: NvmlWorld
    name: str
    uid: str
    runtime_id: str
    root: Path
    card: int

    def process(self, *command: str, honest: bool = False) -> subprocess.Popen[bytes]:
        """Start a process in it; an honest one finds the library where the driver's name is."""
        env = self.world.environment() | {"VCUDA_ROOT": str(self.root)}
        if honest:
            env["LD_LIBRARY_PATH"] = str(self.world.native.fronts)
        started = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        here = self.world.proc / str(started.pid)
        here.mkdir()
        slice_ = f"kubepods-pod{self.uid.replace('-', '_')}.slice"
        (here / "cgroup").write_text(f"0::/kubepods.slice/{slice_}/cri-containerd-{self.runtime_id}.scope\n")
        for name in ("stat", "status", "task"):
            (here / name).symlink_to(f"/proc/{started.pid}/{name}")
        return started

    @property
    def usage(self) -> str:
        """The page that it writes."""
        return str(self.root / "etc/vcuda/usage")


class Stage:
    """The world, an honest neighbour, and one evader after the other."""

    def __init__(self, native: NativeLibraries) -> None:
        self.world = NvmlWorld(native)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.world.__enter__()
        self.client = str(self.world.native.client)
        self.neighbour = self.container("neighbour")
        self._begun = time.monotonic()
        self.start(
            self.neighbour, self.client, "alloc-to-limit", "--most", "256", "--hold", "600", honest=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for process in self._running:
            process.kill()
            process.wait()
        self.world.__exit__(kind, error, trace)

    def start(self, container: Container, *command: str, honest: bool = False) -> None:
        self._running.append(container.process(*command, honest=honest))

    def end(self) -> None:
        """End all but the neighbour's."""
        for process in self._running[1:]:
            process.kill()
            process.wait()
        del self._running[1:]

    def container(self, name: str) -> Container:
        """A pod with one container of a hundredth of a card, admitted and started."""
        world = self.world
        pod = world.create([("c", 1, LIMIT_UNITS)], name=name)
        world.api.bind(name, NODE)
        bound = world.api.get("pods", name) or {}
        result = world.kubelet.admit(bound)
        if not result.admitted:
            raise RuntimeError(f"pod {name} was not admitted: {result.message}")
        uid = pod["metadata"]["uid"]
        world.kubelet.start_container(uid, "c")
        status = world.kubelet.pod(uid)["status"]
        world.api.patch("pods", name, {"status": status}, subresource="status")
        mounts = {m.container_path: Path(m.host_path) for m in result.containers["c"].mounts}
        root = world.root / "containers" / name
        (root / "etc/vcuda").mkdir(parents=True)
        (root / "usr/local/vcuda/real").mkdir(parents=True)
        for file in ("limits", "usage"):
            os.link(mounts[f"/etc/vcuda/{file}"], root / "etc/vcuda" / file)
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (root / "usr/local/vcuda/real" / library).symlink_to(Path(str(world.native.driver)) / library)
        runtime_id = status["containerStatuses"][0]["containerID"].rpartition("://")[2]
        (held,) = world.limits(result, "c")
        card = next(s.card.index for s in world.cards if s.card.uuid == held)
        return Container(world, name, uid, runtime_id, root, card)

    def check_neighbour(self) -> None:
        """That nobody named it says something only while it lives, registered, and the driver shows it."""
        text = self.world.get("/metrics")
        used = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("vcuda_container_memory_used_bytes") and 'pod="neighbour"' in line
        ]
        if self._running[0].poll() is not None or not used or used[0] < 256 << 20:
            raise RuntimeError(f"the honest neighbour does not hold what it should: {used}")

    def seconds_until_counted(self) -> float | None:
        """From the neighbour's start until its context, which nobody asked for, counts for its limit."""
        path = self.neighbour.root / "etc/vcuda/limits"
        while read_limits(path.read_bytes()).cards[0].host_adjust != CONTEXT:
            if time.monotonic() - self._begun > GIVE_UP_SECONDS:
                return None
            time.sleep(0.02)
        return time.monotonic() - self._begun

    def named(self, pod: str, word: str) -> bool:
        """True once an Event of the pod says so."""
        return any(
            e["reason"] == "VcudaEvader" and e["involvedObject"]["name"] == pod and word in e["message"]
            for e in self.world.api.list("events")
        )

    def seconds_until_named(self, way: str, number: int) -> float | None:
        """From the start of an evader's process to the Event that names it for it."""
        evade, word = WAYS[way]
        evader = self.container(f"{way}-{number}")
        begin = time.monotonic()
        evade(self, evader)
        while not self.named(evader.name, word):
            if time.monotonic() - begin > GIVE_UP_SECONDS:
                return None
            time.sleep(0.02)
        took = time.monotonic() - begin
        self.end()
        self.world.api.delete("pods", evader.name, grace=0)
        self.world.kubelet.delete(evader.uid, force=True)
        return took


def _own_driver(stage: Stage, it: Container) -> None:
    stage.start(it, stage.client, "alloc-to-limit", "--most", "64", "--hold", "60", "--card", str(it.card))


def _foreign_card(stage: Stage, it: Container) -> None:
    other = str(1 - it.card)
    stage.start(it, stage.client, "alloc-to-limit", "--most", "64", "--hold", "60", "--card", other)


def _forged_slot(stage: Stage, it: Container) -> None:
    arguments = ("alloc-to-limit", "--most", "4096", "--hold", "60", "--card", str(it.card))
    stage.start(it, sys.executable, "-c", _FORGE, it.usage, stage.client, *arguments)


def _lies_about_time(stage: Stage, it: Container) -> None:
    arguments = ("spin", "--us", "2000", "--seconds", "60", "--mode", "stream", "--card", str(it.card))
    stage.start(it, sys.executable, "-c", _FORGE, it.usage, stage.client, *arguments)


def _truncates(stage: Stage, it: Container) -> None:
    stage.start(it, sys.executable, "-c", _TRUNCATE, it.usage)


# What it does, and a word of the sentence that it must be named with.
WAYS: dict[str, tuple[Callable[[Stage, Container], None], str]] = {
    "own-driver": (_own_driver, "past the library"),
    "foreign-card": (_foreign_card, "was not given"),
    "forged-slot": (_forged_slot, "past the limit"),
    "lies-about-time": (_lies_about_time, "of the time by the driver's count"),
    "truncates-page": (_truncates, "pages were changed"),
}


def rows(*, full: bool) -> Iterable[Row]:
    """``evader_named_s``: the longest of all ways; how often an honest neighbour was named; and how soon
    ``memory_counted_s`` what it holds beside its account.
    """
    native = find_native_libraries()
    if None in (native.fronts, native.driver, native.client):
        reason = "this build of the package has no stand-in driver: build it with a C compiler"
        return [
            Row(name, None, "s", BAR, full=full, note=reason)
            for name in ("evader_named_s", "memory_counted_s")
        ]
    found: dict[str, list[float | None]] = {way: [] for way in WAYS}
    with Stage(native) as stage:
        counted = stage.seconds_until_counted()
        for number in range(5 if full else 1):
            for way in WAYS:
                found[way].append(stage.seconds_until_named(way, number))
        time.sleep(QUIET_SECONDS)
        stage.check_neighbour()
        false = sum(
            e["involvedObject"]["name"] == stage.neighbour.name and e["reason"] == "VcudaEvader"
            for e in stage.world.api.list("events")
        )
    longest = {way: max(GIVE_UP_SECONDS if s is None else s for s in times) for way, times in found.items()}
    note = "stand-in driver, real agent, pages and Events; cgroup files recorded; longest of each: "
    note += ", ".join(f"{way} {seconds:.1f}" for way, seconds in longest.items())
    return [
        Row("evader_named_s", round(max(longest.values()), 2), "s", BAR, full=full, note=note),
        Row("evader_false_names", false, "", "= 0", full=full, note="an honest neighbour beside all of them"),
        Row(
            "memory_counted_s",
            round(GIVE_UP_SECONDS if counted is None else counted, 2),
            "s",
            BAR,
            full=full,
            note="from a process's start until its context, which nobody asked for, counts against its limit",
        ),
    ]


def _agent(root: Path, api_url: str) -> None:
    from gpu_manager.agent.composition import main  # noqa: PLC0415  # the bench itself needs none of it
    from gpu_manager.agent.config import Config  # noqa: PLC0415  # as above
    from gpu_manager.cli.run import configure_log  # noqa: PLC0415  # as above

    configure_log(os.environ.get("BENCH_LOG_LEVEL", "info"))
    settings: dict[str, Any] = {
        "node": NODE,
        "api_url": api_url,
        "device_plugins": root / "kubelet/device-plugins",
        "pod_resources": root / "kubelet/pod-resources",
        "state": root / "state",
        "pages": root / "pages",
        "http_address": "127.0.0.1",
        "http_port": 0,
        "injection": "simulated",
        "proc": root / "proc",
        "reclaim_seconds": 1.0,
    }
    main(Config(**settings))


if __name__ == "__main__":
    _agent(Path(sys.argv[1]), sys.argv[2])
