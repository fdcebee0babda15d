"""The books as the store keeps them: JSON, one row an allocation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.dra.sides import Side
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.ids import compact, expand
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import Amount
from gpu_manager.services.allocation.books import Books, Grant, Key

FORMAT = 1
_MOVING = {
    "to-dra": Side.PLUGIN,
    "to-plugin": Side.DRA,
}  # handed over by an older agent: nobody told the new side
WITH_CLAIMS = 2  # an agent that knows no claims would release theirs at once: it keeps the file aside instead


class BooksEncoder:
    """Encodes one node's books, which change little each time; not thread-safe."""

    def __init__(self) -> None:
        self._written: dict[Key, _Row] = {}

    def encode(self, books: Books) -> bytes:
        """All allocations, planned ones too. Unchanged rows are not encoded again, since Allocate waits."""
        rows: dict[Key, _Row] = {}
        for allocation in books.ledger:
            key = allocation.key
            grant, known = books.grants.get(key), self._written.get(key)
            if known is None or known.allocation is not allocation or known.grant is not grant:
                known = _Row(allocation, grant, _text(allocation, grant))
            rows[key] = known
        self._written = rows
        allocations = ",".join(row.text for row in rows.values())
        has_claims = books.sides is not None or any(row.allocation.claim for row in rows.values())
        version = WITH_CLAIMS if has_claims else FORMAT
        sides = ""
        if books.sides is not None:
            sides = f',"sides":{json.dumps({uuid: side.value for uuid, side in books.sides.items()})}'
        return f'{{"v":{version},"allocations":[{allocations}]{sides}}}'.encode()


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
    if allocation.priority is not Priority.NORMAL:  # an agent that knows none reads the row without it
        row["priority"] = allocation.priority.value
    if (claim := allocation.claim) is not None:
        row["claim"] = [claim.name, claim.request, claim.results, claim.pods]
        if not claim.preload:
            row["preload"] = False
    if grant is not None:
        row |= {
            "dir": grant.directory,
            "ceiling": grant.ceiling,
            "ids": {resource: compact(ids) for resource, ids in grant.ids.items()},
            "proven": grant.proven,
            **({"memory_cap": grant.memory_cap} if grant.memory_cap else {}),
        }
    return json.dumps(row, separators=(",", ":"))


def decode(state: bytes) -> tuple[tuple[Grant, ...], tuple[Allocation, ...]]:
    """Grants and planned allocations of a stored state.

    Raises:
        NodeUnready: the state is of a newer version or not ours.
    """
    try:
        data = json.loads(state)
        if data["v"] not in (FORMAT, WITH_CLAIMS):
            raise NodeUnready(f"the ledger on disk has format {data['v']!r}, this agent reads {WITH_CLAIMS}")
        grants, planned = [], []
        for row in data["allocations"]:
            allocation = _allocation(row)
            if "dir" in row:
                ids = {str(r): expand(written) for r, written in row["ids"].items()}
                cap = int(row.get("memory_cap", 0))
                grants.append(
                    Grant(allocation, str(row["dir"]), int(row["ceiling"]), ids, bool(row["proven"]), cap)
                )
            else:
                planned.append(allocation)
        return tuple(grants), tuple(planned)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NodeUnready(f"the ledger on disk is not readable ({error})") from error


def decode_sides(state: bytes) -> dict[CardUuid, Side] | None:
    """The owner of each card in a stored state; None if the node was not split.

    Raises:
        NodeUnready: the state has another format.
    """
    try:
        sides = json.loads(state).get("sides")
        return (
            None
            if sides is None
            else {CardUuid(str(uuid)): _MOVING.get(side) or Side(side) for uuid, side in sides.items()}
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise NodeUnready(f"the ledger on disk is not readable ({error})") from error


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
        claim=_claim(row["claim"], row.get("preload")) if "claim" in row else None,
        priority=Priority(row.get("priority", Priority.NORMAL.value)),
    )


def _claim(written: Any, preload: Any) -> HoldingClaim:
    name, request, results, pods = written
    return HoldingClaim(
        str(name),
        str(request),
        tuple((str(device), str(share)) for device, share in results),
        tuple((PodUid(uid), str(pod)) for uid, pod in pods),
        preload is not False,
    )
