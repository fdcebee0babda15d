"""What a sandbox shows of itself: its cards with their holders, its pods with the reason of their state.

Figures come from the agent's own ``/graph``, so the picture is what the product believes, and from the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_manager.adapters.kube.agents import is_agent
from gpu_manager.domain.cluster.node_json import mig_words
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import format_bytes
from sandbox.simulated_cluster import Sandbox
from sandbox.statuses import shown_reason


@dataclass(frozen=True, slots=True)
class Holder:
    """A share of a card. ``cores`` in hundredths, memory in bytes; usage None if it is not known."""

    pod: str
    container: str
    cores: int
    memory: int
    memory_used: int | None
    core_used: float | None
    note: str  # what explains a share that nobody uses any more

    def __str__(self) -> str:
        name = self.pod.removeprefix("default/")
        who = name if name == self.container else f"{name}/{self.container}"
        use = []
        if self.memory_used:
            use.append(f"{format_bytes(self.memory_used)} used")
        if self.core_used is not None and self.core_used >= 0.005:
            use.append(f"{self.core_used:.0%} busy")
        used = f" ({', '.join(use)})" if use else ""
        return f"{who} {self.cores}, {format_bytes(self.memory)}{used}{self.note}"


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card. ``state`` is empty while it is open."""

    index: int
    model: str
    cores: int
    memory: int
    memory_booked: int
    state: str
    holders: tuple[Holder, ...]

    @property
    def who(self) -> tuple[str, ...]:
        """The holders, those of one kind (a burst) as one."""
        kinds: dict[tuple[object, ...], list[Holder]] = {}
        for h in self.holders:
            kinds.setdefault((_family(h.pod), h.container, h.cores, h.memory, h.note), []).append(h)
        return tuple(_together(same) for same in kinds.values())


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod, and what explains its state."""

    key: str
    phase: str
    reason: str
    message: str
    restarts: int
    uid: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one moment. ``agent`` is empty, or why the agent does not answer; cards are then none."""

    cards: tuple[CardRow, ...]
    pods: tuple[PodRow, ...]
    agent: str = ""


def look(sandbox: Sandbox) -> Picture:
    """The sandbox as it is now."""
    objects = [pod for pod in sandbox.api.list("pods") if not is_agent(pod)]
    pods = tuple(_pod(pod) for pod in objects)
    try:
        graph = sandbox.graph()
    except NodeUnready as error:
        return Picture((), pods, str(error))
    notes = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": _notes(p) for p in objects}
    return Picture(tuple(_card(card, notes, graph["cards"]) for card in graph["cards"]), pods)


def _notes(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """Container → why its share lies idle: an init container's is the app's by now."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return {r["name"]: ", ended" for r in _rows(status)}
    rows = status.get("initContainerStatuses") or ()
    done = [r["name"] for r in rows if r["ready"] and "terminated" in (r.get("state") or {})]
    return dict.fromkeys(done, ", ended: the app's share now")


def _card(
    card: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], cards: Sequence[Mapping[str, Any]]
) -> CardRow:
    states = [
        word
        for word, holds in (
            (f"unhealthy: {card['reason']}", not card["healthy"]),
            ("cordoned", card["cordoned"]),
            (mig_words(card, cards) if card["mig"] else "", card["mig"]),
        )
        if holds
    ]
    return CardRow(
        index=int(card["index"]),
        model=str(card["model"]),
        cores=0 if card["mig"] else 100 - int(card["cores_free"]),
        memory=int(card["memory"]),
        memory_booked=int(card["memory"]) - int(card["memory_free"]),
        state=", ".join(states),
        holders=tuple(_holder(holder, notes) for holder in card["holders"]),
    )


def _holder(holder: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]]) -> Holder:
    pod = f"{holder['namespace']}/{holder['pod']}"
    return Holder(
        pod,
        str(holder["container"]),
        int(holder["cores"]),
        int(holder["memory"]),
        holder["memory_used"],
        holder["core_used"],
        notes[pod].get(str(holder["container"]), "") if pod in notes else ", leaving: its pod is gone",
    )


def _pod(pod: Mapping[str, Any]) -> PodRow:
    meta, status = pod["metadata"], pod.get("status") or {}
    reason, message = shown_reason(pod)
    return PodRow(
        f"{meta['namespace']}/{meta['name']}",
        str(status.get("phase") or "Pending"),
        reason,
        message,
        sum(int(row.get("restartCount") or 0) for row in _rows(status)),
        str(meta["uid"]),
    )


def _rows(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _family(pod: str) -> str:
    """``burst`` for ``burst-07``: pods made in one go."""
    stem, dash, number = pod.rpartition("-")
    return stem if dash and number.isdecimal() else pod


def _together(same: Sequence[Holder]) -> str:
    if len(same) == 1:
        return str(same[0])
    numbers = sorted(h.pod.rpartition("-")[2] for h in same)
    stem = _family(same[0].pod).removeprefix("default/")
    each = f"{same[0].cores}, {format_bytes(same[0].memory)}"
    return f"{stem}-{{{','.join(numbers)}}} {each} each{same[0].note}"
