"""Label and field selectors: text or object in, a predicate over objects out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.api.kinds import Resource
from sandbox.api.status import bad_request

Predicate = Callable[[Mapping[str, Any]], bool]

# The fields that can be selected by, as in the API server's conversion functions.
_FIELDS: dict[str, frozenset[str]] = {
    "pods": frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "events": frozenset(
        {
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    ),
    "resourceslices": frozenset({"spec.nodeName", "spec.driver"}),
    "secrets": frozenset({"type"}),
    "namespaces": frozenset({"status.phase"}),
}
_COMMON = frozenset({"metadata.name", "metadata.namespace"})


def field_selector(text: str, resource: Resource) -> Predicate:
    """Read ``spec.nodeName=n1,status.phase!=Failed``."""
    terms: list[tuple[tuple[str, ...], bool, str]] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", part)
        if match is None:
            raise bad_request(f'unable to parse the field selector: "{part}"')
        field = match[1]
        if field not in _COMMON and field not in _FIELDS.get(resource.plural, frozenset()):
            raise bad_request(f"field label not supported: {field}")
        terms.append((tuple(field.split(".")), match[2] != "!=", match[3]))
    return lambda obj: all((_value(obj, path) == value) is equal for path, equal, value in terms)


def _value(obj: Mapping[str, Any], path: tuple[str, ...]) -> str:
    here: Any = obj
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    if path == ("source",) and isinstance(here, Mapping):
        here = here.get("component")
    if isinstance(here, bool) or (here is None and path[-1] in ("unschedulable", "hostNetwork")):
        return "true" if here else "false"
    return "" if here is None else str(here)


_SET = re.compile(r"(!?)\s*([\w./-]+)\s*(?:(==|!=|=)\s*([\w.-]*)|\s(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")


def label_selector(text: str) -> Predicate:
    """Read ``app=web,tier!=db,env in (a,b),!legacy``."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _SET.match(text, position)
        if match is None:
            raise bad_request(f'unable to parse the label selector: "{text}"')
        position = match.end()
        negated, key, operator, value, membership, values = match.groups()
        if negated:
            tests.append(_label_test(key, "DoesNotExist", ()))
        elif operator:
            tests.append(_label_test(key, "NotIn" if operator == "!=" else "In", (value,)))
        elif membership:
            chosen = tuple(v.strip() for v in values.split(","))
            tests.append(_label_test(key, "In" if membership == "in" else "NotIn", chosen))
        else:
            tests.append(_label_test(key, "Exists", ()))
    return _over_labels(tests)


def selector_object(selector: Mapping[str, Any] | None) -> Predicate:
    """Read a ``LabelSelector`` object; None selects nothing, an empty one everything."""
    if selector is None:
        return lambda _: False
    tests = [_label_test(k, "In", (str(v),)) for k, v in (selector.get("matchLabels") or {}).items()]
    tests += [
        _label_test(str(e.get("key")), str(e.get("operator")), tuple(map(str, e.get("values") or ())))
        for e in selector.get("matchExpressions") or ()
    ]
    return _over_labels(tests)


def _over_labels(tests: list[Callable[[Mapping[str, str]], bool]]) -> Predicate:
    def matches(obj: Mapping[str, Any]) -> bool:
        labels = (obj.get("metadata") or {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(key: str, operator: str, values: tuple[str, ...]) -> Callable[[Mapping[str, str]], bool]:
    if operator == "In":
        return lambda labels: labels.get(key) in values
    if operator == "NotIn":
        return lambda labels: labels.get(key) not in values
    if operator == "Exists":
        return lambda labels: key in labels
    if operator == "DoesNotExist":
        return lambda labels: key not in labels
    raise bad_request(f'"{operator}" is not a valid label selector operator')
