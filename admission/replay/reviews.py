"""Reviews of the webhooks as lines of a record, and judged again.

A recorded object keeps what the webhooks read. Images, commands, volumes, labels and status are left out.
Annotations of other parties keep their names alone; environment variables have no values, but for the two
that show cards to a container.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import Operation, Review, ReviewVerdict
from admission.webhook.admit import CreateTimeChecks, InjectionWays
from admission.webhook.noted import VERBS, ReviewDecision
from gpu_manager.domain.contract import CAPABILITIES_ENV, OUR_PREFIX, VISIBLE_ENV
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import MIRROR
from gpu_manager.domain.records import decode, encode
from gpu_manager.domain.rules.rulebook import Rule, Violation

Line = dict[str, Any]
_UNREAD: Final = frozenset(
    {"image", "command", "args", "workingDir", "volumes", "volumeMounts", "volumeDevices", "managedFields"}
    | {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "status", "labels", "selector"}
    | {"affinity", "nodeSelector", "topologySpreadConstraints", "imagePullSecrets", "hostAliases", "message"}
)
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
    asked |= {"groups": sorted(review.groups), "obj": trimmed(review.obj), "old": trimmed(review.old)}
    said = [[name, _written(name, found)] for name, found in decided.said]
    verb, answer = decided.verb, review_answer(decided.verdict)
    return {"k": "review", "verb": verb, "review": asked, "said": said, "answer": answer}


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
    read = entry.get("name") in (VISIBLE_ENV, CAPABILITIES_ENV)
    return {
        key: one if key == "name" or (read and key == "value") else _blank(one) for key, one in entry.items()
    }


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
