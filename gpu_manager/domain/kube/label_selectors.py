"""Kubernetes label selectors: parse them, and match them against labels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from gpu_manager.domain.untrusted import mapping

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
