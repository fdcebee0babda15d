"""Compares what five books say of each container: spec, annotation, ledger, checkpoint, limits in force.

The last is read where it counts: the page that the container's own process finds at its path.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, parse_checkpoint
from gpu_manager.adapters.store import FileStore
from gpu_manager.domain.contract import CARDS_ENV, CORE, LIMITS_PATH, MEMORY, decode_assignment
from gpu_manager.domain.resources import DEFAULT_UNIT
from tests.cluster import layout
from tests.cluster.cluster import Cluster
from tests.cluster.pods import assignment
from vcuda import page

Shares = frozenset[tuple[str, int, int]]  # card, cores, bytes


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

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"


def audit(cluster: Cluster, *, leaks: bool = False) -> list[str]:
    """Every disagreement, in words; empty is good. Ask when nothing is being admitted or removed.

    ``leaks`` asks too for what nobody holds any more: it is given back within 60 s of a new registration,
    else within two rounds of the agent's reclaiming.
    """
    held = list(containers(cluster))
    ledger, checkpoint = ledger_of(cluster), checkpoint_of(cluster)
    found: list[str] = []
    for one in held:
        found += _compare(cluster, one, ledger.get((one.uid, one.name)), checkpoint)
    found += _overcommitted(cluster)
    if not leaks:
        return found
    living = {one.uid for one in held}
    found += [f"ledger: {name} of the dead pod {uid}" for uid, name in ledger if uid not in living]
    directories = {row["dir"] for row in _rows(cluster)}
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
        said = assignment(pod)
        specs = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        states = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        running = {s["name"]: s["containerID"].rpartition("/")[2] for s in states if "running" in s["state"]}
        for spec in specs:
            limits = spec.get("resources", {}).get("limits", {})
            cores, units = int(limits.get(CORE, 0)), int(limits.get(MEMORY, 0))
            if not cores or spec["name"] not in running:
                continue
            shares = said.containers.get(spec["name"]) if said is not None else None
            annotation = frozenset((u, a.cores, a.memory) for u, a in shares) if shares is not None else None
            yield Held(
                meta["name"], meta["uid"], spec["name"], cores, units, running[spec["name"]], annotation
            )


def ledger_of(cluster: Cluster) -> Mapping[tuple[str, str], Shares]:
    """(pod UID, container) → shares, from the agent's disk."""
    return {
        (row["pod"], row["container"]): frozenset((u, c, m) for u, c, m in row["shares"])
        for row in _rows(cluster)
    }


def _rows(cluster: Cluster) -> list[dict[str, Any]]:
    text = FileStore(cluster.scratch / "agent/ledger").load()
    return list(json.loads(text)["allocations"]) if text else []


def checkpoint_of(cluster: Cluster) -> Mapping[tuple[str, str, str], tuple[frozenset[str], str | None]]:
    """(pod UID, container, resource) → ids and our JSON, from the kubelet's file."""
    path = cluster.scratch / "kubelet/device-plugins" / FILE_NAME
    entries = parse_checkpoint(path.read_bytes(), (CORE, MEMORY))
    return {(e.pod, e.container, e.resource): (e.ids, e.annotation) for e in entries}


def limits_in_force(cluster: Cluster, held: Held) -> Shares | None:
    """What the container's process finds at its own path; None for whole cards, which have no page."""
    pid = process_of(held)
    try:
        image = Path(f"/proc/{pid}/root{LIMITS_PATH}").read_bytes()
    except FileNotFoundError:
        return None
    limits = page.read_limits(image)
    return frozenset(
        (page.uuid_text(c.uuid), round(c.core_limit or 0), c.memory_limit or 0) for c in limits.cards
    )


def process_of(held: Held) -> int:
    """The first process of the container. Raises ProcessLookupError if it has none."""
    return processes_of(held)[0]


def processes_of(held: Held) -> list[int]:
    """Every process of the container, by its cgroup. Raises ProcessLookupError if it has none."""
    for hierarchy in (Path("/sys/fs/cgroup/devices"), Path("/sys/fs/cgroup")):
        for path in (hierarchy / layout.CGROUP).glob(f"**/pod{held.uid}/{held.container_id}/cgroup.procs"):
            pids = path.read_text("utf-8").split()
            if pids:
                return [int(pid) for pid in pids]
    raise ProcessLookupError(f"{held}: no process")


def _compare(
    cluster: Cluster,
    one: Held,
    ledger: Shares | None,
    checkpoint: Mapping[tuple[str, str, str], tuple[frozenset[str], str | None]],
) -> Iterator[str]:
    cores, copy = checkpoint.get((one.uid, one.name, CORE), (frozenset(), None))
    units, _ = checkpoint.get((one.uid, one.name, MEMORY), (frozenset(), None))
    if (len(cores), len(units)) != (one.cores, one.units):
        yield f"{one}: asks for {one.cores} and {one.units}, the kubelet gave {len(cores)} and {len(units)} ids"
    if ledger is None:
        yield f"{one}: not in the ledger"
        return
    if sum(share[1] for share in ledger) != one.cores:
        yield f"{one}: asks for {one.cores} cores, the ledger has {ledger}"
    if one.annotation != ledger:
        yield f"{one}: annotated {one.annotation}, in the ledger {ledger}"
    decoded = decode_assignment(copy)
    copied = decoded.containers.get(one.name, ()) if decoded is not None else ()
    if frozenset((u, a.cores, a.memory) for u, a in copied) != ledger:
        yield f"{one}: the checkpoint's copy says {copied}, the ledger {ledger}"
    prefixes = {uuid.removeprefix("GPU-")[:8] for uuid, _, _ in ledger}
    if {i.partition("-")[0] for i in cores} != prefixes:
        yield f"{one}: ids of {sorted({i.partition('-')[0] for i in cores})}, cards {sorted(prefixes)}"
    if one.cores < 100:
        in_force = limits_in_force(cluster, one)
        if in_force != ledger:
            yield f"{one}: limits in force {in_force}, in the ledger {ledger}"
        if {share[2] for share in ledger} != {one.units * DEFAULT_UNIT}:
            yield f"{one}: asks for {one.units} units, the ledger has {ledger}"
    environment = Path(f"/proc/{process_of(one)}/environ").read_bytes().split(b"\0")
    shown = next((e for e in environment if e.startswith(CARDS_ENV.encode() + b"=")), b"").decode()
    if set(filter(None, shown.partition("=")[2].split(","))) != {share[0] for share in ledger}:
        yield f"{one}: its environment says {shown}, the ledger {ledger}"


def _overcommitted(cluster: Cluster) -> Iterator[str]:
    """A pod takes of a card the most that any of its phases takes: an ordinary init container, or the apps."""
    rows: defaultdict[tuple[str, str], list[tuple[str, int, int, int]]] = defaultdict(list)
    for row in _rows(cluster):
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
    for card in cluster.cards:
        cores, size = (sum(pair[at] for pair in booked[card.uuid]) for at in (0, 1))
        if cores > 100 or size > card.memory - card.reserved:
            yield f"card {card.index}: {cores} cores and {size} bytes are booked"
