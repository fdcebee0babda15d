"""``/mutate/claims``: a pod of a labelled namespace comes out with a claim, or as it was and with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given

from admission.config import ClusterTerms
from admission.webhook.admit import CreateTimeChecks, mutate, validate
from admission.webhook.claim_translation import turn
from gpu_manager.domain.contract import CARDS, CORE, CORE_LIMIT, MEMORY, PRELOAD, PRIORITY, TEMPLATE_SIZE
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.legal_values import check_pod
from tests.fakes.reviews import NODE_GROUPS, ask, container, patched, pod, review
from tests.unit.test_webhook_properties import pods, read

TERMS = ClusterTerms(default_memory=4)
PART = container("train", "30", "20")


@dataclass
class Templates:
    """Keeps what was asked for by name; ``why`` is why it cannot be made."""

    why: str = ""
    made: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def ensure(self, namespace: str, name: str, spec: Mapping[str, Any]) -> str:
        if not self.why:
            self.made[namespace, name] = spec
        return self.why


def turning(sent: dict[str, Any], templates: Templates, **more: Any) -> dict[str, Any]:
    return ask(lambda one, terms: turn(one, terms, templates.ensure, **more), sent, TERMS)


def test_resources_become_a_claim_of_a_template_that_is_there_before_the_pod() -> None:
    templates, before = Templates(), pod(container("idle"), PART, container("eval", "100"))
    response = turning(review(before, namespace="team"), templates)
    after = patched(before, response)["spec"]
    [((namespace, name), spec)] = templates.made.items()
    assert namespace == "team"
    assert [one["name"] for one in spec["devices"]["requests"]] == ["eval", "train"]
    assert after["resourceClaims"] == [{"name": "vcuda", "resourceClaimTemplateName": name}]
    assert [one["resources"] for one in after["containers"]] == [
        {},
        {"limits": {}, "requests": {}, "claims": [{"name": "vcuda", "request": "train"}]},
        {"limits": {}, "requests": {}, "claims": [{"name": "vcuda", "request": "eval"}]},
    ]
    [warning] = response["warnings"]
    assert warning == (
        f"its vcuda resources are asked of a ResourceClaim, by template {name}: "
        "request eval: 1 whole card; request train: 30 cores, 5 GiB"
    )


def test_parts_of_several_cards_become_a_count() -> None:
    """Kubernetes never gives one request the same device twice."""
    templates = Templates()
    before = pod(container("train", "100", "40"), annotations={CARDS: "2"})
    response = turning(review(before, namespace="team"), templates)
    [spec] = templates.made.values()
    [request] = spec["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    assert request["exactly"]["capacity"] == {"requests": {"cores": "50", "memory": "5Gi"}}
    after = patched(before, response)
    assert ask(validate, review(after), TERMS)["allowed"]
    assert not [text for text in ask(validate, review(after), TERMS).get("warnings", []) if CARDS in text]


def test_other_resources_and_claims_of_the_pod_stay() -> None:
    resources = {
        "limits": {"cpu": "2", CORE: "30", MEMORY: "20"},
        "requests": {"cpu": "1", CORE: "30", MEMORY: "20"},
        "claims": [{"name": "net"}],
    }
    entries = [{"name": name, "resourceClaimName": "a"} for name in ("net", "vcuda", "vcuda-2")]
    before = pod(container("train", resources=resources), resourceClaims=entries)
    after = patched(before, turning(review(before), Templates()))["spec"]
    assert after["resourceClaims"][:3] == entries
    assert after["resourceClaims"][3]["name"] == "vcuda-3"
    assert after["containers"][0]["resources"] == {
        "limits": {"cpu": "2"},
        "requests": {"cpu": "1"},
        "claims": [{"name": "net"}, {"name": "vcuda-3", "request": "train"}],
    }


def test_an_init_container_and_its_equal_use_one_request() -> None:
    before = pod(PART, initContainers=[container("load", "30", "20")])
    after = patched(before, turning(review(before), Templates()))["spec"]
    used = {"name": "vcuda", "request": "train"}
    assert after["initContainers"][0]["resources"]["claims"] == [used]
    assert after["containers"][0]["resources"]["claims"] == [used]


def test_a_dry_run_makes_nothing_and_answers_the_same() -> None:
    really, dry = Templates(), Templates()
    first = turning(review(pod(PART)), really)
    second = turning(review(pod(PART), dryRun=True), dry)
    assert first == second
    assert (len(really.made), len(dry.made)) == (1, 0)


@pytest.mark.parametrize(
    "sent",
    [
        review(pod(container("idle"))),
        review(pod(container("train", "150"))),  # /validate has the words
        review(pod(container("train", "30"))),
        review(pod(PART), operation="UPDATE"),
        review(pod(PART, annotations={"kubernetes.io/config.mirror": "x"}), groups=NODE_GROUPS),
        review({"spec": {"containers": [3]}}),
    ],
    ids=["no card", "illegal", "no memory", "update", "static", "no pod"],
)
def test_what_asks_for_no_legal_share_is_left_alone_without_a_word(sent: dict[str, Any]) -> None:
    templates = Templates()
    assert turning(sent, templates) == {"uid": sent["request"]["uid"], "allowed": True}
    assert templates.made == {}


def test_what_a_claim_cannot_say_stays_as_it_is_with_the_reason() -> None:
    templates = Templates()
    graphics = {**PART, "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]}
    response = turning(review(pod(graphics)), templates)
    assert (response["allowed"], "patch" in response, templates.made) == (True, False, {})
    [warning] = response["warnings"]
    assert warning.startswith("it is not turned into a ResourceClaim, and nodes that give cards by claims")
    assert "graphics libraries" in warning
    assert response["auditAnnotations"] == {"rules": "not-turned-into-claim"}


def test_a_turned_pod_takes_its_priority_along_and_is_not_warned_of_its_annotation() -> None:
    templates = Templates()
    before = pod(PART, annotations={PRIORITY: "best-effort", PRELOAD: "false"})
    after = patched(before, turning(review(before), templates))
    [spec] = templates.made.values()
    [config] = spec["devices"]["config"]
    said = config["opaque"]["parameters"]
    assert (said["priority"], said["preload"]) == ("best-effort", False)
    judged = ask(validate, review(after), TERMS)
    assert judged["allowed"]
    assert "warnings" not in judged
    entry = {**after["spec"]["resourceClaims"][0], "resourceClaimTemplateName": "own"}
    own = {**after, "spec": {**after["spec"], "resourceClaims": [entry]}}
    [warning] = ask(validate, review(own), TERMS)["warnings"]
    assert "has the priority that the claim's parameters say" in warning


def test_a_template_that_cannot_be_made_refuses_the_pod_with_the_reason_and_to_ask_again() -> None:
    response = turning(review(pod(PART)), Templates("the API server does not answer"))
    assert not response["allowed"]
    assert response["status"] == {
        "code": 500,
        "reason": "InternalError",
        "message": "the ResourceClaimTemplate of the pod cannot be made: the API server does not answer. "
        "Create the pod again",
    }


def test_a_pod_past_its_quota_is_refused_when_it_is_created_and_makes_no_template() -> None:
    templates = Templates()
    full = CreateTimeChecks(refuse=lambda _pod, _request: ["ExceedsGPUQuota: none is left"])
    response = turning(review(pod(PART)), templates, checks=full)
    assert (response["allowed"], response["status"]["code"], templates.made) == (False, 403, {})
    assert response["status"]["message"] == "ExceedsGPUQuota: none is left"


def test_the_note_of_a_workloads_size_goes_with_the_resources_that_it_explains() -> None:
    before = pod(PART, annotations={TEMPLATE_SIZE: "{}", CORE_LIMIT: "80"})
    after = patched(before, turning(review(before), Templates()))
    assert after["metadata"]["annotations"] == {CORE_LIMIT: "80"}


@given(pods)
def test_whatever_is_sent_is_turned_whole_or_not_at_all_and_once(obj: dict[str, Any]) -> None:
    mended = ask(mutate, review(obj), TERMS)
    if not mended["allowed"]:
        return
    legal, templates = patched(obj, mended), Templates()
    answer = turning(review(legal), templates)
    after = patched(legal, answer)
    assert answer["allowed"]
    made, asks = parse_pod(after), parse_pod(legal)
    if templates.made:
        assert not made.asks
        assert not check_pod(asks, TERMS.unit, TERMS.minimum_cores)
        claims = {one["name"] for group in ("initContainers", "containers") for one in after["spec"].get(group, [])
                  if one["resources"].get("claims")}  # fmt: skip
        assert claims == {one.name for one in asks.containers if one.asks}
    else:
        assert after == legal
    again = turning(review(after), templates)
    assert "patch" not in again
    assert ask(validate, review(after), TERMS)["allowed"] or not templates.made
    assert json.dumps(after)
    assert read(review(after)).obj is not None
