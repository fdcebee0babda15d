"""What a scheduler without extender knows of a node: selectors, and sums of resources. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kubelet.values import containers_of, effective_limits

_ENDED: Final = ("Succeeded", "Failed")
Obj = Mapping[str, Any]


def waits(pod: Obj, scheduler: str) -> bool:
    """True if that scheduler has to find a node for the pod."""
    spec, meta = pod["spec"], pod["metadata"]
    return (
        not spec.get("nodeName")
        and not meta.get("deletionTimestamp")
        and not spec.get("schedulingGates")
        and (pod.get("status") or {}).get("phase") not in _ENDED
        and spec.get("schedulerName") == scheduler
    )


def wanted_of(pod: Obj) -> dict[str, int]:
    """Extended resources that the pod counts for. Raises RequestInvalid: one is no quantity."""
    return effective_limits(containers_of(pod))


def pods_by_node(pods: Sequence[Obj], assumed: Mapping[str, str]) -> dict[str, list[Obj]]:
    """Node → the pods that count there: bound, or about to be."""
    found: dict[str, list[Obj]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName") or assumed.get(str(pod["metadata"]["uid"]))
        if node and (pod.get("status") or {}).get("phase") not in _ENDED:
            found.setdefault(str(node), []).append(pod)
    return found


def lesser(pod: Obj, others: Sequence[Obj]) -> list[Obj]:
    """Those of lower priority, the least first, of equals the youngest."""
    mine = _priority(pod)
    youngest_first = sorted(others, key=lambda p: str(p["metadata"]["creationTimestamp"]), reverse=True)
    return sorted((p for p in youngest_first if _priority(p) < mine), key=_priority)


@dataclass(slots=True)
class FilterCandidate:
    """A node for one pod. ``reason`` is why not, empty if it fits; ``lasting``: evicting would not help."""

    name: str
    pods: Sequence[Obj]
    short: Mapping[str, int]  # resource → units missing
    reason: str = ""
    lasting: bool = False

    @property
    def reasons(self) -> list[str]:
        """As kube-scheduler counts them: each resource by itself."""
        return [f"Insufficient {name}" for name in sorted(self.short)] if self.short else [self.reason]

    def victims(self, pod: Obj) -> list[Obj] | None:
        """Lesser pods whose going makes the sums fit (none where they do); None if that cannot be."""
        less = lesser(pod, self.pods)
        chosen: list[Obj] = []
        short = dict(self.short)
        for victim in less:
            if not short:
                break
            given = wanted_of(victim)
            if given.keys() & short.keys():
                chosen.append(victim)
                short = {r: left for r, n in short.items() if (left := n - given.get(r, 0)) > 0}
        return None if short or not less else chosen


class NodeRoom:
    """One node and who counts on it. ``pods`` are the cluster's, for those that are nominated here."""

    def __init__(self, node: Obj, here: Sequence[Obj], pods: Sequence[Obj]) -> None:
        self._node = node
        self._here = here
        self._pods = pods
        self._name = str(node["metadata"]["name"])

    def judge(self, pod: Obj) -> FilterCandidate:
        """By selector and sums. Raises RequestInvalid: the pod's limits are no quantities."""
        labels = self._node["metadata"].get("labels") or {}
        selector = pod["spec"].get("nodeSelector") or {}
        if (self._node.get("spec") or {}).get("unschedulable"):
            return FilterCandidate(self._name, self._here, {}, "node(s) were unschedulable", lasting=True)
        if any(labels.get(key) != value for key, value in selector.items()):
            text = "node(s) didn't match Pod's node affinity/selector"
            return FilterCandidate(self._name, self._here, {}, text, lasting=True)
        wanted, free = wanted_of(pod), self._free(pod)
        short = {r: count - free.get(r, 0) for r, count in wanted.items() if count > free.get(r, 0)}
        return FilterCandidate(self._name, self._here, short, "resources" if short else "")

    def _free(self, pod: Obj) -> dict[str, int]:
        """What nobody counts for; pods nominated here with no less priority count as if they ran."""
        allocatable = (self._node.get("status") or {}).get("allocatable") or {}
        free = {name: int(value) for name, value in allocatable.items() if "/" in name}
        for other in (*self._here, *self._nominated(pod)):
            for resource, count in wanted_of(other).items():
                free[resource] = free.get(resource, 0) - count
        return free

    def _nominated(self, pod: Obj) -> list[Obj]:
        return [
            p
            for p in self._pods
            if not p["spec"].get("nodeName")
            and (p.get("status") or {}).get("nominatedNodeName") == self._name
            and p["metadata"]["uid"] != pod["metadata"]["uid"]
            and _priority(p) >= _priority(pod)
        ]


def _priority(pod: Obj) -> int:
    return int(pod["spec"].get("priority") or 0)
