"""The API stand-in under the official client: objects, patches, conflicts, deletion, faults."""

from __future__ import annotations

import json
import threading

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ApiError, StandInApi
from tests.fakes.waiting import PATIENCE, until


@pytest.fixture
def kube(api, tmp_path):
    configuration = client.Configuration()
    config.load_kube_config(str(api.kubeconfig(tmp_path / "config")), client_configuration=configuration)
    configuration.retries = False
    with client.ApiClient(configuration) as connection:
        yield connection


@pytest.fixture
def core(kube):
    return client.CoreV1Api(kube)


def config_map(name="settings", **meta):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"a": "1"}}


def pod(name="train", node=None, **meta):
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}


def refusal(call, *args, **kwargs):
    with pytest.raises(ApiException) as caught:
        call(*args, **kwargs)
    return caught.value.status, json.loads(caught.value.body)


def test_what_was_created_can_be_read_listed_replaced_and_deleted(core):
    made = core.create_namespaced_config_map("default", config_map())
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert core.read_namespaced_config_map("settings", "default").data == {"a": "1"}
    assert [c.metadata.name for c in core.list_namespaced_config_map("default").items] == ["settings"]
    made.data = {"a": "2"}
    replaced = core.replace_namespaced_config_map("settings", "default", made)
    assert int(replaced.metadata.resource_version) > int(made.metadata.resource_version)
    assert replaced.metadata.uid == made.metadata.uid
    core.delete_namespaced_config_map("settings", "default")
    assert refusal(core.read_namespaced_config_map, "settings", "default")[0] == 404


def test_a_stale_replace_is_a_conflict_and_changes_nothing(core):
    first = core.create_namespaced_config_map("default", config_map())
    core.patch_namespaced_config_map("settings", "default", {"data": {"a": "2"}})
    first.data = {"a": "3"}
    code, status = refusal(core.replace_namespaced_config_map, "settings", "default", first)
    assert (code, status["reason"]) == (409, "Conflict")
    assert core.read_namespaced_config_map("settings", "default").data == {"a": "2"}


def test_resource_versions_rise_over_all_kinds_and_an_unchanged_object_keeps_its_own(core):
    versions = [
        int(core.create_namespaced_config_map("default", config_map("one")).metadata.resource_version),
        int(core.create_namespaced_pod("default", pod()).metadata.resource_version),
        int(core.create_namespaced_config_map("default", config_map("two")).metadata.resource_version),
    ]
    assert versions == sorted(set(versions))
    same = core.patch_namespaced_config_map("two", "default", {"data": {"a": "1"}})
    assert int(same.metadata.resource_version) == versions[-1]


def test_creating_a_name_twice_says_already_exists(core):
    core.create_namespaced_config_map("default", config_map())
    code, status = refusal(core.create_namespaced_config_map, "default", config_map())
    assert (code, status["reason"]) == (409, "AlreadyExists")


@pytest.mark.parametrize(
    ("namespace", "obj", "code"),
    [
        ("nowhere", config_map(), 404),
        ("default", config_map("No_Name"), 422),
        ("default", config_map(""), 422),
        ("default", config_map(resourceVersion="7"), 400),
        ("default", config_map(namespace="kube-system"), 400),
        ("default", {**config_map(), "kind": "Secret"}, 400),
    ],
)
def test_an_object_that_the_real_server_refuses_is_refused_with_its_code(core, namespace, obj, code):
    assert refusal(core.create_namespaced_config_map, namespace, obj)[0] == code


def test_generated_names_begin_as_asked_and_differ(core):
    names = {
        core.create_namespaced_pod("default", pod(name=None, generateName="job-")).metadata.name
        for _ in range(5)
    }
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


def test_a_merge_patch_adds_changes_and_removes_annotations(core):
    core.create_namespaced_pod("default", pod(annotations={"a": "1", "b": "2"}))
    patch = {"metadata": {"annotations": {"a": None, "b": "3", "c": "4"}}}
    changed = core.patch_namespaced_pod(
        "train", "default", patch, _content_type="application/merge-patch+json"
    )
    assert changed.metadata.annotations == {"b": "3", "c": "4"}


def test_a_patch_with_another_uid_is_invalid_and_with_an_old_version_a_conflict(core):
    made = core.create_namespaced_pod("default", pod())
    patch = {"metadata": {"uid": "another", "annotations": {"a": "1"}}}
    code, status = refusal(core.patch_namespaced_pod, "train", "default", patch)
    assert code == 422
    assert "field is immutable" in status["message"]
    core.patch_namespaced_pod(
        "train", "default", {"metadata": {"uid": made.metadata.uid, "labels": {"x": "y"}}}
    )
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version, "annotations": {"a": "1"}}}
    assert refusal(core.patch_namespaced_pod, "train", "default", stale)[0] == 409


def test_a_json_patch_tests_adds_and_removes(core):
    core.create_namespaced_config_map("default", config_map())
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/x~1y", "value": "2"},
        {"op": "remove", "path": "/data/a"},
    ]
    assert core.patch_namespaced_config_map("settings", "default", operations).data == {"x/y": "2"}
    assert refusal(core.patch_namespaced_config_map, "settings", "default", operations)[0] == 422
    assert core.read_namespaced_config_map("settings", "default").data == {"x/y": "2"}


def test_a_strategic_patch_merges_node_conditions_by_type(core):
    core.create_node(
        {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    )
    condition = {"type": "DiskPressure", "status": "False"}
    core.patch_node_status("n1", {"status": {"conditions": [condition]}})
    kinds = {c.type: c.status for c in core.read_node("n1").status.conditions}
    assert kinds == {"Ready": "True", "DiskPressure": "False"}


def test_an_unknown_patch_format_is_415(core):
    core.create_namespaced_config_map("default", config_map())
    body = {"data": {"a": "2"}}
    apply = "application/apply-patch+yaml"
    assert (
        refusal(core.patch_namespaced_config_map, "settings", "default", body, _content_type=apply)[0] == 415
    )


def test_status_and_spec_are_changed_by_their_own_paths_only(core):
    core.create_namespaced_pod("default", pod())
    core.patch_namespaced_pod(
        "train", "default", {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
    )
    assert core.read_namespaced_pod("train", "default").status.phase == "Pending"
    changed = core.patch_namespaced_pod_status(
        "train", "default", {"status": {"phase": "Running"}, "metadata": {"annotations": {"k": "v"}}}
    )
    assert (changed.status.phase, changed.metadata.annotations) == ("Running", {"k": "v"})
    code, _ = refusal(core.patch_namespaced_pod, "train", "default", {"spec": {"nodeName": "n1"}})
    assert code == 422


def test_a_pod_on_a_node_stays_until_the_kubelet_confirms(core):
    core.create_namespaced_pod("default", pod(node="n1"))
    core.delete_namespaced_pod("train", "default")
    going = core.read_namespaced_pod("train", "default")
    assert going.metadata.deletion_timestamp
    assert going.metadata.deletion_grace_period_seconds == 30
    core.delete_namespaced_pod("train", "default", grace_period_seconds=0)
    assert refusal(core.read_namespaced_pod, "train", "default")[0] == 404


def test_a_pod_without_a_node_or_with_an_end_goes_at_once(core):
    core.create_namespaced_pod("default", pod("unbound"))
    core.create_namespaced_pod("default", pod("done", node="n1"))
    core.patch_namespaced_pod_status("done", "default", {"status": {"phase": "Succeeded"}})
    for name in ("unbound", "done"):
        core.delete_namespaced_pod(name, "default")
    assert core.list_namespaced_pod("default").items == []


def test_finalizers_hold_a_deleted_object_until_the_last_is_removed(core):
    core.create_namespaced_config_map("default", config_map(finalizers=["x/y"]))
    core.delete_namespaced_config_map("settings", "default")
    assert core.read_namespaced_config_map("settings", "default").metadata.deletion_timestamp
    merge = "application/merge-patch+json"
    core.patch_namespaced_config_map(
        "settings", "default", {"metadata": {"finalizers": []}}, _content_type=merge
    )
    assert refusal(core.read_namespaced_config_map, "settings", "default")[0] == 404


def test_deleting_with_another_uid_is_a_conflict(core):
    core.create_namespaced_pod("default", pod())
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    assert refusal(core.delete_namespaced_pod, "train", "default", body=options)[0] == 409


def test_selectors_choose_by_field_and_by_label(core):
    for name, node, tier in (("a", "n1", "web"), ("b", "n2", "web"), ("c", "n1", "db"), ("d", None, None)):
        core.create_namespaced_pod("default", pod(name, node, labels={"tier": tier} if tier else {}))
    core.patch_namespaced_pod_status("c", "default", {"status": {"phase": "Failed"}})

    def names(**selectors):
        return "".join(p.metadata.name for p in core.list_pod_for_all_namespaces(**selectors).items)

    assert names(field_selector="spec.nodeName=n1") == "ac"
    assert names(field_selector="spec.nodeName=n1,status.phase!=Failed") == "a"
    assert names(field_selector="metadata.name=b") == "b"
    assert names(label_selector="tier=web") == "ab"
    assert names(label_selector="tier in (web,db),tier!=db") == "ab"
    assert names(label_selector="!tier") == "d"
    assert names(label_selector="tier", field_selector="spec.nodeName=n2") == "b"
    assert refusal(core.list_pod_for_all_namespaces, field_selector="spec.image=x")[0] == 400


def test_a_dry_run_judges_and_keeps_nothing(core):
    core.create_namespaced_config_map("default", config_map(), dry_run="All")
    assert core.list_namespaced_config_map("default").items == []


def test_secrets_namespaces_leases_and_budgets_are_served(core, kube):
    core.create_namespace({"metadata": {"name": "team"}})
    secret = core.create_namespaced_secret("team", {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    assert secret.data == {"k": "dg=="}
    lease = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    leases = client.CoordinationV1Api(kube)
    assert leases.create_namespaced_lease("team", lease).spec.holder_identity == "a"
    core.delete_namespace("team")
    assert refusal(leases.read_namespaced_lease, "leader", "team")[0] == 404


def test_an_event_lives_in_the_namespace_of_what_it_is_about(core):
    about = {"kind": "Pod", "name": "train", "namespace": "kube-system"}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": about,
        "reason": "R",
        "message": "m",
        "type": "Normal",
    }
    assert refusal(core.create_namespaced_event, "default", event)[0] == 422
    core.create_namespaced_event("kube-system", event)
    found = core.list_event_for_all_namespaces(field_selector="involvedObject.name=train,type=Normal")
    assert [e.message for e in found.items] == ["m"]


def test_injected_failures_hit_the_next_matching_requests_only(api, core):
    api.fail(2, 503, match="get configmaps")
    core.create_namespaced_config_map("default", config_map())
    for _ in range(2):
        assert refusal(core.read_namespaced_config_map, "settings", "default")[0] == 503
    assert core.read_namespaced_config_map("settings", "default").data == {"a": "1"}


def test_a_lost_answer_leaves_its_effect(api, core):
    api.cut(1, match="create configmaps", after=True)
    with pytest.raises(Exception, match=r"closed|aborted|reset"):
        core.create_namespaced_config_map("default", config_map())
    assert core.read_namespaced_config_map("settings", "default").data == {"a": "1"}


def test_stopping_frees_the_port_and_starting_again_keeps_the_objects(api, core):
    core.create_namespaced_config_map("default", config_map())
    url = api.url
    api.stop()
    with pytest.raises(Exception, match=r"refused|Connection"):
        core.read_namespaced_config_map("settings", "default")
    api.start()
    assert api.url == url
    assert core.read_namespaced_config_map("settings", "default").data == {"a": "1"}


def test_a_port_that_is_taken_is_named(api):
    with pytest.raises(
        NodeUnready, match=r"cannot listen at http://127\.0\.0\.1:\d+: Address already in use"
    ):
        StandInApi(port=int(api.url.rpartition(":")[2])).start()


def test_stopping_does_not_wait_for_requests_that_are_held(api, core):
    api.delay(10 * PATIENCE, match="get configmaps")
    outcome = []

    def read():
        try:
            core.read_namespaced_config_map("settings", "default")
        except (ApiException, HTTPError) as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: any(a.verb == "get" and a.resource == "configmaps" for a in api.verbs_used()))
    api.stop()
    reader.join(PATIENCE)
    assert len(outcome) == 1


def test_labels_that_are_not_text_are_a_bad_request(api):
    with pytest.raises(ApiError, match="not all text") as caught:
        api.create(config_map(labels={"n": 1}))
    assert caught.value.code == 400


def test_the_python_methods_follow_the_same_rules(api):
    made = api.create(config_map())
    assert api.get("configmaps", "settings") == made
    assert api.patch("configmaps", "settings", {"data": {"b": "2"}})["data"] == {"a": "1", "b": "2"}
    with pytest.raises(ApiError, match="already exists"):
        api.create(config_map())
    assert [c["metadata"]["name"] for c in api.list("configmaps", fields="metadata.name=settings")] == [
        "settings"
    ]
    api.delete("configmaps", "settings")
    assert api.get("configmaps", "settings") is None


def test_clients_can_discover_what_is_served(kube):
    assert client.VersionApi(kube).get_code().major == "1"
    names = {r.name for r in client.CoreV1Api(kube).get_api_resources().resources}
    assert {"pods", "pods/binding", "pods/eviction", "nodes/status"} <= names
    assert {g.name for g in client.ApisApi(kube).get_api_versions().groups} >= {
        "policy",
        "coordination.k8s.io",
    }
