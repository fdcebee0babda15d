"""The table of docs/protected.md: each refusal is said in these words, each feature has its test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from gpu_manager.domain.cluster.quota import NO_QUOTA, Quota
from gpu_manager.domain.cluster.quota_map import parse_quota
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.placement.explain import explain_priority
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.legal_values import check_pod, warn_pod
from gpu_manager.domain.rules.rulebook import Rule, violation
from tests.fakes.feature_tables import feature_rows, is_a_test, sentences_of
from tests.fakes.written import container, pod_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/protected.md").read_text(encoding="utf-8")


def refused(cores: int, priority: str) -> str:
    (fault,) = check_pod(pod_of(container("c", cores, 1 if cores < 100 else None), vcuda_priority=priority))
    return fault.message


def over(quota: Quota, used: int, asked: int) -> str:
    mine = quota.of("a", Priority.PROTECTED)
    assert mine is not None
    return mine.passed({}, {"T4": Amount(asked, GIB)}, {"T4": Amount(used, GIB)})["T4"]


def warned() -> str:
    (warning,) = warn_pod(pod_of(container("c"), vcuda_priority="protected"))
    return warning.message


SAID: Final = {
    "whole cards": lambda: refused(200, "protected"),
    "an unknown priority": lambda: refused(30, "best_effort"),
    "no right in the quota": lambda: over(NO_QUOTA, 0, 30),
    "the right is used up": lambda: over(parse_quota('{"a": {"protected": {"T4": 0.5}}}'), 50, 30),
    "`spec.nodeName`, another scheduler": lambda: (
        violation(Rule.PRIORITY_PAST_SCHEDULER, "", "spec.nodeName", "").message
    ),
    "a change of the annotation": lambda: (
        violation(Rule.PRIORITY_CHANGED, "", PRIORITY, "", before="").message
    ),
    "a ResourceClaim (DRA)": warned,
    "an agent one release older": lambda: explain_priority(Priority.PROTECTED, Counter(), gates=False),
}
"""Feature → what is said."""

TESTED: Final = {
    "a pod that runs with an odd value": "test_a_running_pod_with_an_odd_priority_is_normal",
    "resize": "test_what_a_protected_pod_has_more_is_within_its_namespaces_right",
    "`placement: spread`, `binpack`": "test_the_extender_takes_the_node_on_which_protection_holds",
    "`placement: topology`": "test_topology_keeps_a_pod_together_before_it_minds_neighbours",
    "sidecars, init containers": "test_every_container_has_its_pods_priority",
    "preemption, PriorityClass": "test_a_priority_inside_the_card_evicts_nobody",
    "`defrag`, `simulate`": "test_simulated_pods_are_placed_by_priority",
    "HAMi's task priority": "test_hamis_task_priority_is_named_as_an_annotation",
    "pods that ran before the upgrade": "test_the_store_keeps_a_priority_and_reads_books_that_know_none",
}
"""Feature → the test that it works so."""

OF_THE_LIBRARY: Final = {"elastic ceiling"}  # bench protected


def test_every_feature_of_the_table_is_known_here() -> None:
    assert set(feature_rows(PAGE)) == SAID.keys() | TESTED.keys() | OF_THE_LIBRARY


@pytest.mark.parametrize("feature", SAID)
def test_a_refusal_is_said_as_the_table_says_it(feature: str) -> None:
    sentences = sentences_of(feature_rows(PAGE)[feature])
    message = SAID[feature]()
    assert sentences
    assert [text for text in sentences if text not in message] == []


@pytest.mark.parametrize("feature", TESTED)
def test_what_works_has_its_test(feature: str) -> None:
    assert is_a_test(TESTED[feature])


@pytest.mark.parametrize("priority", Priority)
def test_the_page_tells_of_each_priority(priority: Priority) -> None:
    assert f"| `{priority.value}` |" in PAGE
