"""The rulebook's rules as CEL, each with its text, for the policies of
:mod:`tools.policies`.

The CEL is that of Kubernetes 1.30 and later: quantity, list and string extensions, no optionals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from admission.config import ClusterTerms
from gpu_manager.domain import contract
from gpu_manager.domain.kube.pod import MIRROR
from gpu_manager.domain.kube.several_cards import MOST_PARTS
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, format_bytes
from gpu_manager.domain.rules.legal_values import MOST_ASKING
from gpu_manager.domain.rules.pod_annotations import FIXED, LISTS, LONGEST_LIST, ONE_OF
from gpu_manager.domain.rules.rulebook import Rule
from gpu_manager.domain.rules.unknown_names import EPHEMERAL_SHOWN

_LARGEST_CORES: Final = LARGEST_COUNT // CORES_PER_CARD * CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """One rule: a condition that must hold, and the message if it does not (both CEL)."""

    rule: Rule
    holds: str
    says: str


# CEL over one container, named c.


def _wrote(resource: str, where: str = "limits") -> str:
    return f"has(c.resources) && has(c.resources.{where}) && '{resource}' in c.resources.{where}"


def _quantity(resource: str, where: str = "limits", c: str = "c") -> str:
    return f"quantity({c}.resources.{where}['{resource}'])"


_INIT: Final = "(has(object.spec.initContainers) ? object.spec.initContainers : [])"
_CORES: Final = f"{_quantity(contract.CORE)}.asInteger()"
_POSITIVE: Final = f"{_quantity(contract.CORE)}.compareTo(quantity('0')) > 0"
_ASKS: Final = f"{_wrote(contract.CORE)} && {_quantity(contract.CORE)}.isInteger() && {_POSITIVE}"
_SIDECAR: Final = "has(c.restartPolicy) && c.restartPolicy == 'Always'"
_PRIVILEGED: Final = (
    "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged"
)
_ANNOTATED: Final = "has(object.metadata.annotations)"


def mentions(*places: str) -> Mapping[str, str]:
    """Holds for pods of which a container names one of our resources there."""
    named = (
        f"({_wrote(resource, where)})" for resource in (contract.CORE, contract.MEMORY) for where in places
    )
    return {"asks-for-cards": f"(object.spec.containers + {_INIT}).exists(c, {' || '.join(named)})"}


NOT_MIRROR: Final = (
    f"!({_ANNOTATED} && '{MIRROR}' in object.metadata.annotations "
    "&& has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)"
)
# Containers by what they wrote; "asking" are those that ask for cores in whole numbers.
VARIABLES: Final = {
    "all": f"object.spec.containers + {_INIT}",
    "core": f"variables.all.filter(c, {_wrote(contract.CORE)})",
    "memory": f"variables.all.filter(c, {_wrote(contract.MEMORY)})",
    "gpus": f"variables.all.filter(c, {_wrote(contract.NVIDIA)})",
    "parts": f"variables.core.filter(c, {_quantity(contract.CORE)}.compareTo(quantity('0')) > 0 "
    f"&& {_quantity(contract.CORE)}.isLessThan(quantity('{CORES_PER_CARD}')))",
    "asking": f"variables.core.filter(c, {_ASKS})",
    # With parts of several cards amounts are totals: the webhook and the node judge these.
    "spread": f"{_ANNOTATED} && '{contract.CARDS}' in object.metadata.annotations",
    "initAsking": f"{_INIT}.filter(c, {_ASKS})",
    "initNames": "variables.initAsking.map(c, c.name)",
    "ordinary": f"variables.initAsking.filter(c, !({_SIDECAR}))",
    "sidecars": f"variables.initAsking.filter(c, {_SIDECAR})",
    "apps": f"object.spec.containers.filter(c, {_ASKS})",
}


_RESOURCES: Final = {"core": contract.CORE, "memory": contract.MEMORY}


def request_checks(terms: ClusterTerms) -> Iterator[PolicyCheck]:
    """The rules for containers' requests."""
    unit, minimum = _text(format_bytes(terms.unit)), _text(str(terms.minimum_cores))
    for having, largest in (("core", _LARGEST_CORES), ("memory", LARGEST_COUNT // terms.unit)):
        yield from _numbers(_RESOURCES[having], having, largest, unit)
    cards = f"{_CORES} / {CORES_PER_CARD}"
    figures = {
        "value": _written(contract.CORE),
        "unit": unit,
        "minimum": minimum,
        "nearest": f"string({cards} * {CORES_PER_CARD}) + ' or ' + string(({cards} + 1) * {CORES_PER_CARD})",
    }
    if terms.minimum_cores > 1:
        below = f"{_CORES} < {terms.minimum_cores}"
        yield _container(Rule.CORE_BELOW_MINIMUM, "asking", below, {**figures, "nearest": minimum})
    multiple = f"!variables.spread && {_CORES} > {CORES_PER_CARD} && {_CORES} % {CORES_PER_CARD} != 0"
    yield _container(Rule.CORE_NOT_MULTIPLE, "asking", multiple, figures)
    no_core = f"!({_wrote(contract.CORE)} && {_quantity(contract.CORE)}.compareTo(quantity('0')) != 0)"
    yield _container(
        Rule.MEMORY_WITHOUT_CORE,
        "memory",
        f"{_quantity(contract.MEMORY)}.compareTo(quantity('0')) > 0 && {no_core}",
        {**figures, "value": _written(contract.MEMORY)},
    )
    no_memory = f"!({_wrote(contract.MEMORY)} && {_quantity(contract.MEMORY)}.compareTo(quantity('0')) != 0)"
    yield _container(Rule.FRACTION_WITHOUT_MEMORY, "parts", no_memory, figures)
    yield _container(Rule.PRIVILEGED_FRACTION, "parts", _PRIVILEGED, figures)
    yield _visible_devices("all")
    for resource in _RESOURCES.values():
        yield _requests(resource)
    ours = (
        f"variables.{n}.exists(s, {_quantity(r, c='s')}.compareTo(quantity('0')) != 0)"
        for n, r in _RESOURCES.items()
    )
    both = f"{_quantity(contract.NVIDIA)}.compareTo(quantity('0')) != 0 && ({' || '.join(ours)})"
    yield _container(Rule.NAMES_MIXED, "gpus", both, {"value": _written(contract.NVIDIA)})
    yield _init_cards()
    yield PolicyCheck(
        Rule.CONTAINERS_TOO_MANY,
        f"variables.core.filter(c, {_POSITIVE}).size() <= {MOST_ASKING}",
        _says(
            Rule.CONTAINERS_TOO_MANY,
            {
                "value": f"string(variables.core.filter(c, {_POSITIVE}).size())",
                "nearest": _text(str(MOST_ASKING)),
            },
        ),
    )
    asks = " || ".join(
        f"variables.{n}.exists(c, {_quantity(r)}.compareTo(quantity('0')) != 0)"
        for n, r in _RESOURCES.items()
    )
    free = f"!has(object.spec.nodeName) || object.spec.nodeName == '' || !({asks})"
    named = {"value": _quoted("object.spec.nodeName")}
    protected = (
        f"{_ANNOTATED} && '{contract.PRIORITY}' in object.metadata.annotations "
        f"&& {_annotation(contract.PRIORITY)} == '{Priority.PROTECTED.value}'"
    )
    yield PolicyCheck(
        Rule.PRIORITY_PAST_SCHEDULER,
        f"{free} || !({protected})",
        _says(Rule.PRIORITY_PAST_SCHEDULER, {**named, "field": _text("spec.nodeName")}),
    )
    if terms.deny_node_name:
        yield PolicyCheck(Rule.NODE_NAME_SET, free, _says(Rule.NODE_NAME_SET, named))


def _numbers(resource: str, having: str, largest: int, unit: str) -> Iterator[PolicyCheck]:
    """Whole numbers that Kubernetes can count; the API server itself refuses most others before."""
    negative, too_large, not_whole = (
        (Rule.CORE_NEGATIVE, Rule.CORE_TOO_LARGE, Rule.CORE_NOT_WHOLE)
        if resource == contract.CORE
        else (Rule.MEMORY_NEGATIVE, Rule.MEMORY_TOO_LARGE, Rule.MEMORY_NOT_WHOLE)
    )
    quantity, figures = _quantity(resource), {"value": _written(resource), "unit": unit}
    above = f"{quantity}.isGreaterThan(quantity('{largest}'))"
    broken = f"{quantity}.compareTo(quantity('0')) > 0 && !{quantity}.isInteger()"
    yield _container(negative, having, f"{quantity}.compareTo(quantity('0')) < 0", figures)
    yield _container(too_large, having, above, figures)
    yield _container(
        not_whole, having, f"{broken} && !{above}", {**figures, "nearest": _around(quantity, resource)}
    )


def _around(quantity: str, resource: str) -> str:
    """The whole numbers on either side; past one card that is whole cards."""
    whole = f"int({quantity}.asApproximateFloat())"
    near = f"string({whole}) + ' or ' + string({whole} + 1)"
    cards = f"{whole} / {CORES_PER_CARD}"
    far = f"string({cards} * {CORES_PER_CARD}) + ' or ' + string(({cards} + 1) * {CORES_PER_CARD})"
    past = f"{whole} >= {CORES_PER_CARD} ? {far} : {near}" if resource == contract.CORE else near
    return f"({whole} < 1 ? '1' : ({past}))"


def _written(resource: str, where: str = "limits") -> str:
    return f"string(c.resources.{where}['{resource}'])"


def _visible_devices(having: str) -> PolicyCheck:
    hidden = ", ".join(map(_text, contract.NO_VISIBLE_DEVICES))
    chosen = f"(has(e.valueFrom) || (has(e.value) && !(e.value in [{hidden}])))"
    shows = f"e.name == '{contract.VISIBLE_ENV}' && {chosen}"
    first = f"c.env.filter(e, {shows})[0]"
    value = f"(has({first}.valueFrom) ? 'valueFrom' : {first}.value)"
    ours = "(variables.core.size() > 0 || variables.memory.size() > 0)"  # in limits: else it asks for none
    broken = f"{ours} && has(c.env) && c.env.exists(e, {shows})"
    return _container(Rule.VISIBLE_DEVICES_SET, having, broken, {"value": _quoted(value)})


_OLD: Final = "oldObject.spec.ephemeralContainers"
# Those that are added: what is there already may stay.
EPHEMERAL_VARIABLES: Final = {
    **VARIABLES,
    "ephemeral": "(has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
    f".filter(c, !(has({_OLD}) && {_OLD}.exists(o, o.name == c.name)))",
}


def ephemeral_checks() -> Iterator[PolicyCheck]:
    """The rules for ephemeral containers of a pod that requests cards; they themselves get none."""
    yield _visible_devices("ephemeral")
    named = f"has(c.env) && c.env.exists(e, e.name == '{contract.VISIBLE_ENV}')"
    broken = f"has(c.envFrom) && c.envFrom.size() > 0 && !({named})"
    yield _container(Rule.ENV_FROM, "ephemeral", broken, {"value": _text(EPHEMERAL_SHOWN)})


def privileged_checks() -> Iterator[PolicyCheck]:
    """The rules for ephemeral containers that reach every card, beside a part of one."""
    broken = f"variables.parts.size() > 0 && {_PRIVILEGED}"
    figures = {"value": _quoted("variables.parts[0].name")}
    yield _container(Rule.PRIVILEGED_BESIDE_SHARE, "ephemeral", broken, figures)


def _requests(resource: str) -> PolicyCheck:
    limit = _wrote(resource)
    same = f"{limit} && {_quantity(resource)}.compareTo({_quantity(resource, 'requests')}) == 0"
    figures = {
        "field": _text(resource),
        "value": _written(resource, "requests"),
        "limit": f"({limit} ? {_written(resource)} : 'nothing')",
    }
    return _container(Rule.REQUESTS_DIFFER, "all", f"{_wrote(resource, 'requests')} && !({same})", figures)


def _init_cards() -> PolicyCheck:
    one, other = _CORES, f"{_quantity(contract.CORE, c='s')}.asInteger()"
    earlier = "variables.initNames.indexOf(s.name) < variables.initNames.indexOf(c.name)"
    in_turn = (
        f"variables.ordinary.exists(c, {one} "
        f"+ variables.sidecars.filter(s, {earlier}).map(s, {other}).sum() > {CORES_PER_CARD})"
    )
    together = (
        f"variables.sidecars.map(c, {one}).sum() + variables.apps.map(c, {one}).sum() > {CORES_PER_CARD}"
    )
    equal = (
        f"variables.asking.all(c, {one} % {CORES_PER_CARD} == 0 && variables.asking.all(s, {other} == {one}))"
    )
    shapes = f"""variables.asking.map(s, string({other}) + ' ("' + s.name + '")').join(', ')"""
    says = _says(Rule.INIT_CONTAINER_CARDS, {"value": f"string({one})", "shapes": shapes})
    return PolicyCheck(
        Rule.INIT_CONTAINER_CARDS,
        f"variables.spread || variables.ordinary.size() == 0 || !({in_turn} || {together}) || {equal}",
        f"variables.ordinary.map(c, {says})[0]",
    )


def annotation_checks() -> Iterator[PolicyCheck]:
    """The rules for the annotations that users may set."""
    largest = f"([1] + variables.parts.filter(c, {_ASKS}).map(c, {_CORES})).max()"
    lowest, number = f"string({largest})", f"int({_annotation(contract.CORE_LIMIT)})"
    integer = f"{_annotation(contract.CORE_LIMIT)}.matches('^[+-]?[0-9]{{1,18}}$')"
    clamped = f"string({number} > {CORES_PER_CARD} ? {CORES_PER_CARD} : {largest})"
    within = f"({number} >= {largest} && {number} <= {CORES_PER_CARD})"
    yield _wish(Rule.CEILING_NOT_INTEGER, contract.CORE_LIMIT, integer, {"nearest": lowest})
    yield _wish(
        Rule.CEILING_OUT_OF_RANGE,
        contract.CORE_LIMIT,
        f"variables.spread || !{integer} || {within}",
        {"nearest": clamped, "lowest": lowest, "value": _annotation(contract.CORE_LIMIT)},
    )
    for key, (rule, names) in ONE_OF.items():
        yield _wish(rule, key, f"{_annotation(key)} in {[*names]}", {"nearest": _text(" or ".join(names))})
    whole = (
        f"variables.core.filter(c, {_quantity(contract.CORE)}.compareTo(quantity('{CORES_PER_CARD}')) >= 0)"
    )
    special = [priority.value for priority in Priority if priority is not Priority.NORMAL]
    yield _wish(
        Rule.PRIORITY_OF_WHOLE_CARDS,
        contract.PRIORITY,
        f"variables.spread || !({_annotation(contract.PRIORITY)} in {special}) || {whole}.size() == 0",
        {"value": _annotation(contract.PRIORITY), "name": _quoted(f"{whole}[0].name")},
    )
    entry = f"^( *[a-z0-9.-]+ *=)? *0*([1-9]|1[0-{MOST_PARTS % 10}]) *$"
    numbers = f"not numbers of cards from 1 to {MOST_PARTS}"
    yield _wish(
        Rule.CARDS_MALFORMED,
        contract.CARDS,
        f"{_annotation(contract.CARDS)}.split(',').all(e, e.matches('{entry}'))",
        {"reason": f"{_quoted(_annotation(contract.CARDS))} + ', {numbers}'"},
    )
    for key, (rule, patterns) in LISTS.items():
        entries = f"{_annotation(key)}.split(',')"
        each = " && ".join(f"e.trim().matches('^{pattern}$')" for pattern in patterns)
        yield _wish(rule, key, f"{entries}.size() <= {LONGEST_LIST} && {entries}.all(e, {each})", {})


def _annotation(key: str) -> str:
    return f"object.metadata.annotations['{key}']"


def _wish(rule: Rule, key: str, legal: str, figures: Mapping[str, str]) -> PolicyCheck:
    old = "oldObject.metadata.annotations"
    absent = f"!({_ANNOTATED} && '{key}' in object.metadata.annotations)"
    unchanged = (
        f"(request.operation == 'UPDATE' && has({old}) && '{key}' in {old} "
        f"&& {old}['{key}'] == {_annotation(key)})"
    )
    value = {"value": _quoted(_annotation(key))}
    return PolicyCheck(rule, f"{absent} || {unchanged} || ({legal})", _says(rule, {**value, **figures}))


_IS_GUARDED: Final = f"(k in {list(contract.GUARDED)} || k.startsWith('{contract.PREDICATE_INDEX}'))"
GUARDED_VARIABLES: Final = {
    "now": f"{_ANNOTATED} ? object.metadata.annotations : {{}}",
    "before": "request.operation == 'UPDATE' && has(oldObject.metadata.annotations) "
    "? oldObject.metadata.annotations : {}",
    "changed": "variables.now.filter(k, "
    f"{_IS_GUARDED} && !(k in variables.before && variables.before[k] == variables.now[k])) "
    f"+ variables.before.filter(k, {_IS_GUARDED} && !(k in variables.now))",
    # None written is normal; a Binding's annotations become those of a pod.
    **{
        f"fixed{at}": f"[variables.before, variables.now].map(m, '{key}' in m ? m['{key}'] : '{default}')"
        for at, (key, (_, default)) in enumerate(FIXED.items())
    },
    "created": "request.operation == 'CREATE' && request.resource.resource == 'pods' "
    "&& !(has(request.subResource) && request.subResource == 'binding')",
}


def strangers(terms: ClusterTerms) -> Mapping[str, str]:
    """A condition that holds for every user but those allowed to write those annotations."""
    return {"not-ours": f"!(request.userInfo.username in {sorted(terms.trusted_users)})"}


def guarded_checks() -> Iterator[PolicyCheck]:
    """The rules for users that write annotations with a pod's cards."""
    none = "variables.changed.size() == 0"
    key = "variables.changed[0]"
    yield PolicyCheck(
        Rule.ANNOTATION_GUARDED,
        f"request.operation != 'CREATE' || {none}",
        _says(Rule.ANNOTATION_GUARDED, {"field": key}),
    )
    value = f"({key} in variables.now ? {_quoted(f'variables.now[{key}]')} : 'removed')"
    before = f"({key} in variables.before ? 'as it was, ' + {_quoted(f'variables.before[{key}]')} : 'out')"
    yield PolicyCheck(
        Rule.ANNOTATION_CHANGED,
        f"request.operation != 'UPDATE' || {none}",
        _says(Rule.ANNOTATION_CHANGED, {"field": key, "value": value, "before": before}),
    )
    for at, (key, (rule, _)) in enumerate(FIXED.items()):
        figures = {
            "value": _change_of(key, "now", "removed"),
            "before": _change_of(key, "before", "out", "as it was, "),
        }
        same = f"variables.created || variables.fixed{at}[0] == variables.fixed{at}[1]"
        yield PolicyCheck(rule, same, _says(rule, figures))


def _change_of(key: str, state: str, absent: str, lead: str = "") -> str:
    """The annotation before or after a change, for a text."""
    there = f"'{key}' in variables.{state}"
    value = _quoted(f"variables.{state}['{key}']")
    return f"({there} ? {_text(lead)} + {value} : {_text(absent)})"


# Texts: the rulebook's templates with CEL in their gaps.


def _container(rule: Rule, having: str, fault: str, figures: Mapping[str, str]) -> PolicyCheck:
    """``fault`` is CEL over c, one of the containers ``having`` names; the text names the first at fault."""
    faults = f"variables.{having}.filter(c, {fault})"
    return PolicyCheck(
        rule, f"!variables.{having}.exists(c, {fault})", f"{faults}.map(c, {_says(rule, figures)})[0]"
    )


def _says(rule: Rule, figures: Mapping[str, str]) -> str:
    pieces = [_text(f"{rule.value.words}: ")] if rule.value.words else []
    if not rule.value.text.startswith(("annotation ", "spec.")):  # those are the pod's own
        pieces += [_text('container "'), "c.name", _text('": ')]
    for piece in re.split(r"(\{\w+\})", rule.value.text):
        if piece.startswith("{"):
            pieces += [figures[piece[1:-1]]] if piece != "{hint}" else []
        elif piece:
            pieces.append(_text(piece))
    return " + ".join(pieces)


def _text(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False)


def _quoted(expression: str) -> str:
    """A tenant's text in quotes, as short as in our other texts."""
    short = f"({expression}.size() > 64 ? {expression}.substring(0, 64) + '…' : {expression})"
    return f"""'"' + {short} + '"'"""
