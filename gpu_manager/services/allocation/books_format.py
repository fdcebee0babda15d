"""The books as the store keeps them: JSON, one row an allocation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.ids import compact, expand
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.services.allocation.books import Books, Grant, Key

FORMAT = 1


class BooksEncoder:
    """Writes one node's books again and again; not thread-safe."""

    def __init__(self) -> None:
        self._written: dict[Key, _Row] = {}
        self._cards: tuple[Mapping[CardUuid, Card], str] = ({}, "[]")

    def encode(self, books: Books) -> bytes:
        """Every allocation, planned ones too.

        What has not changed since the last time is not written out again: an Allocate waits for this.
        """
        rows: dict[Key, _Row] = {}
        for allocation in books.ledger:
            key = allocation.key
            grant, known = books.grants.get(key), self._written.get(key)
            if known is None or known.allocation is not allocation or known.grant is not grant:
                known = _Row(allocation, grant, _text(allocation, grant))
            rows[key] = known
        self._written = rows
        allocations = ",".join(row.text for row in rows.values())
        if self._cards[0] is not books.cards:
            self._cards = books.cards, _facts(books.cards.values())
        return f'{{"v":{FORMAT},"cards":{self._cards[1]},"allocations":[{allocations}]}}'.encode()


@dataclass(frozen=True, slots=True)
class _Row:
    """An allocation, its grant, and both as JSON."""

    allocation: Allocation
    grant: Grant | None
    text: str


def _text(allocation: Allocation, grant: Grant | None) -> str:
    row: dict[str, object] = {
        "pod": allocation.pod,
        "ns": allocation.namespace,
        "name": allocation.pod_name,
        "container": allocation.container,
        "kind": allocation.kind.value,
        "order": allocation.order,
        "shares": [[s.card, s.amount.cores, s.amount.memory] for s in allocation.shares],
    }
    if grant is not None:
        row |= {
            "dir": grant.directory,
            "ceiling": grant.ceiling,
            "ids": {resource: compact(ids) for resource, ids in grant.ids.items()},
            "proven": grant.proven,
        }
    return json.dumps(row, separators=(",", ":"))


def _facts(cards: Iterable[Card]) -> str:
    rows = [[c.index, c.uuid, c.model, c.memory, c.reserved, c.numa, c.minor] for c in cards]
    return json.dumps(rows, separators=(",", ":"))


def decode_held_cards(state: bytes) -> tuple[Card, ...]:
    """The cards of which a stored state says that somebody holds some: they may be lost by now. What cannot
    be read is left out; :func:`decode` says why.
    """
    try:
        data = json.loads(state)
        held = {share[0] for row in data["allocations"] for share in row["shares"]}
        rows = [row for row in data.get("cards", ()) if row[1] in held]
        return tuple(
            Card(int(index), CardUuid(str(uuid)), str(model), int(memory), int(reserved), numa, minor)
            for index, uuid, model, memory, reserved, numa, minor in rows
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return ()


def decode(state: bytes) -> tuple[tuple[Grant, ...], tuple[Allocation, ...]]:
    """Grants and planned allocations of a stored state.

    Raises:
        NodeUnready: the state is of a newer version or not ours.
    """
    try:
        data = json.loads(state)
        if data["v"] != FORMAT:
            raise NodeUnready(
                f"the ledger on disk has format {data['v']!r}, this program reads {FORMAT}: upgrade it"
            )
        grants, planned = [], []
        for row in data["allocations"]:
            allocation = _allocation(row)
            if "dir" in row:
                ids = {str(r): expand(written) for r, written in row["ids"].items()}
                grants.append(
                    Grant(allocation, str(row["dir"]), int(row["ceiling"]), ids, bool(row["proven"]))
                )
            else:
                planned.append(allocation)
        return tuple(grants), tuple(planned)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NodeUnready(
            f"the ledger on disk is not readable ({error}): the books are rebuilt from the kubelet"
        ) from error


def _allocation(row: Mapping[str, Any]) -> Allocation:
    return Allocation(
        pod=PodUid(row["pod"]),
        container=row["container"],
        kind=ContainerKind(row["kind"]),
        order=int(row["order"]),
        shares=tuple(
            Share(CardUuid(c), Amount(int(cores), int(memory))) for c, cores, memory in row["shares"]
        ),
        namespace=row["ns"],
        pod_name=row["name"],
        granted="dir" in row,
    )
