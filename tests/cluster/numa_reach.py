"""Could a container of the real node have had cards of its ids' NUMA nodes? By what the agent logged of its books.

At level ``debug`` the agent logs its books before each grant under a NUMA policy, with an id of the grant and the
pod that it is for, as far as that is known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.numa_oracle import within_reach
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.topology import NumaPolicy

EVENT: Final = "books_before_grant"
LOGS: Final = "var.upper/log/pods/kube-system_gpu-manager-daemonset-*/gpu-manager/*.log"


@dataclass(frozen=True, slots=True)
class Moment:
    """The agent's books right before a grant, an id of it, and whom it is probably for."""

    at: str  # RFC 3339, of one clock
    resource: str
    device: str
    pod: str
    books: Sequence[Mapping[str, Any]]


def moments(scratch: Path) -> list[Moment]:
    """All that the agents of the node have logged, by time."""
    found = [one for path in scratch.glob(LOGS) for one in _read(path.read_text("utf-8", "replace"))]
    return sorted(found, key=lambda one: one.at)


def _read(text: str) -> Iterator[Moment]:
    """The lines of a container's log: time, stream, tag, and what was written."""
    for line in text.splitlines():
        written = line.split(" ", 3)[-1]
        if EVENT in written and written.startswith("{") and written.endswith("}"):
            said = json.loads(written)
            yield Moment(said["timestamp"], said["resource"], said["id"], said["pod"], said["books"])


def reached(
    known: Sequence[Moment],
    cards: Sequence[Card],
    rows: Sequence[Mapping[str, Any]],
    ids: Mapping[str, frozenset[str]],
    nodes: Collection[int | None],
    policy: NumaPolicy,
) -> bool | None:
    """True if there was room on the cards of these NUMA nodes; None if no line tells.

    ``rows``: what the container holds by the agent's ledger, after what ordinary init containers of its pod hold;
    ``ids``: resource → all ids that these hold.
    """
    its = [one for one in known if one.device in ids.get(one.resource, ())]
    if not its:
        return None
    # The first of its own: the kubelet turns to an init container before it. Ids served others before.
    first = next((one for one in its if one.pod == rows[-1]["pod"]), its[-1])
    books = Ledger(cards, DEFAULT_UNIT, map(_allocation, first.books))
    there = [card.uuid for card in cards if card.numa in nodes]
    return within_reach(books, [_allocation(row) for row in rows], there, cards, policy)


def _allocation(row: Mapping[str, Any]) -> Allocation:
    shares = tuple(Share(CardUuid(card), Amount(cores, memory)) for card, cores, memory in row["shares"])
    kind, granted = ContainerKind(row["kind"]), bool(row.get("granted", True))
    return Allocation(PodUid(row["pod"]), row["container"], kind, row["order"], shares, granted=granted)
