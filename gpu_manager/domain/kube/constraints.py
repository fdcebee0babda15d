"""Which nodes kube-scheduler would consider for a pod: cordons, taints, affinity, CPU, memory, slots. Pure.

Only for answers to people and for what-if: in a cluster kube-scheduler judges them itself before it calls an
extender.

Label selectors are parsed here, and matched against labels.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import format_bytes, parse_quantity
from gpu_manager.domain.untrusted import mapping, mappings, text

# What a pod requests of a node beside its cards, and what the node has: CPU, memory, pod slots, ids. Pure.
# Kube-scheduler decides by them. The extender only uses them in its scores, and what-if reports them.


THOUSANDTHS: Final = 1000
_OF_WHOLE_PODS: Final = ("cpu", "memory")  # which Kubernetes lets a pod request as a whole
_UNSAID: Final = 1 << 62  # a resource that a node does not report is taken as plentiful


@dataclass(frozen=True, slots=True)
class HostResources:
    """``cpu`` in thousandths of a core, ``memory`` in bytes, ``pods`` as a number.

    ``core_ids`` and ``memory_ids`` are device ids of the kubelet: where pods shrank, fewer are left than the
    cards have room for.
    """

    cpu: int = 0
    memory: int = 0
    pods: int = 0
    core_ids: int = 0
    memory_ids: int = 0

    def __add__(self, other: HostResources) -> HostResources:
        return HostResources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.pods + other.pods,
            self.core_ids + other.core_ids,
            self.memory_ids + other.memory_ids,
        )

    def __sub__(self, other: HostResources) -> HostResources:
        return HostResources(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.pods - other.pods,
            self.core_ids - other.core_ids,
            self.memory_ids - other.memory_ids,
        )

    def lacks(self, asked: HostResources) -> str:
        """Resources that are too small for the pod, as a phrase after a node's name; empty if none is."""
        if asked.cpu and self.cpu < asked.cpu:
            return f"has less host CPU free than the {asked.cpu / THOUSANDTHS:g} that the pod asks for"
        if asked.memory and self.memory < asked.memory:
            return f"has less host memory free than the {format_bytes(asked.memory)} that the pod asks for"
        return "holds as many pods as it may" if self.pods < asked.pods else ""

    def lacks_ids(self, asked: HostResources) -> str:
        """Device ids that are too few for the pod, as a phrase after a node's name; empty if none are."""
        ids = ((CORE, self.core_ids, asked.core_ids), (MEMORY, self.memory_ids, asked.memory_ids))
        for resource, left, wanted in ids:
            if wanted and left < wanted:
                return f"has {max(0, left)} device ids of {resource} left, and the pod asks for {wanted}"
        return ""


ANY: Final = HostResources(_UNSAID, _UNSAID, _UNSAID, _UNSAID, _UNSAID)
ONE_POD: Final = HostResources(pods=1)


def host_of_pod(pod: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Pod requests."""
    ids = asked(pod, CORE), asked(pod, MEMORY)
    return HostResources(asked(pod, "cpu", THOUSANDTHS), asked(pod, "memory"), 1, *ids)


def host_of_node(node: Mapping[str, Any]) -> HostResources:
    """What a core/v1 Node offers to pods; resources that it does not report are plentiful."""
    names = ("memory", "pods", CORE, MEMORY)
    parts = (allocatable(node, "cpu", THOUSANDTHS), *(allocatable(node, name) for name in names))
    return HostResources(*(_UNSAID if part is None else part for part in parts))


def asked(pod: Mapping[str, Any], resource: str, parts: int = 1) -> int:
    """The pod's effective request as kube-scheduler counts it, in ``1 / parts`` of the resource's unit.

    That is the peak over init and app containers, with sidecars and overhead; for CPU and memory the
    pod-level request, if there is one. A limit stands for a missing request, as in the API server's
    defaulting.
    """
    spec = mapping(pod.get("spec"))
    together, worst = 0, 0
    for container in mappings(spec.get("initContainers")):
        amount = _of_container(container, resource, parts)
        if container.get("restartPolicy") == "Always":
            together += amount
            worst = max(worst, together)
        else:
            worst = max(worst, together + amount)
    for container in mappings(spec.get("containers")):
        together += _of_container(container, resource, parts)
    own = max(worst, together)
    of_pod = mapping(mapping(spec.get("resources")).get("requests"))
    if resource in _OF_WHOLE_PODS and (resource in of_pod or not own):
        own = _of_container(spec, resource, parts)
    return own + _amount(mapping(spec.get("overhead")).get(resource), parts)


def allocatable(node: Mapping[str, Any], resource: str, parts: int = 1) -> int | None:
    """The allocatable amount of a core/v1 Node; None if it does not report any."""
    given = mapping(mapping(node.get("status")).get("allocatable"))
    return _amount(given[resource], parts) if resource in given else None


def _of_container(container: Mapping[str, Any], resource: str, parts: int) -> int:
    resources = mapping(container.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    return _amount(requests.get(resource, limits.get(resource)), parts)


def _amount(value: object, parts: int) -> int:
    """A quantity as a number; a malformed one, which the API server would refuse, counts as 0."""
    try:
        return max(0, ceil(parse_quantity(value or 0) * parts))
    except RequestInvalid:
        return 0


_MOST_EXPRESSIONS = 64

_SHOWN = {
    "In": "{}={}",
    "NotIn": "{}!={}",
    "Exists": "{}",
    "DoesNotExist": "no {}",
    "Gt": "{}>{}",
    "Lt": "{}<{}",
}

Term = tuple[str, str, frozenset[str]]
"""Key, operator, values."""


def read_terms(selector: object) -> tuple[Term, ...] | None:
    """Return the terms of a selector, all of which labels must meet; None if it is no selector.

    Equal keys and values are held once, since thousands of pods name the same nodes.
    Reads ``matchLabels`` and ``matchExpressions`` of a workload, a budget, or one term of a node affinity.
    """
    if not isinstance(selector, Mapping):
        return None
    terms = [
        (sys.intern(str(k)), "In", frozenset({sys.intern(str(v))}))
        for k, v in mapping(selector.get("matchLabels")).items()
    ]
    expressions = selector.get("matchExpressions")
    for expression in (expressions if isinstance(expressions, list) else [])[:_MOST_EXPRESSIONS]:
        one = mapping(expression)
        values = one.get("values")
        listed = frozenset(sys.intern(str(v)) for v in values) if isinstance(values, list) else frozenset()
        terms.append((sys.intern(str(one.get("key"))), sys.intern(str(one.get("operator"))), listed))
    return tuple(terms)


def meets(labels: Mapping[str, str], terms: Iterable[Term]) -> bool:
    """True if the labels meet every term."""
    return all(_meets(labels, *term) for term in terms)


def _meets(labels: Mapping[str, str], key: str, operator: str, values: frozenset[str]) -> bool:
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator in ("Gt", "Lt"):  # of node affinities alone, with one value
        numbers = (labels.get(key, ""), *values)
        if len(numbers) != 2 or not all(text.removeprefix("-").isdecimal() for text in numbers):
            return False
        label, bound = map(int, numbers)
        return label > bound if operator == "Gt" else label < bound
    return operator == "DoesNotExist" and key not in labels


def shown_terms(terms: Iterable[Term]) -> str:
    """Format terms as ``pool=gpu and zone``. The result is untrusted text, not yet escaped."""
    return " and ".join(
        _SHOWN.get(operator, "{}").format(key, "|".join(sorted(values))) for key, operator, values in terms
    )


_CLOSING: Final = ("NoSchedule", "NoExecute")  # PreferNoSchedule forbids nothing
_CORDON: Final = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
_LIFECYCLE: Final = (
    "node.kubernetes.io/"  # the cluster's taints for a node's state, which a new node would not have
)
_HOSTNAME: Final = "kubernetes.io/hostname"
_NAME: Final = "metadata.name"
_REASONS: Final = 3  # of nodes that keep a pod off, that are shown
_MOST: Final = 64  # taints, tolerations or terms read of one object, which users may have written

Taint = tuple[str, str, str]
"""Key, value, effect."""

Alternative = tuple[tuple[Term, ...], tuple[Term, ...]]
"""What the labels, and what the fields of a node must meet."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodConstraints:
    """What a pod requires of nodes. ``affinity``: alternatives; None requires nothing.

    ``tolerations``: key, operator, value and effect of each.
    """

    selector: tuple[Term, ...] = ()
    affinity: tuple[Alternative, ...] | None = None
    tolerations: tuple[tuple[str, str, str, str], ...] = ()

    def tolerates(self, taint: Taint) -> bool:
        """True if one of the tolerations covers the taint."""
        key, value, effect = taint
        return any(
            (at == key or (not at and operator == "Exists"))
            and (not of or of == effect)
            and (operator == "Exists" or (operator in ("", "Equal") and said == value))
            for at, operator, said, of in self.tolerations
        )

    def only(self, node: str) -> PodConstraints:
        """These constraints, bound to one node, as the DaemonSet controller writes them into its pods."""
        return replace(self, affinity=(((), ((_NAME, "In", frozenset({node})),)),))


ANYWHERE: Final = PodConstraints()
DAEMONS: Final = tuple(  # tolerations that the DaemonSet controller adds to its pods
    (f"{_LIFECYCLE}{state}", "Exists", "", effect)
    for state, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """What a node demands of pods. ``closed`` says what keeps every pod off, in the words of :meth:`bars`."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    closed: str = ""

    def bars(self, constraints: PodConstraints) -> str:
        """What keeps the pod off, as a phrase after the node's name; empty if nothing does."""
        if self.closed:
            return self.closed
        if self.cordoned and not constraints.tolerates(_CORDON):
            return "is cordoned"
        for taint in self.taints:
            if taint != _CORDON and not constraints.tolerates(taint):
                return f"has the taint {quoted(_shown(taint))}, which the pod does not tolerate"
        missing = [term for term in constraints.selector if not meets(self.labels, (term,))]
        if missing:
            return f"lacks what the pod selects: {quoted(shown_terms(missing))}"
        if constraints.affinity is not None and not any(self._meets(one) for one in constraints.affinity):
            asked = " or ".join(shown_terms((*labels, *fields)) for labels, fields in constraints.affinity)
            return f"does not meet the pod's node affinity: {quoted(asked)}"
        return ""

    def _meets(self, alternative: Alternative) -> bool:
        labels, fields = alternative
        # A term without any expression selects nothing.
        return bool(labels or fields) and meets(self.labels, labels) and meets({_NAME: self.name}, fields)

    def fresh(self, name: str) -> NodeConstraints:
        """The constraints of a new node of the same kind: no cordon, no taints of state, its own name."""
        labels = {**self.labels, _HOSTNAME: name} if _HOSTNAME in self.labels else self.labels
        return NodeConstraints(
            name, labels, taints=tuple(t for t in self.taints if not t[0].startswith(_LIFECYCLE))
        )


OPEN: Final = NodeConstraints()


def shown_bars(barred: Mapping[str, str]) -> str:
    """The most frequent reasons why nodes keep a pod off, each with an example; by name of node."""
    counts = Counter(barred.values())
    first: dict[str, str] = {}
    for name, reason in barred.items():
        first.setdefault(reason, name)
    more_nodes = {1: "", 2: " (and 1 more node)"}
    said = [
        f"{quoted(first[reason])} {reason}" + more_nodes.get(count, f" (and {count - 1} more nodes)")
        for reason, count in counts.most_common(_REASONS)
    ]
    more = f"; {len(counts) - _REASONS} more reasons" if len(counts) > _REASONS else ""
    return "; ".join(said) + more


def _shown(taint: Taint) -> str:
    key, value, effect = taint
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"


def node_constraints(obj: Mapping[str, Any]) -> NodeConstraints:
    """Read a core/v1 Node; malformed parts count as absent."""
    meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    labels = {  # most are the same on every node, and stored once
        sys.intern(k): sys.intern(v)
        for k, v in mapping(meta.get("labels")).items()
        if isinstance(k, str) and isinstance(v, str)
    }
    taints = tuple(
        (text(one.get("key")), text(one.get("value")), text(one.get("effect")))
        for one in _entries(spec.get("taints"))
        if one.get("effect") in _CLOSING
    )
    return NodeConstraints(
        text(meta.get("name")), labels, spec.get("unschedulable") is True or _CORDON in taints, taints
    )


def pod_constraints(spec: object) -> PodConstraints:
    """Read a pod's spec; malformed parts count as absent."""
    asked = mapping(spec)
    node = mapping(mapping(asked.get("affinity")).get("nodeAffinity"))
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    return PodConstraints(
        read_terms({"matchLabels": mapping(asked.get("nodeSelector"))}) or (),
        tuple(_alternatives(required)) if isinstance(required, Mapping) else None,
        tuple(
            (text(one.get("key")), text(one.get("operator")), text(one.get("value")), text(one.get("effect")))
            for one in _entries(asked.get("tolerations"))
        ),
    )


def _alternatives(required: Mapping[str, Any]) -> Iterator[Alternative]:
    for term in _entries(required.get("nodeSelectorTerms")):
        labels = read_terms({"matchExpressions": term.get("matchExpressions")}) or ()
        yield labels, read_terms({"matchExpressions": term.get("matchFields")}) or ()


def _entries(value: object) -> list[Mapping[str, Any]]:
    return mappings(value)[:_MOST]
