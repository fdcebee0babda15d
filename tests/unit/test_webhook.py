"""What the webhooks answer to whole AdmissionReviews: mended, refused with the cure, warned, or left alone."""

from __future__ import annotations

from typing import Any

import pytest

from admission.config import ClusterTerms
from admission.webhook.admit import CreateTimeChecks, mutate, validate
from gpu_manager.domain.contract import (
    CORE,
    MEMORY,
    NVIDIA,
    PREDICATE_NODE,
)
from tests.fakes.reviews import NODE_GROUPS, admit, ask, container, patched, pod, review

GENEROUS = ClusterTerms(default_memory=4, scheduler_name="vcuda-scheduler", runtime_class="nvidia")


def test_the_fixture_of_a_legal_pod_passes_both_webhooks_untouched() -> None:
    legal = review()
    legal["request"]["object"]["spec"]["tolerations"].append({"key": NVIDIA, "operator": "Exists"})
    uid = legal["request"]["uid"]
    assert ask(mutate, legal) == {"uid": uid, "allowed": True}
    assert ask(validate, legal) == {"uid": uid, "allowed": True}


# The seed.


@pytest.mark.parametrize(("core", "memory"), [(30, 20), (56, 40), (100, None), (600, None), (3400, None)])
def test_the_card_counts_that_users_were_promised_pass(core: int, memory: int | None) -> None:
    assert admit(pod(container("nginx", str(core), memory and str(memory)))) == (True, "", [])


@pytest.mark.parametrize(
    ("core", "memory", "says"),
    [
        ("150", None, "or a multiple of 100 for whole cards (100 or 200)"),
        ("270", None, "(200 or 300)"),
        ("354", None, "(300 or 400)"),
        (None, "20", "tencent.com/vcuda-memory is 20 without tencent.com/vcuda-core"),
        ("1500m", "20", "if 1.5 cards were meant, use 100 or 200"),
        ("30", "20500m", "counts units of 256 MiB in whole numbers: use 20 or 21"),
        ("30", None, "is 30 without tencent.com/vcuda-memory"),
    ],
)
def test_what_no_card_can_give_is_refused_with_the_nearest_value(
    core: str | None, memory: str | None, says: str
) -> None:
    allowed, message, _ = admit(pod(container("train", core, memory)))
    assert not allowed
    assert says in message
    assert 'container "train": ' in message


def test_a_refusal_has_code_reason_rule_and_the_predecessors_words_first() -> None:
    response = ask(validate, review(pod(container("train", "150"))))
    assert response["status"] == {
        "code": 422,
        "reason": "Invalid",
        "message": 'cores are greater than 100, must be multiple of 100: container "train": '
        "tencent.com/vcuda-core is 150: use 1 to 100 for a part of one card, "
        "or a multiple of 100 for whole cards (100 or 200)",
    }
    assert response["auditAnnotations"] == {"rules": "core-not-multiple"}


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {CORE: "500m", MEMORY: "1"}},
        {"limits": {CORE: "30", MEMORY: "0.5"}},
        {"limits": {CORE: "-30"}},
        {"limits": {CORE: "30", MEMORY: "20"}, "requests": {CORE: "20", MEMORY: "20"}},
        {"requests": {CORE: "30"}},
    ],
)
def test_mutate_refuses_what_the_api_servers_own_check_would_hide_from_validation(
    resources: dict[str, Any],
) -> None:
    response = ask(mutate, review(pod(container(resources=resources))), GENEROUS)
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert "patch" not in response


def test_mutate_leaves_the_other_faults_to_validation_so_that_later_webhooks_may_mend_them() -> None:
    assert ask(mutate, review(pod(container(core="150"))))["allowed"]


def test_every_fault_of_a_pod_is_told_at_once_and_a_flood_of_them_is_cut() -> None:
    _, message, _ = admit(pod(container("a", "150"), container("b", "50")))
    assert 'container "a"' in message
    assert 'container "b"' in message
    _, message, _ = admit(pod(*(container(f"c{i}", "150") for i in range(60))))
    assert message.endswith("; and 52 more")


# Mending.


def test_memory_beside_whole_cards_is_removed_from_limits_and_requests_with_a_warning() -> None:
    before = pod(container("idle"), container("train", "200", "20"))
    response = ask(mutate, review(before))
    (warning,) = response["warnings"]
    assert warning == (
        'container "train": tencent.com/vcuda-memory is 20 beside 2 whole cards: it is ignored, '
        "a whole card comes with all its memory"
    )
    resources = patched(before, response)["spec"]["containers"][1]["resources"]
    assert resources == {"limits": {CORE: "200"}, "requests": {CORE: "200"}}


def test_memory_beside_whole_cards_is_not_removed_where_it_is_illegal_by_itself() -> None:
    allowed, message, _ = admit(pod(container("train", "200", "0.5")))
    assert not allowed
    assert "tencent.com/vcuda-memory is 0.5" in message


@pytest.mark.parametrize("with_requests", [True, False])
def test_the_default_memory_is_written_where_a_part_of_a_card_has_none(with_requests: bool) -> None:
    resources: dict[str, Any] = {"limits": {CORE: "30"}}
    if with_requests:
        resources["requests"] = {CORE: "30"}
    before = pod(container(resources=resources), initContainers=[container("init", "10")])
    response = ask(mutate, review(before), GENEROUS)
    after = patched(before, response)["spec"]
    for made in (after["containers"][0], after["initContainers"][0]):
        assert made["resources"]["limits"][MEMORY] == "4"
        assert made["resources"].get("requests", {MEMORY: "4"})[MEMORY] == "4"
    assert len(response["warnings"]) == 2
    assert "it gets this cluster's default, 4 units (1 GiB)" in response["warnings"][0]


def test_no_default_memory_beside_memory_whole_cards_nothing_or_another_fault() -> None:
    for made in (
        container("a", "30", "20"),
        container("a", "100"),
        container("a"),
        container("a", "30", securityContext={"privileged": True}),
    ):
        assert "warnings" not in ask(mutate, review(pod(made)), GENEROUS)


def test_scheduler_and_runtime_class_are_written_only_where_the_pod_names_none() -> None:
    before = pod(container(core="100"))
    after = patched(before, ask(mutate, review(before), GENEROUS))["spec"]
    assert (after["schedulerName"], after["runtimeClassName"]) == ("vcuda-scheduler", "nvidia")
    own = pod(container(core="100"), schedulerName="mine", runtimeClassName="kata")
    spec = patched(own, ask(mutate, review(own), GENEROUS))["spec"]
    assert (spec["schedulerName"], spec["runtimeClassName"]) == ("mine", "kata")
    assert "patch" not in ask(mutate, review(pod(container())), GENEROUS)


@pytest.mark.parametrize(
    ("tolerations", "added"),
    [
        (None, True),
        ([], True),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], True),
        ([{"key": NVIDIA, "operator": "Equal", "value": "present"}], False),  # its author has chosen
        ([{"operator": "Exists"}], False),  # every taint
    ],
)
def test_the_usual_taint_of_nodes_with_cards_is_tolerated(
    tolerations: list[dict[str, str]] | None, added: bool
) -> None:
    """As for ``nvidia.com/gpu``, by ExtendedResourceToleration."""
    before, idle = pod(container(core="100")), pod(container())
    for one in (before, idle):
        one["spec"].pop("tolerations")
        one["spec"] |= {} if tolerations is None else {"tolerations": tolerations}
    answer = ask(mutate, review(before))
    after = patched(before, answer) if "patch" in answer else before
    wanted = [*(tolerations or []), *([{"key": NVIDIA, "operator": "Exists"}] if added else [])]
    assert after["spec"].get("tolerations") == wanted
    assert "patch" not in ask(mutate, review(idle)), "it asks for no card"


def test_a_pod_of_another_scheduler_is_warned() -> None:
    _, _, warnings = admit(pod(container(core="100"), schedulerName="mine"), GENEROUS)
    assert warnings == [
        'spec.schedulerName is "mine", but vcuda-scheduler alone keeps cards for pods: remove the line'
    ]
    assert admit(pod(container(), schedulerName="mine"), GENEROUS) == (True, "", [])


# The way to the node.


def test_a_node_name_is_warned_or_refused_and_only_for_pods_that_ask() -> None:
    bound = pod(container(core="100"), nodeName="n1")
    allowed, _, (warning,) = admit(bound)
    assert allowed
    assert warning.startswith('spec.nodeName is "n1": the scheduler is passed by and keeps no card')
    response = ask(validate, review(bound), ClusterTerms(deny_node_name=True))
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert "warnings" not in response
    assert admit(pod(container(), nodeName="n1"), ClusterTerms(deny_node_name=True)) == (True, "", [])


def test_the_image_of_a_static_pod_is_never_refused_for_it_runs_already() -> None:
    static = pod(container(core="150"), annotations={"kubernetes.io/config.mirror": "x"}, nodeName="n1")
    allowed, _, warnings = admit(static, ClusterTerms(deny_node_name=True), groups=NODE_GROUPS)
    assert allowed
    assert len(warnings) == 2
    assert not admit(static, ClusterTerms(deny_node_name=True))[0]  # anyone can write that annotation


# What the cluster says.


def test_the_outlook_is_asked_about_legal_pods_that_ask_and_its_words_are_passed_on() -> None:
    asked = []

    def no_card(about: Any, request: Any) -> Any:
        asked.append((about.namespace, request.containers[0].request.cores))
        return ("no card of this cluster has 90 GiB",)

    checks = CreateTimeChecks(warn=no_card)
    response = ask(validate, review(pod(container(core="30", memory="360"))), checks=checks)
    assert response["warnings"] == ["no card of this cluster has 90 GiB"]
    for silent in (container(), container(core="150")):
        ask(validate, review(pod(silent)), checks=checks)
    assert asked == [("research", 30)]


def test_an_exceeded_quota_is_forbidden_not_invalid() -> None:
    text = 'ExceedsGPUQuota: namespace "research": 4 of 4 T4 cards are used'
    checks = CreateTimeChecks(refuse=lambda *_: (text,))
    response = ask(validate, review(), checks=checks)
    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": text}
    assert response["auditAnnotations"] == {"rules": "quota-exceeded"}


# What is not ours.


@pytest.mark.parametrize(
    "changes",
    [
        {"resource": {"group": "example.org", "version": "v1", "resource": "widgets"}},
        {"resource": {"group": "example.org", "version": "v1", "resource": "pods"}},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT", "subResource": "exec"},
        {"operation": "SOMETHING"},
        {"subResource": "eviction"},
        {"object": None},
    ],
)
def test_unknown_kinds_and_operations_are_allowed(changes: dict[str, Any]) -> None:
    sent = review(pod(container(core="150"), annotations={PREDICATE_NODE: "n1"}))
    sent["request"] |= changes
    for judge in (mutate, validate):
        assert ask(judge, sent) == {"uid": sent["request"]["uid"], "allowed": True}


@pytest.mark.parametrize("dry_run", [True, False, None])
def test_a_dry_run_gets_the_same_answer(dry_run: bool | None) -> None:
    for obj in (pod(container(core="150")), pod(container(core="200", memory="3"))):
        for judge in (mutate, validate):
            assert ask(judge, review(obj, dryRun=dry_run)) == ask(judge, review(obj))
