"""The table of docs/several-cards.md: each refusal is said in these words, each feature has its test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from admission.webhook.admit import CreateTimeChecks, mutate
from gpu_manager.domain.cluster.node_json import NodeReport
from gpu_manager.domain.contract import CARDS
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.place import judge
from gpu_manager.domain.resize.judgement import check_resize
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.legal_values import check_pod, warn_pod
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.rules.rulebook import Rule, violation
from tests.fakes import reviews
from tests.fakes.feature_tables import feature_rows, is_a_test, sentences_of
from tests.fakes.machines import tree
from tests.fakes.written import container, pod_of
from tests.unit.test_placement import APP, Node

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/several-cards.md").read_text(encoding="utf-8")
GPUS: Final = {"name": "x", "resources": {"limits": {"nvidia.com/gpu": "2"}}}


def refused(core: int = 100, cards: str = "2", *more: dict[str, Any], init: Any = (), **terms: Any) -> str:
    pod = pod_of(container("train", core, 40, **terms), *more, init=init, vcuda_cards=cards)
    return "; ".join(fault.message for fault in (*check_pod(pod), *warn_pod(pod)))


def without_room() -> str:
    node = Node(tree(2))
    request = Request(200, 32 * DEFAULT_UNIT, 4)
    asked = PodRequest(PodUid("p"), (ContainerRequest("a", APP, 0, request),))
    return str(judge(asked, node.cards, node.topology, node.ledger))


def resized() -> str:
    size = '{"v":1,"containers":{"train":{"cores":101}}}'
    (fault,) = check_resize(
        pod_of(container("train", 60, 40), vcuda_cards="2", vcuda_resize=size), DEFAULT_UNIT
    )
    return fault.message


def on_an_older_agent() -> str:
    pod: Pod = pod_of(container("train", 100, 40), vcuda_cards="2")
    return NodeReport("n1", DEFAULT_UNIT).lacks(judged_request(pod))


def in_rollout() -> str:
    checks = CreateTimeChecks(no_parts=lambda: "replica a is of an earlier release")
    obj = reviews.pod(reviews.container("train", "100", "40"), annotations={CARDS: "2"})
    answered = reviews.ask(lambda review, terms: mutate(review, terms, checks), reviews.review(obj))
    return str(answered["status"]["message"])


SAID: Final = {
    "cores or memory that the number does not divide": lambda: refused(99) + refused(200),
    "a number that cannot be read, or of a container that is not there": lambda: refused(100, "eval=2"),
    "more cards than a node has": without_room,
    "a change of the annotation": lambda: violation(Rule.CARDS_CHANGED, "", CARDS, "", before="").message,
    "`nvidia.com/gpu` in the same pod": lambda: refused(100, "train=2", GPUS),
    "`nvidia.com/gpu` or a claim alone": lambda: warn_pod(pod_of(GPUS, vcuda_cards="2"))[0].message,
    "a ResourceClaim in the same container": lambda: (
        violation(Rule.CARDS_BESIDE_CLAIM, "train", CARDS, "2", claim="mine").message
    ),
    "an ordinary init container that asks for cores": lambda: refused(init=(container("load", 10, 4),)),
    "a privileged container": lambda: refused(150, securityContext={"privileged": True}),
    "names of another system beside it": lambda: (
        violation(Rule.FOREIGN_NAME, "", "gpu-fraction-num-devices", "", reason="").message
    ),
    "[MIG instances](mig.md)": lambda: (
        check_pod(pod_of(container("train", 100, 40), vcuda_cards="2", gpu_model="1g.18gb"))[0].message
    ),
    "[resize](resize.md)": resized,
    "an agent one release older": on_an_older_agent,
    "an admission service in rollout": in_rollout,
}
"""Feature → what is said."""

TESTED: Final = {
    "sidecars": "test_beside_an_ordinary_init_container_with_cores_it_is_refused",
    "elastic ceiling": "test_an_elastic_ceiling_is_that_of_each_card",
    "priority": "test_each_part_has_the_pods_priority_and_its_gate",
    "quota": "test_quota_counts_totals",
    "preemption": "test_eviction_makes_room_on_different_cards",
    "`defrag`, `simulate`, `explain`": "test_moves_make_room_for_parts_of_several_cards",
    "`tencent.com/gpu-model`, `gpu-uuid`": "test_one_card_of_another_model_cannot_be_the_second",
    "whole cards and parts of one card in the same pod": "test_each_container_has_the_number_that_names_it",
    "pods that are turned into claims": "test_parts_of_several_cards_become_a_count",
    "HAMi's `nvidia.com/gpu: 2` with a part of each, KAI's `gpu-fraction-num-devices`": (
        "test_the_manifest_becomes_what_stands_beside_it_or_is_refused_by_name"
    ),
    "a restart or loss of the agent's ledger": "test_an_agent_that_starts_again_finds_both_parts",
    "a rollback to an older agent": (
        "test_books_with_several_cards_for_a_container_have_the_format_of_the_first_release"
    ),
    "size advice": "test_no_size_is_advised_for_parts_of_several_cards",
}
"""Feature → the test that it works so."""


def test_every_feature_of_the_table_is_known_here() -> None:
    assert set(feature_rows(PAGE)) == SAID.keys() | TESTED.keys()


@pytest.mark.parametrize("feature", SAID)
def test_a_refusal_is_said_as_the_table_says_it(feature: str) -> None:
    sentences = sentences_of(feature_rows(PAGE)[feature])
    message = SAID[feature]()
    assert sentences
    assert [text for text in sentences if text not in message and not text.startswith("gpu-manager ")] == []


@pytest.mark.parametrize("feature", TESTED)
def test_what_works_has_its_test(feature: str) -> None:
    assert is_a_test(TESTED[feature])
