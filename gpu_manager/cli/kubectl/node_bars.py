"""What is written on nodes and keeps a pod off, laid over an explanation that looked at cards alone.

Cordons, taints, node selectors and node affinities are kube-scheduler's to judge, so neither the admission
service nor the books of the cards know them. They are read with the caller's own right to list nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.placement.explain import LINE_LIMIT, explain_room
from gpu_manager.domain.whatif.scheduling_constraints import (
    NodeConstraints,
    node_constraints,
    pod_constraints,
)

BARRED: Final = "barred"
_FITS: Final = "fits: "  # as the service begins the line of a node that would take the pod
_SHOWN: Final = 3  # nodes in the one sentence

Nodes = Mapping[str, NodeConstraints]


def read_node_constraints(login: Login) -> Nodes | None:
    """Every node's, by name; None if the caller may not list nodes."""
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.reading import list_nodes  # noqa: PLC0415  # same

    try:
        found = [node_constraints(obj) for obj in list_nodes(login.connection)]
    except Refused:
        return None
    return {one.name: one for one in found}


def with_node_bars(
    answer: Mapping[str, Any], spec: object, nodes: Nodes, scheduler: str | None
) -> Mapping[str, Any]:
    """The answer, in which a node that the pod may not go to has no room for it.

    ``spec`` is the pod's; ``scheduler`` its scheduler, None for a pod that is not created.
    """
    asked = pod_constraints(spec)
    shown = [dict(node) for node in answer.get("nodes") or () if isinstance(node, Mapping)]
    barred: dict[str, str] = {}
    for node in shown:
        name = str(node.get("node"))
        if (there := nodes.get(name)) is None or not (why := there.bars(asked)):
            continue
        node["barred"] = why
        if node.get("outcome") == "fits":
            barred[name] = why
            node |= {"outcome": BARRED, "line": f"has room for it, but {why}", "cards": []}
    if not barred:
        return {**answer, "nodes": shown}
    counts = dict(answer.get("counts") or {})
    counts["fits"] = int(counts.get("fits", 0)) - len(barred)
    counts[BARRED] = len(barred)
    shown.sort(key=lambda node: (node.get("outcome") != "fits", node.get("outcome") != BARRED))
    total = int(answer.get("total") or len(shown))
    return {
        **answer,
        "nodes": shown,
        "counts": counts,
        "line": _line(shown, barred, counts, total, scheduler),
    }


def _line(
    shown: list[dict[str, Any]], barred: Mapping[str, str], counts: Mapping[str, int], total: int,
    scheduler: str | None,
) -> str:  # fmt: skip
    names = list(barred.items())
    told = "; ".join(f"{name} {why}" for name, why in names[:_SHOWN])
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    first = next((node for node in shown if node.get("outcome") == "fits"), None)
    if first is not None:
        where = str(first.get("line")).removeprefix(_FITS)
        room = explain_room(counts["fits"], total, str(first["node"]), where, scheduler)
        return f"{room}. Not counted: {told}{more}"[:LINE_LIMIT]
    nodes = "the one node" if len(names) == 1 else f"each of the {len(names)} nodes"
    return f"waits: {nodes} with room for it keeps it off: {told}{more}"[:LINE_LIMIT]
