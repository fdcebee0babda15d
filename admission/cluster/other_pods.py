"""Pods that the watch does not show on a node, or shows without cards: their host CPU, nodes whose agent's
pod is not ready, what replicas of the service say; pods assumed on a node, and those deleted by force.

A kubelet reports an agent whose container was killed within a second or two, and the devices that it withdrew
only with its next status: a pod bound in between fails for good.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from admission.cluster.pod_view import PodView, asked
from admission.cluster.trim import ADMISSION, AGENT, COMPONENT
from admission.config import KEEP_SECONDS, SHORTEST_KEEP_SECONDS
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import FEATURES, TerminatingShare
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import annotations_of, at, mappings, text

# Pods that count as placed on a node before the watch shows them there.
# A pod is *expected* from its scheduler's choice on: the bind may come minutes later, for volumes that are
# provisioned for the chosen node and for gangs that wait until they are complete. It is *reserved* while
# its Binding is in progress.
# The place of an expected pod is kept for at most half of its remaining allowance, which is :data:`ROUNDS`
# times `keep_seconds` a day: a pod that never comes has its place for 15 minutes, then for half of that,
# and so on; one that is filtered again at once loses nothing.


ROUNDS: Final = 2
_FORGOTTEN_SECONDS: Final = 86_400.0
_MOST_SPENT: Final = 1 << 14  # pods; the oldest go


@dataclass(frozen=True, slots=True)
class _Expected:
    occupant: PodView
    began: float
    until: float
    asked: PodView | None  # as its scheduler showed it when it asked; None: it has not asked yet


class AssumedPods:
    """Each pod as it will be once bound. A pod is reserved or expected, not both. Not thread-safe."""

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self._keep = keep_seconds
        self._now = 0.0
        self._reserved: dict[PodUid, PodView] = {}
        self._expected: dict[PodUid, _Expected] = {}
        self._first_end = math.inf  # no place ends before that
        self._spent: dict[PodUid, tuple[float, float]] = {}  # since when, and how many seconds in vain

    def of(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed; None if no place is assumed for it."""
        return self._reserved.get(uid) or self.expected(uid)

    def nodes(self) -> Mapping[PodUid, str]:
        """The node of each."""
        return {
            **{uid: each.occupant.pod.node for uid, each in self._expected.items()},
            **{uid: occupant.pod.node for uid, occupant in self._reserved.items()},
        }

    def reserved(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed, if it is reserved."""
        return self._reserved.get(uid)

    def expected(self, uid: PodUid) -> PodView | None:
        """The pod as it will be once placed, if it is expected."""
        each = self._expected.get(uid)
        return None if each is None else each.occupant

    def all_expected(self) -> list[PodUid]:
        """Every pod that is expected."""
        return list(self._expected)

    def is_given_up(self, occupant: PodView) -> bool:
        """True if its scheduler has since reported that it found no node for the pod, or chose another
        one.
        """
        each = self._expected.get(occupant.uid)
        if each is None or each.asked is None:
            return False
        refused = occupant.verdict not in (0, each.asked.verdict)
        return refused or occupant.nominated not in ("", each.asked.nominated, each.occupant.pod.node)

    def expired(self, now: float) -> list[PodUid]:
        """The pods whose place was kept until ``now`` or earlier. Later calls use this ``now``."""
        self._now = now
        if now < self._first_end:
            return []
        self._first_end = min((e.until for e in self._expected.values() if e.until > now), default=math.inf)
        return [uid for uid, each in self._expected.items() if each.until <= now]

    def reserve(self, occupant: PodView) -> None:
        """Reserve the pod, whose Binding begins; it is no longer expected."""
        self._expected.pop(occupant.uid, None)
        self._reserved[occupant.uid] = occupant

    def expect(self, occupant: PodView, asked: PodView | None, now: float, most: float = math.inf) -> None:
        """Its scheduler has chosen, for ``most`` seconds; ``asked`` is the pod as that has shown it, None
        where it is still to choose: what it said of the pod before ends nothing then.
        """
        self._now = now
        since, spent = self._spent.get(occupant.uid, (now, 0.0))
        if now - since >= _FORGOTTEN_SECONDS:
            del self._spent[occupant.uid]
            spent = 0.0
        until = now + min(most, max(SHORTEST_KEEP_SECONDS, self._keep - spent / ROUNDS))
        self._expected[occupant.uid] = _Expected(occupant, now, until, asked)
        self._first_end = min(self._first_end, until)

    def release(self, uid: PodUid) -> PodView | None:
        """End the pod's reservation, and return it."""
        return self._reserved.pop(uid, None)

    def unexpect(self, uid: PodUid) -> PodView | None:
        """End the pod's expectation, and return it."""
        each = self._expected.pop(uid, None)
        if each is None:
            return None
        since, spent = self._spent.pop(uid, (each.began, 0.0))
        self._spent[uid] = since, spent + max(0.0, min(self._now, each.until) - each.began)
        if len(self._spent) > _MOST_SPENT:
            del self._spent[next(iter(self._spent))]
        return each.occupant

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or bound: its earlier places no longer count against its allowance."""
        self._spent.pop(uid, None)

    def copy(self) -> AssumedPods:
        """An independent copy."""
        other = AssumedPods(self._keep)
        other._reserved, other._expected = self._reserved.copy(), self._expected.copy()
        other._spent, other._now, other._first_end = self._spent.copy(), self._now, self._first_end
        return other


# Pods deleted by force: they count on their node until it reports that their processes have ended.
# The API forgets such a pod at once, the kubelet ends its processes after that, and the node's inventory is
# updated later still. Meanwhile their shares must not be promised to other pods.


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


_ENDED = ("Succeeded", "Failed")


class OtherPods:
    """Host CPU of each such pod on its node. Every change returns the nodes it affects. Not thread-safe.

    The agents' pods are those of ``namespace``, where no tenant can create one.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._pods: dict[PodUid, tuple[str, int, bool | None]] = {}
        self._used: dict[str, int] = {}
        self._agents: dict[str, dict[PodUid, bool]] = {}  # node → the agents' pods there: ready?
        self._replicas: dict[PodUid, tuple[str, frozenset[str]]] = {}  # of this service that may serve

    def cpu(self, node: str) -> int:
        """Thousandths of a CPU that these pods take of a node."""
        return self._used.get(node, 0)

    def agent_away(self, node: str) -> bool:
        """True if the kubelet reports every agent's pod there as not ready; False if there is none."""
        agents = self._agents.get(node)
        return agents is not None and not any(agents.values())

    def take(self, uid: PodUid, obj: Mapping[str, Any]) -> set[str]:
        """Apply the pod's object; a status without relevant changes has no effect."""
        node = text(at(obj, "spec").get("nodeName"))
        if not uid or not node or at(obj, "status").get("phase") in _ENDED:
            return self.drop(uid)
        self._note_replica(uid, obj)
        cpu, ready = asked(obj), self._agent_ready(obj)
        if self._pods.get(uid) == (node, cpu, ready):
            return set()
        touched = self._forget(uid)
        self._pods[uid] = node, cpu, ready
        self._used[node] = self._used.get(node, 0) + cpu
        if ready is not None:
            self._agents.setdefault(node, {})[uid] = ready
        return touched | {node}

    def _note_replica(self, uid: PodUid, obj: Mapping[str, Any]) -> None:
        """One whose containers have not started is called by no API server, whatever release it is of."""
        statuses = mappings(at(obj, "status").get("containerStatuses")) if self._is_of(obj, ADMISSION) else ()
        if statuses and all(one.get("started") is True for one in statuses):
            features = text(annotations_of(obj).get(FEATURES)).split(",")
            name = f"{self._namespace}/{at(obj, 'metadata').get('name')}"
            self._replicas[uid] = name, frozenset(map(str.strip, features))
        else:
            self._replicas.pop(uid, None)

    def _agent_ready(self, obj: Mapping[str, Any]) -> bool | None:
        """None for a pod that is no agent's, or of which no kubelet has said anything."""
        statuses = mappings(at(obj, "status").get("containerStatuses"))
        if not (statuses and self._is_of(obj, AGENT)):
            return None
        return all(one.get("ready") is True for one in statuses)

    def _is_of(self, obj: Mapping[str, Any], component: str) -> bool:
        meta = at(obj, "metadata")
        return meta.get("namespace") == self._namespace and at(meta, "labels").get(COMPONENT) == component

    def without_feature(self, feature: str) -> str:
        """A replica of this service that runs, and whose pod does not name the feature; empty for none."""
        return min(
            (name for name, features in self._replicas.values() if feature not in features), default=""
        )

    def drop(self, uid: PodUid) -> set[str]:
        """The pod is gone."""
        self._replicas.pop(uid, None)
        return self._forget(uid)

    def _forget(self, uid: PodUid) -> set[str]:
        node, cpu, ready = self._pods.pop(uid, ("", 0, None))
        if not node:
            return set()
        if ready is not None:
            del self._agents[node][uid]
            if not self._agents[node]:
                del self._agents[node]
        self._used[node] -= cpu
        if not self._used[node]:
            del self._used[node]
        return {node}

    def copy(self) -> OtherPods:
        """An independent copy."""
        other = OtherPods(self._namespace)
        other._pods, other._used = self._pods.copy(), self._used.copy()
        other._agents = {node: agents.copy() for node, agents in self._agents.items()}
        other._replicas = self._replicas.copy()
        return other

    def keep(self, uids: Collection[PodUid]) -> set[str]:
        """All pods but these are gone."""
        gone = [uid for uid in self._pods if uid not in uids]
        return set().union(*map(self.drop, gone))
