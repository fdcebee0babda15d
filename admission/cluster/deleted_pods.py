"""Pods deleted by force: they count on their node until it reports that their processes have ended.

The API forgets such a pod at once, the kubelet ends its processes after that, and the node's inventory is
updated later still. Meanwhile their shares must not be promised to other pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.kube.pod import PodUid

SILENCE_SECONDS: Final = 60.0  # an agent that has said nothing of a deleted pod by then is taken for dead


class DeletedPods:
    """By node. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, dict[PodUid, tuple[TerminatingShare, ...]]] = {}
        self._until: dict[PodUid, tuple[float, str]] = {}  # the end of the silence, and the node
        self._new: dict[PodUid, str] = {}  # not seen by :meth:`expire` yet

    def add(self, uid: PodUid, report: NodeReport, held: tuple[TerminatingShare, ...]) -> None:
        """The API has forgotten the pod before it ended on that node.

        Pods are ignored if the node's agent does not report such pods, or has reported this one already.
        """
        if held and report.released is not None and uid not in _told(report):
            self._held.setdefault(report.name, {})[uid] = held
            self._new[uid] = report.name

    def copy(self) -> DeletedPods:
        """An independent copy."""
        other = DeletedPods()
        other._held = {node: held.copy() for node, held in self._held.items()}
        other._until, other._new = self._until.copy(), self._new.copy()
        return other

    def on(self, node: str) -> tuple[TerminatingShare, ...]:
        """The shares of such pods on the node."""
        return tuple(share for held in self._held.get(node, {}).values() for share in held)

    def hear(self, report: NodeReport) -> bool:
        """Apply the node's new inventory. True if it reports such pods, which then count as reported."""
        told = _told(report) & self._held.get(report.name, {}).keys()
        for uid in told:
            self._drop(uid, report.name)
        return bool(told)

    def forget(self, node: str) -> None:
        """The node is gone."""
        for uid in list(self._held.get(node, ())):
            self._drop(uid, node)

    def expire(self, now: float) -> set[str]:
        """Drop pods that waited for :data:`SILENCE_SECONDS`; returns the changed nodes."""
        self._until |= {uid: (now + SILENCE_SECONDS, node) for uid, node in self._new.items()}
        self._new.clear()
        silent = [(uid, node) for uid, (until, node) in self._until.items() if until <= now]
        for uid, node in silent:
            self._drop(uid, node)
        return {node for _, node in silent}

    def _drop(self, uid: PodUid, node: str) -> None:
        held = self._held.get(node, {})
        held.pop(uid, None)
        if not held:
            self._held.pop(node, None)
        self._until.pop(uid, None)
        self._new.pop(uid, None)


def _told(report: NodeReport) -> set[PodUid]:
    """The deleted pods of which the node has told."""
    names: Iterable[str] = (*(report.released or ()), *(one.pod for one in report.lingering))
    return {PodUid(name) for name in names}
