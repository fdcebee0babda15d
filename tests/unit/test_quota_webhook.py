"""The quota's ConfigMap is judged before it is stored: what could not be used is refused with its place and cure."""

from __future__ import annotations

from typing import Any

import pytest

from admission.config import ClusterTerms
from admission.webhook.admission_review import Review, ReviewVerdict
from admission.webhook.admit import validate
from gpu_manager.domain.cluster.quota import QUOTA_PLACE
from gpu_manager.domain.contract import QUOTA_KEY

GOOD, BAD = '{"a": {"quota": {"*": 1}}}', '{"a": {"quotta": {"*": 1}}}'


def config_map(text: object) -> dict[str, Any]:
    return {"metadata": {"namespace": QUOTA_PLACE[0], "name": QUOTA_PLACE[1]}, "data": {QUOTA_KEY: text}}


def judged(text: object, old: object = None, name: str = QUOTA_PLACE[1]) -> ReviewVerdict:
    before = None if old is None else config_map(old)
    operation = "CREATE" if old is None else "UPDATE"
    review = Review(
        "u", operation, "", "configmaps", "ConfigMap", QUOTA_PLACE[0], name, obj=config_map(text), old=before
    )
    return validate(review, ClusterTerms())


@pytest.mark.parametrize("text", [GOOD, "", " "])
def test_a_quota_that_can_be_used_is_stored(text: str) -> None:
    assert judged(text).allowed
    assert judged(text, old=BAD).allowed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BAD, "did you mean quota?"),
        ("{", "not JSON"),
        ("[]", "not a map of namespaces"),
        ('{"a": {"priority": "low"}}', "use best-effort, or leave it out"),
        ("[" * 5000, "not JSON"),
    ],
)
def test_one_that_cannot_is_refused_and_says_where(text: str, says: str) -> None:
    for old in (None, GOOD):
        verdict = judged(text, old)
        assert (verdict.allowed, verdict.code) == (False, 422)
        assert says in verdict.message
        assert "kube-system/gpuquota" in verdict.message


def test_what_stands_there_may_be_labelled_and_other_config_maps_are_nobodys_business() -> None:
    assert judged(BAD, old=BAD).allowed
    assert judged(BAD, name="mine").allowed
