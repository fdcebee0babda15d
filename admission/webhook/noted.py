"""Reviews that are judged, and recorded with what the checks of the cluster's state returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import ALLOWED, Review, ReviewVerdict
from admission.webhook.admit import CreateTimeChecks, mutate, validate

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
