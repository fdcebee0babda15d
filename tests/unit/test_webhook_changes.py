"""Who may change what of a pod that exists, and of the annotations that say which cards it has."""

from __future__ import annotations

import pytest

from admission.webhook.admit import mutate, validate
from gpu_manager.domain.contract import (
    ADVICE,
    ALLOCATION,
    ASSIGNED,
    CORE,
    CORE_LIMIT,
    MEMORY,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
    RESIZE,
    RESIZED,
)
from tests.fakes.reviews import admit, ask, container, patched, pod, review, update

SCHEDULER = "system:serviceaccount:kube-system:gpu-quota-admission"
GUARDED = {
    ALLOCATION: "{}",
    PREDICATE_NODE: "n1",
    PREDICATE_TIME: "1",
    ASSIGNED: "false",
    f"{PREDICATE_INDEX}0": "0,1",
    RESIZED: "{}",
}


def test_a_restored_backup_loses_the_guarded_annotations_with_a_warning_each() -> None:
    before = pod(container(core="100"), annotations={**GUARDED, "mine": "kept"})
    response = ask(mutate, review(before))
    assert patched(before, response)["metadata"]["annotations"] == {"mine": "kept"}
    assert len(response["warnings"]) == len(GUARDED)
    assert (
        f"annotation {ALLOCATION} is removed: the scheduler and the agent alone write it"
        in response["warnings"]
    )
    assert admit(before)[0]


def test_the_two_service_accounts_keep_the_guarded_annotations() -> None:
    before = pod(container(core="100"), annotations=GUARDED)
    assert admit(before, user=SCHEDULER) == (True, "", [])


def test_validation_refuses_a_guarded_annotation_that_was_not_removed() -> None:
    response = ask(validate, review(pod(container(), annotations={PREDICATE_NODE: "n1"})))
    assert response["status"]["code"] == 403
    assert response["status"]["reason"] == "Forbidden"
    assert (
        f"annotation {PREDICATE_NODE} is written by the scheduler and the agent alone"
        in response["status"]["message"]
    )


@pytest.mark.parametrize("subresource", ["", "status", "ephemeralcontainers", "resize"])
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {PREDICATE_NODE: "n2"}, 'is "n2": the scheduler and the agent alone may change it: leave it out'),
        ({PREDICATE_NODE: "n1"}, {PREDICATE_NODE: "n2"}, 'leave it as it was, "n1"'),
        ({PREDICATE_NODE: "n1"}, {}, "is removed: the scheduler and the agent alone may change it: leave it as it was"),
    ],
)  # fmt: skip
def test_nobody_else_sets_changes_or_removes_a_guarded_annotation(
    before: dict[str, str], after: dict[str, str], says: str, subresource: str
) -> None:
    change = (pod(container(core="100"), annotations=before), pod(container(core="100"), annotations=after))
    response = ask(validate, update(*change, subresource))
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert says in response["status"]["message"]
    assert ask(validate, update(*change, subresource, user=SCHEDULER))["allowed"]


def test_a_binding_of_a_stranger_carries_no_guarded_annotation() -> None:
    binding = {"metadata": {"name": "train-x", "annotations": {ALLOCATION: "{}"}}, "target": {"name": "n1"}}
    sent = review(binding, subResource="binding", kind={"group": "", "version": "v1", "kind": "Binding"})
    assert not ask(validate, sent)["allowed"]
    assert ask(validate, {**sent, "request": {**sent["request"], "userInfo": {"username": SCHEDULER}}})[
        "allowed"
    ]
    # The same by the older way, POST .../namespaces/x/bindings.
    older = {"subResource": "", "resource": {"group": "", "version": "v1", "resource": "bindings"}}
    assert not ask(validate, {**sent, "request": {**sent["request"], **older}})["allowed"]


def test_a_change_may_not_make_a_pod_illegal_but_an_illegal_pod_can_still_end() -> None:
    legal, illegal = (
        pod(container(core="30", memory="1"), annotations={CORE_LIMIT: c}) for c in ("80", "20")
    )
    assert not ask(validate, update(legal, illegal))["allowed"]
    ending = {**illegal, "metadata": {**illegal["metadata"], "finalizers": []}}
    assert ask(validate, update(illegal, ending))["allowed"]
    worse = pod(
        container(core="30", memory="1"), annotations={CORE_LIMIT: "20", "tencent.com/placement": "random"}
    )
    response = ask(validate, update(illegal, worse))
    assert response["auditAnnotations"] == {"rules": "placement-unknown"}


def test_a_status_update_without_annotations_is_not_judged_again() -> None:
    old = pod(container(core="150"))
    assert ask(validate, update(old, {**old, "status": {"phase": "Running"}}, "status"))["allowed"]


def test_an_ephemeral_container_cannot_ask() -> None:
    old = pod(container(core="30", memory="1"))
    debug = {"name": "debug", "image": "busybox", "resources": {"limits": {CORE: "10", MEMORY: "1"}}}
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": [debug]}}
    response = ask(validate, update(old, new, "ephemeralcontainers"))
    assert response["auditAnnotations"] == {"rules": "ephemeral-container"}
    assert (
        'container "debug": tencent.com/vcuda-core is 10, but an ephemeral container cannot'
        in response["status"]["message"]
    )
    assert not ask(validate, review(new))["allowed"]
    plain = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "debug"}]}}
    assert ask(validate, update(old, plain, "ephemeralcontainers"))["allowed"]


def test_all_container_kinds_are_judged() -> None:
    for spec in (
        {"initContainers": [container("i", "150")]},
        {"initContainers": [container("i", "150", restartPolicy="Always")]},
    ):
        assert not admit(pod(container(), **spec))[0]


SIZES = [
    ('{"v":1,"containers":{"train":{"cores":50,"memory":"8Gi"}}}', ""),
    ("{}", "it is not JSON of version 1: write"),
    ('{"v":1,"containers":{"train":{"cores":100}}}', 'of container "train" is 100: use 99'),
    ('{"v":1,"containers":{"train":{"cores":41}}}', "above its elastic ceiling 40"),
    ('{"v":1,"containers":{"other":{"cores":5}}}', "the pod has no such container"),
]


@pytest.mark.parametrize(("wanted", "says"), SIZES[1:])
def test_a_size_that_can_never_be_is_refused_when_it_is_written(wanted: str, says: str) -> None:
    before = pod(container(name="train", core="30", memory="8"), annotations={CORE_LIMIT: "40"})
    after = pod(
        container(name="train", core="30", memory="8"), annotations={CORE_LIMIT: "40", RESIZE: wanted}
    )
    response = ask(validate, update(before, after))
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert says in response["status"]["message"]
    assert ask(validate, update(after, after))["allowed"], "what it was before it may stay"


def test_bounds_of_advice_that_cannot_be_kept_are_refused_on_pods() -> None:
    plain = pod(container(name="train", core="30", memory="8"))
    for wanted, says in (
        ("yes", 'is "yes": it is not JSON of version 1: write {"v":1,"apply":"in-place"'),
        ('{"v":1,"containers":{"train":{"cores":[0,120]}}}', "is bounded by 0 to 120: use 1 to 99"),
    ):
        asks = pod(container(name="train", core="30", memory="8"), annotations={ADVICE: wanted})
        for response in (ask(validate, update(plain, asks)), ask(validate, review(asks))):
            assert (response["allowed"], response["status"]["code"]) == (False, 422)
            assert says in response["status"]["message"]
        assert ask(validate, update(asks, asks))["allowed"], "what it was before it may stay"


def test_a_legal_size_passes_and_so_does_its_end() -> None:
    plain = pod(container(name="train", core="30", memory="8"))
    asks = pod(container(name="train", core="30", memory="8"), annotations={RESIZE: SIZES[0][0]})
    assert ask(validate, update(plain, asks))["allowed"]
    assert ask(validate, update(asks, plain))["allowed"]


def test_a_new_pod_has_the_size_of_its_spec() -> None:
    copied = pod(
        container(name="train", core="30", memory="8"), annotations={RESIZE: SIZES[0][0], "mine": "kept"}
    )
    response = ask(mutate, review(copied))
    assert patched(copied, response)["metadata"]["annotations"] == {"mine": "kept"}
    (warning,) = (w for w in response["warnings"] if RESIZE in w)
    assert warning == (
        f"annotation {RESIZE} is removed: it resizes a running pod, and a new one has the size of its spec"
    )
