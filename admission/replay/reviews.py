"""Reviews of the webhooks: judged, recorded with what the checks of the cluster's state returned, and judged
again.

A recorded object keeps what the webhooks read. Images, commands, volumes, labels and status are left out.
Annotations of other parties keep their names alone; environment variables have no values, but for what the
two that show cards to a container say of cards and capabilities.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import ALLOWED, Operation, Review, ReviewVerdict
from admission.webhook.admit import CreateTimeChecks, InjectionWays, mutate, validate
from gpu_manager.domain.contract import CAPABILITIES_ENV, OUR_PREFIX, QUOTA_KEY, VISIBLE_ENV
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import MIRROR
from gpu_manager.domain.records import decode, encode
from gpu_manager.domain.rules.rulebook import Rule, Violation
from gpu_manager.domain.untrusted import at

VERBS: Final[Mapping[str, Callable[[Review, ClusterTerms, CreateTimeChecks], ReviewVerdict]]] = {
    "mutate": mutate,
    "validate": validate,
}


@dataclass(frozen=True, slots=True)
class ReviewDecision:
    """A review and its answer. ``verb`` is a key of :data:`VERBS`; ``said`` holds the name of each check that
    was asked about the cluster's state, in their order, and what it returned.
    """

    verb: str
    review: Review
    said: Sequence[tuple[str, Any]]
    verdict: ReviewVerdict


Recorded = Callable[[ReviewDecision], None]


def judged(
    verb: str, review: Review, terms: ClusterTerms, checks: CreateTimeChecks, recorded: Recorded | None
) -> ReviewVerdict:
    """Judge a review; it is recorded if it is about pods that ask for cards, or not simply allowed."""
    if recorded is None:
        return VERBS[verb](review, terms, checks)
    said: list[tuple[str, Any]] = []
    verdict = VERBS[verb](review, terms, _noted(checks, said))
    if verdict != ALLOWED or any(name == "warn" for name, _ in said):
        recorded(ReviewDecision(verb, review, said, verdict))
    return verdict


def _noted(checks: CreateTimeChecks, said: list[tuple[str, Any]]) -> CreateTimeChecks:
    """The same checks; what each returns is added to ``said``."""

    def noted(name: str) -> Callable[..., Any]:
        ask = getattr(checks, name)

        def answer(*about: Any) -> Any:
            found = ask(*about)
            said.append((name, found))
            return found

        return answer

    return CreateTimeChecks(**{one.name: noted(one.name) for one in fields(CreateTimeChecks)})


Line = dict[str, Any]
_UNREAD: Final = frozenset(
    {"image", "command", "args", "workingDir", "volumes", "volumeMounts", "volumeDevices", "managedFields"}
    | {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "status", "labels", "selector"}
    | {"affinity", "nodeSelector", "topologySpreadConstraints", "imagePullSecrets", "hostAliases", "message"}
)
_CARDS: Final = re.compile(r"all|none|void|[0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Fa-f/-]+")
_CAPABILITIES: Final = frozenset(
    {"all", "compat32", "compute", "display", "graphics", "ngx", "utility", "video"}
)
_ALONE: Final = ("resourceclaims", "configmaps")
"""Of these only those that are refused are recorded, and not what they were before."""
_OTHER: Final = "other"
"""What a record has in place of a value that names no cards; it is judged as that is."""
_SAID: Final[dict[str, Any]] = {
    "refuse": tuple[str, ...],
    "warn": tuple[str, ...],
    "size": str,
    "claim": tuple[str, bool],
    "injection": InjectionWays,
    "best_effort": bool,
    "no_parts": str,
}


def review_line(decided: ReviewDecision) -> Line:
    """The entry of a review, without its time."""
    review = decided.review
    asked = encode(Review, review, frozenset({"uid", "obj", "old", "groups"}))
    asked |= {"groups": sorted(review.groups), "obj": _read_of(review), "old": None}
    if review.resource not in _ALONE:
        asked["old"] = trimmed(review.old)
    said = [[name, _written(name, found)] for name, found in decided.said]
    answer = review_answer(decided.verdict)
    for value in {*_unrecorded(review.obj), *_unrecorded(review.old)}:
        answer = _replaced(answer, quoted(value), quoted(_OTHER))
    return {"k": "review", "verb": decided.verb, "review": asked, "said": said, "answer": answer}


def is_quota(line: Line) -> bool:
    """True for a review of the ConfigMap with the quota."""
    return bool(line["review"]["resource"] == "configmaps")


def _read_of(review: Review) -> Any:
    """The part of the object that is recorded: of a claim its name, since the cluster's state judges it; of
    the quota its text.
    """
    if review.resource not in _ALONE or review.obj is None:
        return trimmed(review.obj)
    meta, data = at(review.obj, "metadata"), at(review.obj, "data")
    names = {key: meta[key] for key in ("name", "generateName") if key in meta}
    return {"metadata": names, **({"data": {QUOTA_KEY: data[QUOTA_KEY]}} if QUOTA_KEY in data else {})}


def review_answer(verdict: ReviewVerdict) -> Line:
    """The answer as it is recorded and compared."""
    patch = [_step(one) for one in verdict.patch]
    return {**encode(ReviewVerdict, verdict, frozenset({"patch"})), "patch": patch}


def review_again(terms: Line, line: Line) -> Line:
    """The answer of this release. ``terms``: the cluster's, as recorded. Raises RequestInvalid."""
    asked = {**line["review"], "uid": ""}
    obj, old, groups = asked.pop("obj"), asked.pop("old"), frozenset(asked.pop("groups"))
    review = Review(**asked, groups=groups, obj=obj, old=old)
    return review_answer(VERBS[line["verb"]](review, decode(ClusterTerms, terms), _telling(line["said"])))


def trimmed(value: Any, key: str = "") -> Any:
    """The part of an object that is recorded; ``key`` is the field in which it stands."""
    if isinstance(value, dict) and key == "annotations":
        ours = {name for name in value if name.startswith(OUR_PREFIX) or name == MIRROR}
        return {name: one if name in ours else _blank(one) for name, one in value.items()}
    if isinstance(value, dict):
        return {name: trimmed(one, name) for name, one in value.items() if name not in _UNREAD}
    if isinstance(value, list):
        return [_variable(one) if key == "env" else trimmed(one, key) for one in value]
    return value


def _variable(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return _blank(entry)
    name = entry.get("name")
    return {
        key: one if key == "name" else _shown(name, one) if key == "value" else _blank(one)
        for key, one in entry.items()
    }


def _shown(name: Any, value: Any) -> Any:
    """What is recorded of an environment variable's value."""
    if not isinstance(value, str):
        return _blank(value)
    words = value.split(",")
    if name == VISIBLE_ENV:
        return value if not value or all(map(_CARDS.fullmatch, words)) else _OTHER
    if name == CAPABILITIES_ENV:
        return ",".join(word for word in words if word.strip() in _CAPABILITIES)
    return _blank(value)


def _unrecorded(value: Any) -> Iterator[str]:
    """The values in an object that a message may quote and that are not recorded."""
    if isinstance(value, dict):
        found = value.get("value") if value.get("name") == VISIBLE_ENV else None
        if isinstance(found, str) and _shown(VISIBLE_ENV, found) != found:
            yield found
        value = value.values()
    elif not isinstance(value, list):
        return
    for one in value:
        yield from _unrecorded(one)


def _replaced(value: Any, text: str, instead: str) -> Any:
    """The value with another text in all of its texts."""
    if isinstance(value, str):
        return value.replace(text, instead)
    if isinstance(value, list):
        return [_replaced(one, text, instead) for one in value]
    if isinstance(value, dict):
        return {key: _replaced(one, text, instead) for key, one in value.items()}
    return value


def _blank(value: Any) -> Any:
    """Something of the same type."""
    return type(value)() if isinstance(value, str | dict | list) else value


def _step(one: Operation) -> list[Any]:
    return [one.op, one.path, trimmed(one.value, one.path.rpartition("/")[2])]


def _written(name: str, found: Any) -> Any:
    if name == "pod_claims":
        return [[one.rule.name, *encode(Violation, one, frozenset({"rule"})).items()] for one in found]
    return encode(_SAID[name], found)


def _read(name: str, found: Any) -> Any:
    if name == "pod_claims":
        return tuple(Violation(Rule[rule], **dict(rest)) for rule, *rest in found)
    return decode(_SAID[name], found)


def _telling(said: list[Any]) -> CreateTimeChecks:
    """Checks that return what they returned then."""
    left = defaultdict[str, list[Any]](list)
    for name, found in said:
        left[name].append(found)

    def telling(name: str) -> Callable[..., Any]:
        def answer(*_about: Any) -> Any:
            if not left[name]:
                raise RequestInvalid("this release asks for more of the cluster's state than was recorded")
            return _read(name, left[name].pop(0))

        return answer

    return CreateTimeChecks(**{one.name: telling(one.name) for one in fields(CreateTimeChecks)})
