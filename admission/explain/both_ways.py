"""Pods that request extended resources and use ResourceClaims as well: kube-scheduler needs one node with
room for both, while the two are explained separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from admission.explain.explanation import FITS, Explanation, NodeLine
from gpu_manager.domain.placement.explain import LINE_LIMIT

_SHOWN: Final = 3
_BOUND: Final = "bound"


def explain_both(own: Explanation, claims: Explanation) -> Explanation:
    """One explanation of a pod from those of its extended resources and of its claims.

    ``own`` without a request is ignored. In clusters with more nodes than either explanation lists, it is
    left open whether one node has room for both.
    """
    if not own.asks:
        return claims
    if own.counts.get(_BOUND):
        held = claims.line.partition(": ")[2]
        return replace(own, line=f"{own.line}; {held}"[:LINE_LIMIT]) if held else own
    both = replace(claims, asks="; ".join(one for one in (own.asks, claims.asks) if one), quota=own.quota)
    mine = {one.node: one for one in own.nodes}
    if not claims.counts.get(FITS) or len(mine) < own.total or len(claims.nodes) < claims.total:
        return both
    nodes = sorted(
        (_on_both(mine[one.node], one) for one in claims.nodes if one.node in mine),
        key=lambda one: (one.outcome != FITS, one.node),
    )
    counts = Counter(one.outcome for one in nodes)
    return replace(both, line=_line(own, claims, nodes)[:LINE_LIMIT], counts=dict(counts), nodes=tuple(nodes))


def _on_both(own: NodeLine, claims: NodeLine) -> NodeLine:
    lacks = claims if own.outcome == FITS else own
    line = f"extended resources: {own.line}; claims: {claims.line}"
    return NodeLine(own.node, lacks.outcome, line[:LINE_LIMIT], lacks.cards, own.victims, own.barred)


def _line(own: Explanation, claims: Explanation, nodes: Sequence[NodeLine]) -> str:
    fitting = [one for one in nodes if one.outcome == FITS]
    if fitting:
        first = fitting[0]
        return f"there is room now on {len(fitting)} of {_nodes(len(nodes))}: on {first.node}, {first.line}"
    return (
        f"waits: no node has room for its extended resources ({_fitting(own)}) and for its claims "
        f"({_fitting(claims)}). Only a node whose front is split gives cards in both ways"
    )


def _fitting(one: Explanation) -> str:
    names = [node.node for node in one.nodes if node.outcome == FITS]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there is some on {', '.join(names[:_SHOWN])}{more}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
