"""What an admission waits for: Allocate beside a bare fsync, and GetPreferredAllocation on large cards.

Both are timed on the kubelet's side of the sockets, around the gRPC call to an agent that is a process of
its own, on a node of eight 141 GiB cards with 100 other active pods.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bench.rows import Row, file_system, in_memory, percentile
from bench.world import World
from gpu_manager.domain.contract import MEMORY
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.rules.pod_request import judged_request
from sandbox.kubelet import Step

UNITS = 564  # of 256 MiB: 141 GiB
CARDS = 8
BYSTANDERS = 100  # other pods of the node: every listing shows them
MOST = 60  # pods at once; mostly the cards are full before
WARM_UP = 20
RECLAIM_SECONDS = 30.0  # the agent's default


class Stopwatch:
    """Times the calls to the plugin from the kubelet's side, and a bare fsync after each Allocate.

    The bare one comes second, when the journal has little left to write: the difference is not flattered.
    """

    def __init__(self, world: World) -> None:
        self.allocate: list[float] = []
        self.bare: list[float] = []
        self.preferred: list[tuple[int, float]] = []
        self.paused = False
        self._ledger = world.root / "state/ledger"
        self._file = os.open(world.root / "state/bare", os.O_WRONLY | os.O_CREAT, 0o600)
        self._started = 0.0
        world.kubelet.hooks.before = self._before
        world.kubelet.hooks.after = self._after

    def close(self) -> None:
        os.close(self._file)

    def _before(self, step: Step) -> None:
        self._started = time.perf_counter()

    def _after(self, step: Step) -> None:
        seconds = time.perf_counter() - self._started
        if self.paused:
            return
        if step.name == "GetPreferredAllocation" and step.resource == MEMORY:
            self.preferred.append((len(step.ids), seconds))
        elif step.name == "Allocate":
            self.allocate.append(seconds)
            self.bare.append(self._bare_fsync())

    def _bare_fsync(self) -> float:
        """As many bytes as the books have now, in the file system that they are in."""
        newest = max(self._ledger.glob("ledger.?"), key=lambda path: path.stat().st_mtime_ns)
        data = newest.read_bytes().rstrip(b"\0")
        started = time.perf_counter()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, data, 0)
        os.fsync(self._file)
        return time.perf_counter() - started


class Mix:
    """Pods of many shapes come and go; an extender has placed them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(7)
        self._ledger = Ledger((s.card for s in world.cards), world.unit)
        self._alive: deque[dict[str, Any]] = deque()
        self.counts: Counter[str] = Counter()

    def bystanders(self) -> None:
        """Pods that ask for no share of a card, admitted and active."""
        for _ in range(BYSTANDERS):
            pod = self._world.bind(self._world.create([("c", 0, 0)]), None)
            self._world.kubelet.admit(pod)

    def turn(self) -> None:
        """One pod more, and as many fewer as make room."""
        shape = _shape(self._random)
        while len(self._alive) >= MOST or not self._admit(shape):
            self.leave()

    def leave(self) -> None:
        """The oldest, or sometimes any other, goes."""
        if self._random.random() < 0.3:
            self._alive.rotate(-self._random.randrange(len(self._alive)))
        obj = self._alive.popleft()
        self._world.api.delete("pods", obj["metadata"]["name"], grace=0)
        self._world.kubelet.delete(obj["metadata"]["uid"])
        self._ledger.release(PodUid(obj["metadata"]["uid"]))

    def clear(self) -> None:
        """Nobody is left but the bystanders."""
        while self._alive:
            self.leave()

    def _admit(self, shape: dict[str, Any]) -> bool:
        made = self._world.create(**shape)
        pod = parse_pod(made)
        try:
            chosen = place(
                judged_request(pod, self._world.unit), self._world.cards, self._world.topology, self._ledger
            )
        except DoesNotFit:
            self._world.api.delete("pods", pod.name, grace=0)
            return False
        self._ledger.commit(
            Allocation(pod.uid, c.name, c.kind, n, chosen[c.name])
            for n, c in enumerate(pod.containers)
            if c.name in chosen
        )
        obj = self._world.bind(made, chosen)
        result = self._world.kubelet.admit(obj)
        self._alive.append(obj)
        self.counts["pods"] += 1
        if not result.admitted:
            self.counts["rejected"] += 1
            print(f"{pod.key}: {result.message}", file=sys.stderr)
            self._alive.rotate(1)
            self.leave()
            return True
        for container in pod.containers:
            if container.asks:
                self._world.kubelet.start_container(pod.uid, container.name)
        return True


def _shape(chance: random.Random) -> dict[str, Any]:
    """Mostly one container on a part of a card; some have two, an init container, whole cards."""
    core, memory = chance.choice((10, 10, 20, 30, 50)), chance.choice((20, 40, 56, 112))
    kind = chance.random()
    if kind < 0.7:
        return {"containers": [("train", core, memory)]}
    if kind < 0.8:
        return {"containers": [("a", core, memory), ("b", 10, 20)]}
    if kind < 0.9:
        return {"containers": [("train", core, memory)], "init": [("fetch", 10, 20)]}
    return {"containers": [("train", chance.choice((100, 200)), 0)]}


def rows(*, full: bool) -> list[Row]:
    """Run it."""
    wanted, calls = (20_000, 2_000) if full else (2_000, 300)
    with in_memory() as place, _world(place) as world:
        watch, mix = Stopwatch(world), Mix(world)
        mix.bystanders()
        watch.paused = True
        for _ in range(WARM_UP):
            mix.turn()
        watch.paused = False
        started = time.monotonic()
        while len(watch.allocate) < wanted:
            mix.turn()
        seconds = time.monotonic() - started
        allocated, bare = watch.allocate[:], watch.bare[:]
        watch.preferred.clear()
        while sum(offered == UNITS * CARDS for offered, _ in watch.preferred) < calls:
            mix.clear()
            mix.turn()
        watch.close()
        preferred = [seconds for offered, seconds in watch.preferred if offered == UNITS * CARDS]
        disk = file_system(world.root)
    return [
        _allocate_row(allocated, bare, mix.counts, seconds, disk, full=full),
        Row(
            "preferred_p99_ms",
            round(percentile(preferred, 99) * 1e3, 2),
            "ms",
            "≤ 50",
            full=full,
            note=f"median {percentile(preferred, 50) * 1e3:.1f}; {len(preferred)} calls, {CARDS} * {UNITS} "
            f"ids offered, {BYSTANDERS} other active pods, with the listing that each call asks for",
        ),
    ]


def _world(place: Path) -> World:
    """The shipped H200 node, its cards a little larger: as many memory ids as the largest in sight."""
    shipped = yaml.safe_load(
        (files("gpu_manager.adapters.profiles") / "h200x8.yaml").read_text(encoding="utf-8")
    )
    shipped["cards"][0] |= {"count": CARDS, "memory": f"{UNITS * 256}Mi", "reserved": 0}
    profile = place / "cards.yaml"
    profile.write_text(yaml.safe_dump(shipped), encoding="utf-8")
    return World(profile=str(profile), seed=7, reclaim_seconds=RECLAIM_SECONDS, pages=place / "pages")


def _allocate_row(
    allocated: Sequence[float],
    bare: Sequence[float],
    counts: Counter[str],
    seconds: float,
    disk: str,
    *,
    full: bool,
) -> Row:
    ours, fsync = percentile(allocated, 99) * 1e3, percentile(bare, 99) * 1e3
    return Row(
        "allocate_p99_over_fsync_ms",
        round(ours - fsync, 2),
        "ms",
        "≤ 3",
        baseline=round(fsync, 2),
        full=full,
        note=f"p99 {ours:.2f} beside {fsync:.2f} of the bare fsync; medians "
        f"{percentile(allocated, 50) * 1e3:.2f} and {percentile(bare, 50) * 1e3:.2f}; {len(allocated)} calls "
        f"of {counts['pods']} pods ({counts['rejected']} rejected), {seconds:.0f} s; {disk}",
    )
