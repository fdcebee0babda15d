"""Explanations and quotas for people and programs: as text, as JSON. Data only, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.cluster.snapshot import Snapshot
from admission.explain.explanation import SHOWN_NODES, Explanation
from gpu_manager.domain.cluster.quota import Quota, quota_table
from gpu_manager.domain.placement.explain import explanation_lines


def as_text(explanation: Explanation) -> str:
    """A table for people."""
    return "\n".join(explanation_lines(as_json(explanation), SHOWN_NODES, ", counted above"))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The same for programs. Amounts: hundredths of a card, bytes."""
    return {
        "pod": explanation.pod,
        "asks": explanation.asks,
        "line": explanation.line,
        "change": explanation.change,
        "counts": dict(explanation.counts),
        "total": explanation.total,
        "held": explanation.held,
        "quota": list(explanation.quota),
        "nodes": [
            {
                "node": node.node,
                "outcome": node.outcome,
                "line": node.line,
                "victims": list(node.victims),
                "barred": node.barred,
                "cards": [
                    {
                        "index": c.index,
                        "uuid": c.uuid,
                        "free": {"cores": c.free.cores, "memory": c.free.memory},
                        "reason": c.reason,
                    }
                    for c in node.cards
                ],
            }
            for node in explanation.nodes
        ],
    }


def quota_text(quota: Quota, snapshot: Snapshot) -> str:
    """What ``/quota`` shows to people: a row for each namespace and key."""
    rows = quota_table(quota.rows(snapshot.used, snapshot.protected))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def closed_nodes(snapshot: Snapshot, namespace: str = "") -> list[Mapping[str, Any]]:
    """The nodes that are closed to smaller pods, and for whom; pods of another namespace are not named."""
    views = snapshot.nodes.values()
    return [{"node": view.name, **view.kept.as_json(namespace)} for view in views if view.kept is not None]
