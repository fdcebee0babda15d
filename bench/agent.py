"""What the agent costs its node: a scrape, an idle minute, its memory; and the policy for joined cards.

The agent is a process of its own; its CPU time and memory are the kernel's figures. Usage is sampled at 1 Hz
all the while, as on any node, and in every container a process has registered that does nothing.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.rows import Row, in_memory, percentile
from bench.world import World
from gpu_manager.adapters import profiles
from gpu_manager.adapters.control_pages import tenant_files
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_past import NodePast
from gpu_manager.domain.cluster.usage_json import UsedShare
from gpu_manager.domain.placement.card_sets import best_set, fragment
from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology, parse_topology
from sandbox.kubelet import AdmissionResult
from vcuda.page.usage import USAGE_HEAD_SIZE

CONTAINERS, MANY = 100, 800  # on 8 cards: a usual node, and every core of it given to somebody else
SCRAPES = 50
SETTLE_SECONDS = 5.0  # Events and annotations of the last admissions leave first
LARGEST = 16  # cards of a node
REPEATS = 5
MATRICES = Path(__file__).resolve().parents[2] / "shared/data/topologies"
TICKS = os.sysconf("SC_CLK_TCK")
# As vcuda_page.h has it; a slot begins with state, pid, pid namespace, start time, nonce, heartbeat.
SLOT_HIGH_OFFSET, SLOT_LIVE = 32, 1
SLOT = struct.Struct("<IIQQQQ")


class Idlers:
    """Containers that were granted and started, each with one registered process that does nothing."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self._world, self._stack = world, stack
        self.count = 0

    def add(self, pods: int, containers: int) -> None:
        """So many pods with so many containers each."""
        for _ in range(pods):
            names = [f"c{n}" for n in range(containers)]
            obj = self._world.bind(self._world.create([(name, 1, 1) for name in names]), None)
            result = self._world.kubelet.admit(obj)
            if not result.admitted:
                raise RuntimeError(f"an idle pod was not admitted: {result.message}")
            for name in names:
                self._world.kubelet.start_container(obj["metadata"]["uid"], name)
                self._register(result, name)
            self.count += containers

    def _register(self, result: AdmissionResult, container: str) -> None:
        """What the library does in a process: a slot, and the lock on its byte that says it lives."""
        mounts = {m.container_path: m.host_path for m in result.containers[container].mounts}
        usage = os.open(mounts["/etc/vcuda/usage"], os.O_RDWR | os.O_CLOEXEC)
        self._stack.callback(os.close, usage)
        self._stack.enter_context(tenant_files.locked(usage, 0, 1))
        os.pwrite(usage, SLOT.pack(SLOT_LIVE, 7, 1, 1, 1, time.monotonic_ns()), USAGE_HEAD_SIZE)
        os.pwrite(usage, struct.pack("<I", 1), SLOT_HIGH_OFFSET)


PARTS = ("rest", "scrape", "history", "links")


def rows(*, full: bool, only: str = "") -> list[Row]:
    """The group's table, or one part of it."""
    parts = (only,) if only else PARTS
    found: list[Row] = []
    if "rest" in parts or "scrape" in parts:
        found += _node(parts, full=full)
    if "history" in parts:
        found.append(history(full=full))
    if "links" in parts:
        found.append(link_policy(full=full))
    return found


def _node(parts: Sequence[str], *, full: bool) -> list[Row]:
    """An agent with idle containers: what it takes at rest, and what a scrape takes."""
    seconds = 60 if full else 20
    found: list[Row] = []
    with ExitStack() as stack:
        pages = stack.enter_context(in_memory()) / "pages"
        world = stack.enter_context(World(profile="a100x8", seed=11, reclaim_seconds=30.0, pages=pages))
        if world.agent is None:
            raise RuntimeError("the agent does not run")
        agent = world.agent.pid
        idlers = Idlers(world, stack)
        idlers.add(CONTAINERS // 2, 2)
        time.sleep(SETTLE_SECONDS)
        if "rest" in parts:
            found += _rest_rows(*_at_rest(agent, pages, world.profile, seconds), seconds, full=full)
        if "scrape" in parts:
            found += _scrape_rows(agent, world, idlers, full=full)
    return found


def _rest_rows(
    cpu: tuple[float, float], ratio: float, loop: float, seconds: float, *, full: bool
) -> list[Row]:
    return [
        Row(
            "idle_cpu_percent",
            round(sum(cpu) / seconds * 100, 2),
            "%",
            "≤ 0.5",
            full=full,
            note=f"of one core, over {seconds} s with {CONTAINERS} idle containers: user "
            f"{cpu[0] / seconds * 100:.2f}, system {cpu[1] / seconds * 100:.2f}",
        ),
        Row(
            "idle_cpu_ratio",
            round(ratio, 2),
            "times",
            "≤ 2",
            full=full,
            note="the agent's processor time over that of a bare loop in Python that reads and decodes the "
            f"same {CONTAINERS} pages and asks the same of the cards once a second, side by side; the loop "
            f"takes {loop:.2f} % of one core",
        ),
    ]


def _scrape_rows(agent: int, world: World, idlers: Idlers, *, full: bool) -> list[Row]:
    idle, peak = _mebibytes(agent, "VmRSS"), _mebibytes(agent, "VmHWM")
    few = _scrapes(world, CONTAINERS)
    idlers.add((MANY - CONTAINERS) // 10, 10)
    time.sleep(SETTLE_SECONDS)
    many = _scrapes(world, MANY)
    most = _mebibytes(agent, "VmRSS")
    return [
        Row(
            "scrape_ms",
            round(percentile(few, 50) * 1e3, 2),
            "ms",
            "≤ 20",
            full=full,
            note=f"median of {SCRAPES} over HTTP with {CONTAINERS} containers on 8 cards, p99 "
            f"{percentile(few, 99) * 1e3:.1f}; with {MANY} containers {percentile(many, 50) * 1e3:.1f}, p99 "
            f"{percentile(many, 99) * 1e3:.1f}",
        ),
        Row(
            "rss_mib",
            round(idle, 1),
            "MiB",
            "≤ 120",
            full=full,
            note=f"with {CONTAINERS} idle containers; at most {peak:.0f} before; with {MANY}, scraped, "
            f"{most:.0f}",
        ),
    ]


def _scrapes(world: World, containers: int) -> list[float]:
    """Seconds of each scrape; every one must show every container."""
    taken = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        text = world.get("/metric")
        taken.append(time.perf_counter() - started)
        shown = text.count("\nvcuda_container_memory_limit_bytes{")
        if shown != containers:
            raise RuntimeError(f"a scrape shows {shown} containers of {containers}")
    return taken


def _at_rest(
    agent: int, pages: Path, profile: str, seconds: float
) -> tuple[tuple[float, float], float, float]:
    """What the agent takes in so long (user and system seconds), how many times what the bare loop takes
    meanwhile, and the loop's percent of a core.
    """
    command = [sys.executable, "-m", "bench.idle_loop", str(pages), profile]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loop:
        try:
            if loop.stdout is None or int(loop.stdout.readline()) != CONTAINERS:
                raise RuntimeError(f"the bare loop does not read {CONTAINERS} pages")
            before, ticks = (_taken(agent), _taken(loop.pid)), _times(agent)
            time.sleep(seconds)
            agents, loops = _taken(agent) - before[0], _taken(loop.pid) - before[1]
            after = _times(agent)
        finally:
            loop.terminate()
    cpu = (after[0] - ticks[0]) / TICKS, (after[1] - ticks[1]) / TICKS
    return cpu, agents / loops, loops / seconds * 100


def _taken(pid: int) -> float:
    """Seconds of processor time of a process, all threads, in the kernel's own resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def _times(pid: int) -> tuple[int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])  # utime and stime, fields 14 and 15 of proc_pid_stat(5)


def _mebibytes(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) / 1024


def history(*, full: bool) -> Row:
    """What the memory of ten minutes and of the hour takes, of more containers than it has room for."""
    usage = {
        (f"uid-{n}", "main", CardUuid(f"GPU-{n % 8}")): UsedShare(20.0, 1 << 30, 0.0, "team", f"pod-{n}")
        for n in range(MANY)
    }
    tracemalloc.start()
    try:
        past = NodePast("n1")
        for minute in range(61 if full else 11):
            for second in range(60):
                past.record(60.0 * minute + second, usage)
        past.trends(60.0 * minute + second)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    note = f"{MANY} containers, of which {past.left_out} have no room"
    return Row("history_mib", round(taken / 2**20, 2), "MiB", "≤ 4", full=full, note=note)


# --- the policy for joined cards ------------------------------------------------------------------


def link_policy(*, full: bool) -> Row:
    """The slowest question of all: over every machine, set size and a sample of free sets of each size."""
    recorded, made = _recorded(), 30 if full else 8
    chance = random.Random(3)
    worst, where, first = 0.0, "", 0.0
    for name, topology in (*recorded, *((f"random {n}", _random(chance)) for n in range(made))):
        started = time.perf_counter()
        best_set(topology, frozenset(range(LARGEST)), 1)
        first = max(first, time.perf_counter() - started)
        for free in _free_sets(chance, 20 if full else 4):
            for k, seconds in _questions(topology, free):
                if seconds > worst:
                    worst, where = seconds, f"{k} of {len(free)} free on {name}"
    return Row(
        "link_policy_ms",
        round(worst * 1e3, 3),
        "ms",
        "≤ 1",
        full=full,
        note=f"slowest: {where}; {len(recorded)} machines tiled to {LARGEST} cards and {made} random ones, "
        f"each question the best of {REPEATS}; the first on a machine takes {first * 1e3:.0f} ms more, once",
    )


def _questions(topology: Topology, free: frozenset[int]) -> Iterator[tuple[str, float]]:
    for k in range(1, len(free) + 1):
        yield f"link({k})", _best_of(partial(best_set, topology, free, k))
    yield "fragment", _best_of(partial(fragment, topology, free))


def _best_of(question: Callable[[], object]) -> float:
    """Seconds, without what else the machine does."""
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        question()
        taken.append(time.perf_counter() - started)
    return min(taken)


def _free_sets(chance: random.Random, each: int) -> Iterator[frozenset[int]]:
    for size in range(1, LARGEST + 1):
        for _ in range(each if size < LARGEST else 1):
            yield frozenset(chance.sample(range(LARGEST), size))


def _recorded() -> list[tuple[str, Topology]]:
    """The shipped profiles, and the matrices recorded on real machines where they lie beside this tree."""
    found = [(name, profiles.load(name).topology) for name in profiles.names()]
    found += [
        (path.stem, parse_topology(path.read_text(encoding="utf-8")).topology)
        for path in sorted(MATRICES.glob("*.txt"))
    ]
    return [(name, _tiled(topology)) for name, topology in found]


def _tiled(topology: Topology) -> Topology:
    """The machine beside itself until there are enough cards, joined as NUMA nodes are."""
    size = topology.size
    far = Link(LinkKind.SYS)
    return Topology(
        tuple(
            tuple(
                topology.link(i % size, j % size) if i // size == j // size else far for j in range(LARGEST)
            )
            for i in range(LARGEST)
        )
    )


def _random(chance: random.Random) -> Topology:
    """Any link anywhere: what no machine has, and the hardest."""
    kinds = [Link(kind) for kind in LinkKind if kind not in (LinkKind.SELF, LinkKind.NVLINK)]
    kinds += [Link(LinkKind.NVLINK, lanes) for lanes in (1, 2, 4, 6, 12, 18)]
    links = [[SELF] * LARGEST for _ in range(LARGEST)]
    for i, j in itertools.combinations(range(LARGEST), 2):
        links[i][j] = links[j][i] = chance.choice(kinds)
    return Topology(tuple(map(tuple, links)))
