"""Keeps the placeholder pods that the plan needs, and no other.

They are found by the watch of pods like all others, and stay out of the accounting: nothing is remembered but
them, so a new leader goes on. Each round makes what is missing and deletes what is too much.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol

import structlog

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.node_choice import ExtenderSimulation
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import CORE, PLACEHOLDER
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.constraints import PodConstraints, pod_constraints
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.domain.whatif.simulation import SimNode, SimPod, nodes_needed

log = structlog.get_logger(__name__)


# How many cards are missing that an autoscaler does not see, since it counts the sums of nodes. Pure.
# An autoscaler takes a pod for placed where the sum of a node's free cores and memory has room, and brings
# nodes for the others. So the pods that wait are gone through as it does: those that fit in sum are
# *believed* placed, the others are *seen*. All of them need so many cards of new nodes; what the seen ones
# bring by their sums is taken off, and the rest is missing.


_MOST_KINDS: Final = 64
MOST: Final = 128  # placeholders of equal constraints; the next are asked for once these have brought nodes


@dataclass(slots=True)
class _Group:
    """The waiting pods of equal constraints, and the nodes that take them."""

    nodes: Sequence[SimNode]
    believed: list[SimPod] = field(default_factory=list)
    seen: list[SimPod] = field(default_factory=list)


def missing_cards(
    nodes: Sequence[SimNode], pods: Sequence[SimPod]
) -> Mapping[PodConstraints, tuple[int, ...]]:
    """For pods that fit on no node, in the order in which they are to be placed: by their constraints, the
    cards that an autoscaler must be asked for, each number on one node.
    """
    left = {node.name: room_in_sum(node) for node in nodes}
    groups: dict[PodConstraints, _Group] = {}
    for pod in pods:
        group = groups.get(pod.constraints)
        if group is None:
            able = [node for node in nodes if not node.constraints.bars(pod.constraints)]
            group = groups[pod.constraints] = _Group(able)
        asked = _sum(pod)
        at = next(
            (n for n in group.nodes if asked.fits_in(left[n.name]) and not n.host.lacks(pod.host)), None
        )
        if at is None:
            group.seen.append(pod)
        else:
            left[at.name] -= asked
            group.believed.append(pod)
    kinds = list(_kinds(nodes))
    found = {constraints: _missing(group, kinds) for constraints, group in groups.items() if group.believed}
    return {constraints: sizes for constraints, sizes in found.items() if sizes}


def room_in_sum(node: SimNode) -> Amount:
    """Return the free cores and memory of the node's open cards as Kubernetes counts them.

    That is more than the ledger has: a pod with whole cards requests none of their memory.
    """
    whole = {s.card for a in node.ledger for s in a.shares if s.amount.cores >= CORES_PER_CARD}
    cards = [state.card for state in node.cards if state.open]
    memory = sum(card.capacity(node.ledger.unit).memory for card in cards if card.uuid in whole)
    return sum((node.ledger.free(card.uuid) for card in cards), Amount(0, memory))


def _sum(pod: SimPod) -> Amount:
    return sum((c.request.total for c in pod.request.containers), ZERO)


def _together(pod: SimPod) -> int:
    """The cards that the pod needs on one node: its whole ones, and those of its parts of several."""
    asked = [c.request for c in pod.request.containers]
    return sum(one.cards for one in asked) + max((one.parts for one in asked if one.parts > 1), default=0)


def _kinds(nodes: Sequence[SimNode]) -> Iterator[SimNode]:
    """A new node of each kind that there is, the most frequent first."""
    fresh = {node.name: node.constraints.fresh("") for node in nodes}
    kinds = {
        node.name: (
            tuple((s.card.model, s.card.memory) for s in node.cards),
            frozenset(fresh[node.name].labels.items()),
            fresh[node.name].taints,
        )
        for node in nodes
    }
    first = {kinds[node.name]: node for node in reversed(nodes)}
    for kind, _ in Counter(kinds.values()).most_common(_MOST_KINDS):
        node = first[kind]
        cards = tuple(CardState(state.card) for state in node.cards)
        ledger = Ledger((state.card for state in cards), node.ledger.unit)
        yield SimNode(node.name, cards, node.topology, ledger, constraints=fresh[node.name])


def _missing(group: _Group, kinds: Sequence[SimNode]) -> tuple[int, ...]:
    first = group.believed[0]
    kind = next((kind for kind in kinds if kind.takes(first) is not None), None)
    if kind is None:
        return ()  # no new node would have room for it
    pods = sorted((*group.believed, *group.seen), key=lambda pod: (-pod.weight, pod.name))
    places = {one.pod: one for one in nodes_needed((), pods, kind).placements}
    cards = {(one.node, index) for one in places.values() for index in one.cards}
    brought = sum((_sum(pod) for pod in group.seen if pod.name in places), ZERO)
    memory = max(s.card.capacity(kind.ledger.unit).memory for s in kind.cards) or 1
    missing = len(cards) - max(-(-brought.cores // CORES_PER_CARD), -(-brought.memory // memory))
    on_one_node = (_together(pod) for pod in group.believed if pod.name in places)
    sizes: list[int] = []
    for together in sorted(on_one_node, reverse=True):
        if together > 1 and sum(sizes) + together <= missing:
            sizes.append(together)
    return tuple([*sizes, *[1] * (missing - sum(sizes))][:MOST])


PERIOD_SECONDS: Final = 3.0
_MOST_PODS: Final = 256  # planned for at once, the most important first
_MOST_NODES: Final = 1000  # that a placeholder keeps off; each is named in it
_HOSTNAME: Final = "kubernetes.io/hostname"
_IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled: no placeholder is ever bound
REASON: Final = "it stands for cards of a node that is to be added, and is never placed"
Obj = Mapping[str, Any]


class PlaceholderApi(Protocol):
    """Pods of the placeholders' namespace. Both raise NodeUnready: no answer, or a refusal."""

    def create(self, body: Obj) -> None:
        """Store the pod, unless one of its name exists."""

    def delete(self, name: str, uid: str) -> None:
        """Delete exactly this pod, if it still exists."""


@dataclass(frozen=True, slots=True)
class _Placeholder:
    name: str
    uid: str
    kind: str  # equal for equal constraints and cards
    constraints: PodConstraints


@dataclass(eq=False, repr=False)
class Placeholders:
    """The placeholder pods of one namespace. Thread-safe; :meth:`round` is for one thread."""

    namespace: str
    api: PlaceholderApi
    cluster: ClusterState
    policy: LeastFragmentation
    quota: QuotaBook
    minimum_cores: int

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._there: dict[str, _Placeholder] = {}  # by UID

    def owns(self, obj: Obj) -> bool:
        """True if the object is a placeholder; one that got onto a node counts like any pod."""
        meta = mapping(obj.get("metadata"))
        ours = meta.get("namespace") == self.namespace and PLACEHOLDER in mapping(meta.get("labels"))
        return ours and not mapping(obj.get("spec")).get("nodeName")

    def see(self, obj: Obj, *, gone: bool) -> None:
        """Take in what the watch shows of any pod."""
        meta = mapping(obj.get("metadata"))
        uid = text(meta.get("uid"))
        with self._lock:
            if gone or meta.get("deletionTimestamp") or not self.owns(obj):
                self._there.pop(uid, None)
                return
            kind, asked = text(mapping(meta.get("labels")).get(PLACEHOLDER)), pod_constraints(obj.get("spec"))
            self._there[uid] = _Placeholder(text(meta.get("name")), uid, kind, asked)

    def retain(self, uids: Collection[str]) -> None:
        """Forget those that a full list does not have."""
        with self._lock:
            self._there = {uid: one for uid, one in self._there.items() if uid in uids}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._there)

    def round(self) -> None:
        """Make and delete what the plan says. Raises NodeUnready: the API server did not take it."""
        nodes, pods = self.unplaced()
        wanted = missing_cards(nodes, pods) if pods else {}
        rooms = {node.name: room_in_sum(node).cores for node in nodes}
        with self._lock:
            left = dict(self._there)
        for constraints, sizes in wanted.items():
            for cards in sorted(set(sizes), reverse=True):
                near = [
                    node
                    for node in nodes
                    if rooms[node.name] >= cards * CORES_PER_CARD and not node.constraints.bars(constraints)
                ]
                if len(near) > _MOST_NODES:
                    log.warning("placeholders_not_made", nodes=len(near), most=_MOST_NODES, cards=cards)
                    continue
                self._settle(constraints, cards, sizes.count(cards), near, left)
        for one in left.values():
            log.info("placeholder_deleted", name=one.name)
            self.api.delete(one.name, one.uid)

    def _settle(
        self,
        constraints: PodConstraints,
        cards: int,
        count: int,
        near: Collection[SimNode],
        left: dict[str, _Placeholder],
    ) -> None:
        """Take ``count`` placeholders of this kind from ``left``, and make what is not there."""
        kind = _kind(constraints, cards)
        taken = {one.name for one in left.values()}
        for uid, one in [(uid, one) for uid, one in left.items() if one.kind == kind]:
            # One that a node has come to have room for in sum tells an autoscaler nothing any more.
            if count and all(node.constraints.bars(one.constraints) for node in near):
                count -= 1
                del left[uid]
        free = (name for at in range(len(taken) + count) if (name := f"cards-{kind}-{at}") not in taken)
        for _, name in zip(range(count), free, strict=False):
            hosts = sorted(node.constraints.labels.get(_HOSTNAME, node.name) for node in near)
            log.info("placeholder_made", name=name, cards=cards, keeps_off=len(hosts))
            self.api.create(self._body(name, kind, constraints, cards, hosts))

    def _body(self, name: str, kind: str, constraints: PodConstraints, cards: int, hosts: list[str]) -> Obj:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {PLACEHOLDER: kind}},
            "spec": {
                **_constraints(constraints, hosts),
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "cards",
                        "image": _IMAGE,
                        "resources": {"limits": {CORE: str(cards * CORES_PER_CARD)}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }
                ],
            },
        }

    def unplaced(self) -> tuple[list[SimNode], list[SimPod]]:
        """The nodes, with each pod that fits somewhere placed there, and the pods that fit nowhere."""
        reserved = self.cluster.snapshot().reserved
        waiting = sorted(
            (
                one
                for one in self.cluster.waiting()
                if one.unschedulable and not (one.gates or one.nominated or one.uid in reserved)
            ),
            key=lambda one: (-one.pod.priority, one.pod.began, one.uid),
        )[:_MOST_PODS]
        if not waiting:
            return [], []
        trial = ExtenderSimulation(self.policy, None, self.minimum_cores)
        found = list(self._without_room(waiting, trial, self.cluster.snapshot()))
        return [_sim_node(view) for view in trial.snapshot.nodes.values() if not view.problem], found

    def _without_room(
        self, waiting: Collection[PodView], trial: ExtenderSimulation, snapshot: Snapshot
    ) -> Iterator[SimPod]:
        judge, quota, able = FeasibilityJudge(), self.quota.current, dict[PodConstraints, list[NodeView]]()
        spent: dict[tuple[str, str], Amount] = {}  # by namespace and model, of the pods so far
        for one in waiting:
            try:
                request = judged_request(one.pod, snapshot.unit, self.minimum_cores)
            except RequestInvalid:
                continue
            if (views := able.get(one.constraints)) is None:
                views = able[one.constraints] = [
                    view for view in snapshot.nodes.values() if not view.constraints.bars(one.constraints)
                ]
            held = quota.of(one.pod.namespace, request.priority) if quota else None
            if held and not _within_quota(judge.ask(one, request, snapshot, held), views, spent):
                continue  # more cards would not help it
            if trial.place(one, (view.name for view in views)) is None:
                yield SimPod(one.uid, one.pod.key, request, constraints=one.constraints, host=one.host)


def _within_quota(
    question: FeasibilityCheck, views: Collection[NodeView], spent: dict[tuple[str, str], Amount]
) -> bool:
    """True if an empty node would take the pod beside what the pods so far will hold; it joins those."""
    space = question.pod.namespace
    used = {m: question.used.get(m, ZERO) + spent.get((space, m), ZERO) for m in question.used}
    used |= {m: amount for (of, m), amount in spent.items() if of == space and m not in used}
    for view in {view.hardware: view for view in views}.values():
        fit = question.when_empty(view)
        if isinstance(fit, Fit) and not question.over_quota(fit, used, question.protected):
            for model, amount in fit.charge:
                spent[space, model] = spent.get((space, model), ZERO) + amount
            return True
    return False


def _sim_node(view: NodeView) -> SimNode:
    return SimNode(
        view.name,
        view.node.cards,
        view.node.topology,
        view.ledger,
        constraints=view.constraints,
        host=view.host,
        features=view.node.features,
    )


def _kind(constraints: PodConstraints, cards: int) -> str:
    written = json.dumps([_constraints(constraints, []), cards], sort_keys=True)
    return sha256(written.encode("utf-8", "replace")).hexdigest()[:10]


def _constraints(constraints: PodConstraints, hosts: list[str]) -> Obj:
    """The fields of a pod's spec by which it goes where these constraints allow, but to none of the hosts."""

    def terms(given: Collection[tuple[str, str, frozenset[str]]]) -> list[Obj]:
        written = ({"key": key, "operator": operator, "values": sorted(of)} for key, operator, of in given)
        return [{k: v for k, v in one.items() if v} for one in written]

    off = ((_HOSTNAME, "NotIn", frozenset(hosts)),) if hosts else ()
    alternatives = constraints.affinity if constraints.affinity is not None else (((), ()),)
    written = [
        {"matchExpressions": terms((*constraints.selector, *labels, *off)), "matchFields": terms(fields)}
        for labels, fields in alternatives
        if labels or fields or constraints.affinity is None
    ]
    required = [{k: v for k, v in term.items() if v} for term in written]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": required}}
    names = ("key", "operator", "value", "effect")
    tolerations = [
        {name: value for name, value in zip(names, one, strict=True) if value}
        for one in constraints.tolerations
    ]
    has_terms = any(required)
    return {
        **({"affinity": {"nodeAffinity": affinity}} if has_terms else {}),
        **({"tolerations": tolerations} if tolerations else {}),
    }
