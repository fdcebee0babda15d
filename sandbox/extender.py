"""The scheduler stand-in's view of an extender: kube-scheduler's four calls, its field names, its bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from sandbox.http_client import LoopbackClient

MANAGED: Final = frozenset({CORE, MEMORY})
_SECONDS: Final = 5.0  # httpTimeout
Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Filtered:
    """Nodes that fit; why the others do not, and whether evicting could help there."""

    nodes: tuple[str, ...]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class ExtenderClient:
    """``nodeCacheCapable``, not ``ignorable``, ``managedResources`` ours. All raise NodeUnready."""

    def __init__(self, port: int, managed: frozenset[str] = MANAGED) -> None:
        self._line = LoopbackClient(port, timeout=_SECONDS)
        self._managed = managed

    def manages(self, pod: Obj) -> bool:
        """True if some container names a resource of ours."""
        spec = pod["spec"]
        return any(
            self._managed & ((container.get("resources") or {}).get(where) or {}).keys()
            for group in ("containers", "initContainers")
            for container in spec.get(group) or ()
            for where in ("limits", "requests")
        )

    def filter(self, pod: Obj, nodes: Sequence[str]) -> Filtered:
        """Which of these fit."""
        answer = self._ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if answer.get("Error"):
            raise NodeUnready(str(answer["Error"]))
        fitting = tuple(map(str, answer.get("NodeNames") or ()))
        if not set(fitting) <= set(nodes):
            raise NodeUnready("the extender answered with a node that was not offered")
        return Filtered(
            fitting,
            dict(answer.get("FailedNodes") or {}),
            dict(answer.get("FailedAndUnresolvableNodes") or {}),
        )

    def prioritize(self, pod: Obj, nodes: Sequence[str]) -> dict[str, int]:
        """Scores from 0 to 10."""
        answer = self._ask("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        return {str(entry["Host"]): int(entry["Score"]) for entry in answer}

    def bind(self, pod: Obj, node: str) -> None:
        """Let it bind the pod."""
        meta = pod["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        error = self._ask("bind", {**names, "Node": node}).get("Error")
        if error:
            raise NodeUnready(str(error))

    def preempt(self, pod: Obj, victims: Mapping[str, Sequence[Obj]]) -> dict[str, tuple[list[str], int]]:
        """Node → UIDs of victims and budgets broken, of those candidates where evicting helps."""
        meta = {
            node: {"Pods": [{"UID": p["metadata"]["uid"]} for p in pods], "NumPDBViolations": 0}
            for node, pods in victims.items()
        }
        answer = self._ask("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})
        return {
            str(node): (
                [str(p["UID"]) for p in found.get("Pods") or ()],
                int(found.get("NumPDBViolations") or 0),
            )
            for node, found in (answer.get("NodeNameToMetaVictims") or {}).items()
        }

    def close(self) -> None:
        """Close its connections."""
        self._line.close()

    def _ask(self, verb: str, question: Obj) -> Any:
        body, kind = json.dumps(question).encode(), {"Content-Type": "application/json"}
        status, said = self._line.ask("POST", f"/scheduler/{verb}", body, kind)
        if status != 200:
            raise NodeUnready(
                f"{verb}: the extender answered {status}: {said[:300].decode('utf-8', 'replace')}"
            )
        try:
            return json.loads(said)
        except ValueError as error:
            raise NodeUnready(f"{verb}: the extender's answer is no JSON") from error
