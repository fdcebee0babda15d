"""The size advised for a pod's containers, as its node's agent tells it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from admission.console.agents_usage import AgentsUsage
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.names import container_name
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.untrusted import mapping, mappings, text

_MOST_CONTAINERS: Final = 50
_LONGEST_TEXT: Final = 400


def pod_advice(name: str, pod: Pod | None, agents: AgentsUsage) -> dict[str, Any]:
    """JSON of ``/ui/advice``: the agent's, with the names of the pod's containers.

    ``name``: the pod's namespace/name. ``pod``: what is known of it.

    Raises:
        RequestInvalid: no such pod is on a node.
        NodeUnready: the node's agent does not answer.
    """
    if pod is None or not pod.node:
        raise RequestInvalid(f"no pod {quoted(name)} is on a node")
    asked = urlencode({"uid": pod.uid, "name": name})  # an older agent reads the name alone
    found = read_advice(agents.page(pod.node, f"/ui/advice?{asked}"), pod.node)
    for one in found["containers"]:
        one["container"] = container_name(pod.uid, one["container"], pod)
    return found


def read_advice(answer: Any, node: str) -> dict[str, Any]:
    """An agent's answer with nothing in it that does not belong there. Raises NodeUnready: it is another."""
    found = mapping(answer)
    if "containers" not in found:
        raise NodeUnready(
            f"the agent of node {quoted(node)} does not tell of one pod's advice: it is an older one"
        )
    return {
        "containers": [
            {
                "container": text(one.get("container"))[:_LONGEST_TEXT],
                "given": {key: _amount(mapping(one.get("given")).get(key)) for key in ("cores", "memory")},
                **{key: _figure(mapping(one.get(key))) for key in ("cores", "memory")},
            }
            for one in mappings(found["containers"])[:_MOST_CONTAINERS]
        ]
    }


def _figure(said: Any) -> dict[str, Any]:
    return {"value": _amount(said.get("value")), "reason": text(said.get("reason"))[:_LONGEST_TEXT]}


def _amount(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else None
