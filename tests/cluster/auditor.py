"""Compares what five books say of each container: spec, annotation, ledger, checkpoint, limits in force.

The last is read where it counts: the page that the container's own process finds at its path. A container that
was resized keeps the ids and the checkpoint's copy of its spec; ledger and page have its new size.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_manager.domain.contract import ALLOCATION, CARDS_ENV, CORE, LIMITS_PATH, MEMORY, RESIZED
from gpu_manager.domain.resources import DEFAULT_UNIT
from tests.cluster import decoding, layout, processes
from tests.cluster.cluster import Cluster
from tests.cluster.decoding import Shares


@dataclass(frozen=True, slots=True)
class Held:
    """A container that should hold a share, from the API."""

    pod: str
    uid: str
    name: str
    cores: int
    units: int
    container_id: str
    annotation: Shares | None
    answered: tuple[int, int] | None = None  # cores and bytes that the scheduler has resized it to

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"

    @property
    def size(self) -> tuple[int, int]:
        """Cores and bytes that it has by now."""
        return self.answered or (self.cores, self.units * DEFAULT_UNIT)


@dataclass(frozen=True, slots=True)
class Running:
    """A container with a share that has processes, whether the API knows its pod or not."""

    pod: str  # UID
    container_id: str
    process: int
    began: str  # ticks since boot: a process of this number that began then is this process
    shares: Shares

    def alive(self) -> bool:
        """True if the process has not ended."""
        return _began(self.process) == self.began


@dataclass(frozen=True, slots=True)
class Books:
    """The agent's ledger and the kubelet's checkpoint, as they were on disk."""

    rows: Sequence[Mapping[str, Any]]
    checkpoint: Mapping[tuple[str, str, str], tuple[frozenset[str], str | None]]

    @classmethod
    def of(cls, cluster: Cluster) -> Books:
        """As they are now."""
        text = _ledger(cluster)
        return cls(list(json.loads(text)["allocations"]) if text else [], checkpoint_of(cluster))

    def row(self, one: Held) -> Mapping[str, Any] | None:
        """What the ledger has of a container."""
        return next((r for r in self.rows if (r["pod"], r["container"]) == (one.uid, one.name)), None)

    def shares(self, one: Held) -> Shares | None:
        """Its shares by the ledger."""
        row = self.row(one)
        return _shares(row) if row is not None else None


def audit(cluster: Cluster, *, leaks: bool = False) -> list[str]:
    """Every disagreement, in words; empty is good. Ask when nothing is being admitted or removed.

    ``leaks`` asks too for what nobody holds any more; ``Periods.given_back_seconds`` says how long that takes.
    """
    held, books = list(containers(cluster)), Books.of(cluster)
    found: list[str] = []
    for one in held:
        found += compare(one, books)
        found += filter(None, [unwritten(one, books)])
    found += overcommitted(cluster, books)
    if not leaks:
        return found
    living = {one.uid for one in held}
    found += [
        f"ledger: {r['container']} of the dead pod {r['pod']}" for r in books.rows if r["pod"] not in living
    ]
    directories = {row.get("dir") for row in books.rows}
    present = {p.name for p in (cluster.scratch / "agent/tenants").glob("*")}
    found += [f"orphan directory {name}" for name in sorted(present - directories)]
    return found


def settled(cluster: Cluster, seconds: float = 30, *, leaks: bool = False) -> None:
    """Wait until the books agree; raises AssertionError with what they disagree about."""
    last: list[str] = []

    def agree() -> bool:
        last[:] = audit(cluster, leaks=leaks)
        return not last

    try:
        cluster.wait(agree, seconds, "the books do not agree")
    except TimeoutError:
        raise AssertionError("\n".join(last)) from None


def containers(cluster: Cluster) -> Iterator[Held]:
    """App containers and sidecars that run on the real node and ask for a share."""
    for pod in cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={layout.NODE}")["items"]:
        meta, status = pod["metadata"], pod["status"]
        if status.get("phase") != "Running" or "deletionTimestamp" in meta:
            continue
        annotations = meta.get("annotations", {})
        said = decoding.annotation(annotations.get(ALLOCATION))
        sizes = decoding.answered(annotations.get(RESIZED), meta["uid"])
        specs = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        states = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        running = {s["name"]: s["containerID"].rpartition("/")[2] for s in states if "running" in s["state"]}
        for spec in specs:
            limits = spec.get("resources", {}).get("limits", {})
            cores, units = int(limits.get(CORE, 0)), int(limits.get(MEMORY, 0))
            if not cores or spec["name"] not in running:
                continue
            name = spec["name"]
            shares = said.containers.get(name) if said is not None else None
            size = sizes.get(name)
            yield Held(meta["name"], meta["uid"], name, cores, units, running[name], shares, size)


def living(cluster: Cluster) -> frozenset[str]:
    """UIDs of the pods that :func:`containers` finds."""
    return frozenset(one.uid for one in containers(cluster))


def ledger_of(cluster: Cluster) -> Mapping[tuple[str, str], Shares]:
    """(pod UID, container) → shares, from the agent's disk: of pods that run. What an earlier test's pods held
    is given back at any time.
    """
    present = living(cluster)
    return {
        (row["pod"], row["container"]): _shares(row)
        for row in Books.of(cluster).rows
        if row["pod"] in present
    }


def _shares(row: Mapping[str, Any]) -> Shares:
    return frozenset((u, c, m) for u, c, m in row["shares"])


def _ledger(cluster: Cluster) -> bytes | None:
    """The newest state. The agent writes over the older of two files: who reads one, then the other, may miss
    both of two saves in between, so it counts only if a second look finds the same.
    """
    directory = cluster.scratch / "agent/ledger"
    before, now = None, decoding.ledger(directory)
    while before != now:
        before, now = now, decoding.ledger(directory)
    return now


def checkpoint_of(cluster: Cluster) -> Mapping[tuple[str, str, str], tuple[frozenset[str], str | None]]:
    """(pod UID, container, resource) → ids and our JSON, from the kubelet's file."""
    path = cluster.scratch / "kubelet/device-plugins/kubelet_internal_checkpoint"
    entries = decoding.checkpoint(path.read_bytes())
    return {key: (ids, copy) for key, ids, copy in entries if key[2] in (CORE, MEMORY)}


def limits_in_force(held: Held) -> Shares | None:
    """What the container's process finds at its own path; None for whole cards, which have no page."""
    return page_of(process_of(held))


def size_in_force(held: Held) -> tuple[int, int]:
    """Cores and bytes of a fraction, by :func:`limits_in_force`."""
    [(_, cores, size)] = limits_in_force(held) or ()
    return cores, size


def page_of(pid: int) -> Shares | None:
    """What a process finds at its own path; None where it has no page. Raises OSError: it has ended."""
    try:
        image = Path(f"/proc/{pid}/root{LIMITS_PATH}").read_bytes()
    except FileNotFoundError:
        return None
    return decoding.limits(image)


def page_file(pid: int) -> tuple[int, int] | None:
    """Device and inode of a process's page: containers that share a claim have the same."""
    try:
        found = os.stat(f"/proc/{pid}/root{LIMITS_PATH}")  # noqa: PTH116 - device and inode
    except OSError:
        return None
    return found.st_dev, found.st_ino


def running(cluster: Cluster) -> Iterator[Running]:
    """Every container of the node that was given cards and has a process now."""
    cards = (*cluster.cards, *cluster.divided)
    capacity = {str(card.uuid): card.capacity(DEFAULT_UNIT).memory for card in cards}
    for path in hierarchy().glob(f"{layout.CGROUP}/**/pod*/*/cgroup.procs"):
        with contextlib.suppress(OSError, IndexError, struct.error, ValueError):  # it ends while we look
            pid = int(path.read_text("utf-8").split()[0])
            began, cards = _began(pid), cards_shown(pid)
            if not cards:
                continue
            shares = page_of(pid) or frozenset((card, 100, capacity[card]) for card in cards)
            name = path.parent.parent.name.removeprefix("pod")
            yield Running(name, path.parent.name, pid, began, shares)


def cards_shown(pid: int) -> frozenset[str]:
    """The cards that a process's environment names.

    Raises:
        ProcessLookupError: it ends, turns from one program into another at this moment, or is the runtime still:
            a container is said to run a little before its own program does.
    """
    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"init"]:  # runc init
        raise ProcessLookupError(f"process {pid} is not the container's yet")
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    if environment == [b""]:
        raise ProcessLookupError(f"process {pid} has no environment")
    shown = next((e for e in environment if e.startswith(CARDS_ENV.encode() + b"=")), b"").decode()
    return frozenset(filter(None, shown.partition("=")[2].split(",")))


def _began(pid: int) -> str:
    """Field 22 of proc_pid_stat(5), behind the name; empty once the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def process_of(held: Held) -> int:
    """The first process of the container. Raises ProcessLookupError if it has none."""
    return processes_of(held)[0]


def processes_of(held: Held) -> list[int]:
    """Every process of the container, by its cgroup. Raises ProcessLookupError if it has none."""
    for path in hierarchy().glob(f"{layout.CGROUP}/**/pod{held.uid}/{held.container_id}/cgroup.procs"):
        if pids := processes.members(path):
            return pids
    raise ProcessLookupError(f"{held}: no process")


def hierarchy() -> Path:
    """One in which every container has its cgroup."""
    devices = Path("/sys/fs/cgroup/devices")
    return devices if devices.is_dir() else devices.parent


def compare(one: Held, books: Books) -> Iterator[str]:
    """What no admission or removal of others can explain. Raises ProcessLookupError: it has ended."""
    cores, copy = books.checkpoint.get((one.uid, one.name, CORE), (frozenset(), None))
    units, _ = books.checkpoint.get((one.uid, one.name, MEMORY), (frozenset(), None))
    if (len(cores), len(units)) != (one.cores, one.units):
        yield f"{one}: asks for {one.cores} and {one.units}, the kubelet gave {len(cores)} and {len(units)} ids"
    row, ledger = books.row(one), books.shares(one)
    if row is None or ledger is None:
        yield f"{one}: not in the ledger"
        return
    if not row.get("proven"):
        yield f"{one}: runs, and the ledger says that no start of it was proven"
    cores_now, bytes_now = one.size
    if sum(share[1] for share in ledger) != cores_now:
        yield f"{one}: asks for {cores_now} cores, the ledger has {ledger}"
    decoded = decoding.annotation(copy)
    copied = decoded.containers.get(one.name) if decoded is not None else None
    admitted = ledger
    if one.answered is not None:
        parts = len(ledger)
        was = one.cores // parts, one.units * DEFAULT_UNIT // parts
        admitted = frozenset((uuid, *was) for uuid, _, _ in ledger)
    if copied != admitted:
        yield f"{one}: the checkpoint's copy says {copied}, the ledger {ledger}"
    prefixes = {uuid.removeprefix("MIG-").removeprefix("GPU-")[:8] for uuid, _, _ in ledger}
    for ids in filter(None, (cores, units)):
        if {i.partition("-")[0] for i in ids} != prefixes:
            yield f"{one}: ids of {sorted({i.partition('-')[0] for i in ids})}, cards {sorted(prefixes)}"
    if cores_now < 100 * len(ledger):  # a part of each of its cards
        in_force = limits_in_force(one)
        if in_force != ledger:
            yield f"{one}: limits in force {in_force}, in the ledger {ledger}"
        if {share[2] * len(ledger) for share in ledger} != {bytes_now}:
            yield f"{one}: asks for {bytes_now} bytes, the ledger has {ledger}"
    shown = cards_shown(process_of(one))
    if shown != {share[0] for share in ledger}:
        yield f"{one}: its environment names {sorted(shown)}, the ledger {ledger}"


def unwritten(one: Held, books: Books) -> str:
    """How its annotation differs from the ledger, which the agent writes back; empty if it does not."""
    ledger = books.shares(one)
    same = ledger is None or one.annotation == ledger
    return "" if same else f"{one}: annotated {one.annotation}, in the ledger {ledger}"


def overcommitted(cluster: Cluster, books: Books) -> Iterator[str]:
    """A pod takes of a card the most that any of its phases takes: an ordinary init container, or the apps."""
    rows: defaultdict[tuple[str, str], list[tuple[str, int, int, int]]] = defaultdict(list)
    for row in books.rows:
        for uuid, cores, size in row["shares"]:
            rows[row["pod"], uuid].append((row["kind"], row["order"], cores, size))
    booked: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (_, uuid), held in rows.items():
        phases = [[h for h in held if h[0] != "init"]]
        phases += [
            [init, *(h for h in held if h[0] == "sidecar" and h[1] < init[1])]
            for init in held
            if init[0] == "init"
        ]
        cores, size = (max(sum(h[at] for h in phase) for phase in phases) for at in (2, 3))
        booked[uuid].append((cores, size))
    for card in (*cluster.cards, *cluster.divided):
        cores, size = (sum(pair[at] for pair in booked[card.uuid]) for at in (0, 1))
        if cores > 100 or size > card.memory - card.reserved:
            yield f"card {card.index}: {cores} cores and {size} bytes are booked"
