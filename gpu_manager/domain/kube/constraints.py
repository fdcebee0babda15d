"""Cordons, taints and node affinity: which nodes kube-scheduler would consider for a pod. Pure.

Only for answers to people and for what-if: in a cluster kube-scheduler judges them itself before it calls an
extender.

Label selectors are parsed here, and matched against labels.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpu_manager.domain.errors import quoted
from gpu_manager.domain.untrusted import mapping, mappings, text

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
