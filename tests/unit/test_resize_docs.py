"""The table of docs/resize.md: each refusal is said in these words, each feature has its test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import CORE_LIMIT, RESIZE
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resize.judgement import check_resize, judge_room
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.rulebook import Rule, violation
from tests.fakes.feature_tables import feature_rows, is_a_test, sentences_of
from tests.fakes.node import container, pod
from tests.unit.test_ledger import CARDS, holding

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/resize.md").read_text(encoding="utf-8")


def asking(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **annotations: str) -> Pod:
    """A pod whose first container is to have 50 cores."""
    name = (*init, *containers)[0]["name"]
    text = json.dumps({"v": 1, "containers": {name: {"cores": 50}}})
    return parse_pod(pod("one", *containers, init=init, annotations={RESIZE: text, **annotations}))


def refused(there: Pod) -> str:
    (fault,) = check_resize(there, DEFAULT_UNIT)
    return fault.message


def by_claim() -> Pod:
    made = pod("one", container("c", 0, 0), annotations=asking(container("c", 0, 0)).annotations)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return parse_pod(made)


def on_a_closed_card() -> str:
    held = holding()
    state = CardState(CARDS[0], cordoned=True)
    return str(
        judge_room(
            Ledger((state.card,), DEFAULT_UNIT, (held,)), held, Amount(50, GIB), {state.card.uuid: state}
        )
    )


SAID: Final = {
    "elastic ceiling": lambda: refused(asking(container("c", 30, 8), **{CORE_LIMIT: "40"})),
    "ordinary init containers": lambda: refused(asking(container("c", 0, 0), init=(container("i", 10, 4),))),
    "whole cards, `nvidia.com/gpu`": lambda: refused(asking(container("w", 200, 0))),
    "a ResourceClaim (DRA)": lambda: refused(by_claim()),
    "MIG slices": lambda: refused(asking(container("c", 0, 0))),
    "a cordoned or unhealthy card": on_a_closed_card,
    "a workload's size that does not suit its template": lambda: (
        violation(Rule.RESIZE_OF_OWNER, "", RESIZE, "Deployment/train", reason="…").message
    ),
    "a new pod with the annotation": lambda: violation(Rule.RESIZE_AT_CREATION, "", RESIZE, "").message,
}
"""Feature → what is said."""

TESTED: Final = {
    "[parts of several cards](several-cards.md)": "test_both_cards_are_booked_in_force_withdrawn_and_written_back",
    "quota": "test_the_quota_counts_what_is_more",
    "[protected and best-effort shares](protected.md)": "test_what_a_protected_pod_has_more_is_within_its_namespaces_right",
    "sidecars": "test_what_is_asked_is_the_spec_with_the_sizes_that_are_named",
    "preemption, `explain`, `simulate`, `defrag`, `graph`, `top`": "test_explain_counts_real_sizes_card_by_card",
    "`cost`, bills": "test_a_container_that_changes_its_size_is_billed_for_each_by_its_time",
    "an agent one release older": "test_on_a_node_with_an_older_agent_nothing_is_reserved_until_it_is_upgraded",
}
"""Feature → the test that it works so."""

OF_OTHERS: Final = {"VPA and HPA", "Kubernetes' in-place resize", "gangs"}


def test_every_feature_of_the_table_is_known_here() -> None:
    assert set(feature_rows(PAGE)) == SAID.keys() | TESTED.keys() | OF_OTHERS


@pytest.mark.parametrize("feature", SAID)
def test_a_refusal_is_said_as_the_table_says_it(feature: str) -> None:
    sentences = sentences_of(feature_rows(PAGE)[feature])
    message = SAID[feature]()
    assert sentences
    assert [text for text in sentences if text not in message] == []


@pytest.mark.parametrize("feature", TESTED)
def test_what_works_has_its_test(feature: str) -> None:
    assert is_a_test(TESTED[feature])
