"""What happened to a card's health, as its node's agent tells it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from admission.cluster.snapshot import Snapshot
from admission.console.agents_usage import AgentsUsage
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.untrusted import mapping, mappings, text

_MOST_EVENTS: Final = 20
_LONGEST_TEXT: Final = 200


def card_health(uuid: str, snapshot: Snapshot, agents: AgentsUsage) -> dict[str, Any]:
    """JSON of ``/ui/health``: the same as the agent's.

    Raises:
        RequestInvalid: no node has such a card.
        NodeUnready: its node's agent does not answer.
    """
    views = snapshot.nodes.values()
    node = next((v.name for v in views if any(s.card.uuid == uuid for s in v.node.cards)), None)
    if node is None:
        raise RequestInvalid(f"no node has a card {quoted(uuid)}")
    return read_health(agents.page(node, f"/ui/health?{urlencode({'card': uuid})}"), node)


def read_health(answer: Any, node: str) -> dict[str, Any]:
    """An agent's answer with nothing in it that does not belong there. Raises NodeUnready: it is another."""
    found = mapping(answer)
    if "events" not in found:
        raise NodeUnready(f"the agent of node {quoted(node)} does not tell of health: it is an older one")
    return {
        "since": _seconds(found.get("since")),
        "events": [
            {
                "event": text(one.get("event"))[:_LONGEST_TEXT],
                "text": text(one.get("text"))[:_LONGEST_TEXT],
                "first": _seconds(one.get("first")),
                "last": _seconds(one.get("last")),
                "count": int(_seconds(one.get("count")) or 1),
            }
            for one in mappings(found["events"])[:_MOST_EVENTS]
        ],
    }


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 << 40 else None
