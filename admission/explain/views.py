"""Explanations and quotas for people and programs: as text, as JSON. Data only, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from admission.cluster.snapshot import Snapshot
from admission.explain.explanation import BARRED, FITS, Explanation
from admission.extender.feasibility import Unfit
from gpu_manager.domain.cluster.quota import Quota, cards
from gpu_manager.domain.errors import printable
from gpu_manager.domain.resources import format_bytes


def as_text(explanation: Explanation) -> str:
    """A table for people."""
    asks = f" asks {explanation.asks}" if explanation.asks else ""
    lines = [f"pod {printable(explanation.pod)}{asks}", explanation.line]
    lines += [f"quota: {words}" for words in explanation.quota]
    for node in explanation.nodes:
        kept_off = f", and {node.barred}" if node.cards and node.barred else ""
        lines.append(f"{node.node}: {_WORDS_ONE[node.outcome] if node.cards else node.line}{kept_off}")
        lines += [f"  card {c.index} ({c.uuid}): {c.reason}" for c in node.cards]
        if node.victims:
            lines.append(f"  would have room without: {', '.join(node.victims)}")
    rest = explanation.total - len(explanation.nodes)
    if explanation.nodes and rest > 0:
        lines.append(f"and {rest} more node{'s' if rest > 1 else ''}, counted above")
    return "\n".join(lines)


_WORDS_ONE: Final = {
    FITS: "room now",
    Unfit.ROOM.value: "no room now",
    Unfit.NEVER.value: "no room, even if it were empty",
    Unfit.KEPT.value: "kept for a larger pod",
    Unfit.QUOTA.value: "closed by quota",
    Unfit.REFUSED.value: "refused this amount a moment ago",
    Unfit.NODE.value: "no cards for it",
    BARRED: "kept off",
}


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
    lines = list(quota.usage(snapshot.used, snapshot.protected))
    rows = [("NAMESPACE", "MODEL", "CARDS", "USED", "MEMORY", "USED", "PROTECTED", "USED")]
    rows += [
        (
            printable(namespace),
            printable(line.key),
            "-" if line.cores is None else cards(line.cores),
            cards(line.used.cores),
            "-" if line.memory is None else format_bytes(line.memory),
            format_bytes(line.used.memory),
            "-" if line.protected is None else cards(line.protected),
            cards(line.protected_used),
        )
        for namespace, line in lines
    ]
    shown = 8 if any(line.protected is not None for _, line in lines) else 6
    widths = [max(len(row[column]) for row in rows) for column in range(shown)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row[:shown], widths, strict=True)).rstrip()
        for row in rows
    )


def closed_nodes(snapshot: Snapshot, namespace: str = "") -> list[Mapping[str, Any]]:
    """The nodes that are closed to smaller pods, and for whom; pods of another namespace are not named."""
    views = snapshot.nodes.values()
    return [{"node": view.name, **view.kept.as_json(namespace)} for view in views if view.kept is not None]
