"""The API stand-in's rules for pods: extended resources, binding, eviction."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException

from gpu_manager.domain.contract import CORE, MEMORY
from sandbox.api import ApiError


def pod(name="train", resources=None, init=None, **spec):
    containers = [{"name": "main", "image": "busybox", "resources": resources or {}}]
    if init is not None:
        spec["initContainers"] = [{"name": "init", "image": "busybox", "resources": init}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": containers, **spec},
    }


def test_requests_default_to_limits_and_quantities_become_text(api):
    made = api.create(
        pod(resources={"limits": {CORE: 30, MEMORY: "20", "cpu": "500m"}}, init={"limits": {CORE: 5}})
    )
    limits = {CORE: "30", MEMORY: "20", "cpu": "500m"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": limits, "requests": limits}
    assert made["spec"]["initContainers"][0]["resources"]["requests"] == {CORE: "5"}


@pytest.mark.parametrize("value", ["30", 30, "3e1", "30000m", "0.03k", "1Ki", "0"])
def test_every_form_of_a_whole_number_is_taken(api, value):
    api.create(pod(resources={"limits": {CORE: value}, "requests": {CORE: value}}))


@pytest.mark.parametrize(
    ("resources", "code", "words"),
    [
        ({"limits": {CORE: "0.5"}}, 422, "must be an integer"),
        ({"limits": {CORE: "30500m"}}, 422, "must be an integer"),
        ({"limits": {CORE: "-1"}}, 422, "must be greater than or equal to 0"),
        (
            {"limits": {CORE: "30"}, "requests": {CORE: "20"}},
            422,
            "must be equal to tencent.com/vcuda-core limit of 30",
        ),
        ({"requests": {CORE: "20"}}, 422, "Limit must be set for non overcommitable resources"),
        ({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, 422, "must be less than or equal to cpu limit"),
        ({"limits": {CORE: "many"}}, 400, "not a Kubernetes quantity"),
    ],
)
@pytest.mark.parametrize("where", ["resources", "init"])
def test_extended_resources_are_judged_as_the_api_server_judges_them(api, resources, code, words, where):
    with pytest.raises(ApiError, match=words) as caught:
        api.create(pod(**{where: resources}))
    assert caught.value.code == code


def bind(core, name="train", node="n1", **meta):
    body = {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}
    core.create_namespaced_pod_binding(name, "default", body, _preload_content=False).release_conn()


def refused(call, *args, **kwargs):
    with pytest.raises(ApiException) as caught:
        call(*args, **kwargs)
    return caught.value.status, json.loads(caught.value.body)["message"]


def test_a_binding_writes_node_and_annotations_in_one_version(api, core):
    before = api.create(pod())
    api.patch("pods", "train", {"metadata": {"annotations": {"mine": "1"}}})
    version = int(api.get("pods", "train")["metadata"]["resourceVersion"])
    bind(core, annotations={"card": "3"}, uid=before["metadata"]["uid"])
    after = api.get("pods", "train")
    assert after["spec"]["nodeName"] == "n1"
    assert after["metadata"]["annotations"] == {"mine": "1", "card": "3"}
    assert int(after["metadata"]["resourceVersion"]) == version + 1
    assert {c["type"]: c["status"] for c in after["status"]["conditions"]} == {"PodScheduled": "True"}


def test_a_binding_is_refused_for_a_pod_that_is_bound_gone_gated_going_or_another(api, core):
    uid = api.create(pod())["metadata"]["uid"]
    code, message = refused(bind, core, uid="another")
    assert code == 409
    assert "UID in precondition" in message
    assert refused(bind, core, resourceVersion="1")[0] == 409
    assert refused(bind, core, name="nobody")[0] == 404
    bind(core, uid=uid)
    assert refused(bind, core, node="n2") == (
        409,
        'Operation cannot be fulfilled on pods/binding "train": pod train is already assigned to node "n1"',
    )
    api.create(pod("gated", schedulingGates=[{"name": "wait"}]))
    code, message = refused(bind, core, name="gated")
    assert (code, "schedulingGates" in message) == (409, True)
    api.patch("pods", "gated", {"spec": {"schedulingGates": []}})
    bind(core, name="gated")
    going = pod("going")
    going["metadata"]["finalizers"] = ["x/y"]
    api.create(going)
    api.delete("pods", "going")
    code, message = refused(bind, core, name="going")
    assert (code, "being deleted" in message) == (409, True)
    assert refused(bind, core, name="gated", node="") == (500, "target.name: Required value")


def test_a_binding_by_the_namespaces_own_path_does_the_same(api, core):
    api.create(pod())
    body = {"metadata": {"name": "train"}, "target": {"name": "n1"}}
    core.create_namespaced_binding("default", body, _preload_content=False).release_conn()
    assert api.get("pods", "train")["spec"]["nodeName"] == "n1"


def evict(core, name, **options):
    body = {"metadata": {"name": name, "namespace": "default"}, "deleteOptions": options}
    core.create_namespaced_pod_eviction(name, "default", body, _preload_content=False).release_conn()


def test_an_eviction_deletes_gracefully_and_checks_the_uid(api, core):
    api.create(pod(nodeName="n1"))
    assert refused(evict, core, "train", preconditions={"uid": "another"})[0] == 409
    evict(core, "train")
    assert api.get("pods", "train")["metadata"]["deletionTimestamp"]
    assert refused(evict, core, "nobody")[0] == 404


@pytest.mark.parametrize("spec", [{"minAvailable": 2}, {"maxUnavailable": 0}, {"minAvailable": "100%"}])
def test_an_eviction_waits_for_the_disruption_budget(api, core, spec):
    for name in ("a", "b"):
        api.create(pod(name, nodeName="n1"))
        api.patch("pods", name, {"status": {"phase": "Running"}}, subresource="status")
    selector = {"matchLabels": {"app": "web"}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    api.create({**budget, "spec": {"selector": selector, **spec}})
    code, message = refused(evict, core, "a")
    assert (code, message) == (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    assert "deletionTimestamp" not in api.get("pods", "a")["metadata"]
    api.delete("poddisruptionbudgets", "web")
    evict(core, "a")
    assert api.get("pods", "a")["metadata"]["deletionTimestamp"]


def test_a_pod_keeps_its_spec_except_image_gates_and_tolerations(api):
    api.create(pod(resources={"limits": {CORE: "30"}}))
    changed = api.get("pods", "train")
    changed["spec"]["containers"][0]["image"] = "busybox:2"
    api.patch("pods", "train", {"spec": changed["spec"]})
    changed["spec"]["containers"][0]["resources"] = {"limits": {CORE: "40"}, "requests": {CORE: "40"}}
    with pytest.raises(ApiError, match="may not change fields"):
        api.patch("pods", "train", {"spec": changed["spec"]})
    with pytest.raises(ApiError, match="only deletion is allowed"):
        api.patch("pods", "train", {"spec": {"schedulingGates": [{"name": "late"}]}})
