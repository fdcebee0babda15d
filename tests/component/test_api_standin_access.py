"""The API stand-in's callers: tokens, rights, reviews, and admission hooks between them and the store."""

from __future__ import annotations

import base64
import json

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from sandbox.api import (
    ADMIN_TOKEN,
    AccessRules,
    ApiError,
    Hook,
    StandInApi,
    https_hook,
    service_account,
)
from tests.fakes.waiting import PATIENCE
from tests.fakes.web import given, send, serving

AGENT = service_account("kube-system", "gpu-manager")


def client_of(api, token):
    configuration = client.Configuration(host=api.url)
    if token:
        configuration.api_key = {"BearerToken": f"Bearer {token}"}
    configuration.retries = False
    return client.ApiClient(configuration)


def pod(name="train", **meta):
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}


def test_what_each_user_did_is_remembered_as_rbac_counts_it():
    with StandInApi(tokens={"agent": AGENT}) as api, client_of(api, "agent") as kube:
        core = client.CoreV1Api(kube)
        core.create_namespaced_pod("default", pod())
        core.list_pod_for_all_namespaces()
        core.list_pod_for_all_namespaces(watch=True, timeout_seconds=0, _preload_content=False).close()
        core.patch_namespaced_pod_status("train", "default", {"status": {"phase": "Running"}})
        client.CoordinationV1Api(kube).list_namespaced_lease("kube-system")
        assert api.verbs_used() == {
            AccessRules(AGENT.name, "create", "", "pods", "default"),
            AccessRules(AGENT.name, "list", "", "pods"),
            AccessRules(AGENT.name, "watch", "", "pods"),
            AccessRules(AGENT.name, "patch", "", "pods/status", "default"),
            AccessRules(AGENT.name, "list", "coordination.k8s.io", "leases", "kube-system"),
        }


def test_an_unknown_token_is_401_and_none_is_anonymous():
    with StandInApi() as api:
        with client_of(api, "stolen") as kube, pytest.raises(ApiException) as caught:
            client.CoreV1Api(kube).list_node()
        assert caught.value.status == 401
        with client_of(api, None) as kube:
            review = client.AuthenticationV1Api(kube).create_self_subject_review({})
        assert review.status.user_info.username == "system:anonymous"


def test_the_judge_refuses_with_403_and_answers_access_reviews_alike():
    def only_pods(user, access):
        return user != AGENT or access.resource in {"pods", "subjectaccessreviews"}

    with StandInApi(tokens={"agent": AGENT}, authorize=only_pods) as api, client_of(api, "agent") as kube:
        core = client.CoreV1Api(kube)
        core.list_namespaced_pod("default")
        with pytest.raises(ApiException) as caught:
            core.list_namespaced_secret("default")
        assert caught.value.status == 403
        assert AGENT.name in json.loads(caught.value.body)["message"]
        verdicts = []
        for resource in ("pods", "secrets"):
            attributes = {"verb": "get", "resource": resource, "namespace": "default"}
            review = {
                "spec": {"user": AGENT.name, "groups": list(AGENT.groups), "resourceAttributes": attributes}
            }
            answer = client.AuthorizationV1Api(kube).create_subject_access_review(review)
            verdicts.append(answer.status.allowed)
        assert verdicts == [True, False]


def test_a_token_review_names_the_user_or_says_no():
    with StandInApi(tokens={"agent": AGENT}) as api, client_of(api, ADMIN_TOKEN) as kube:
        reviews = client.AuthenticationV1Api(kube)
        known = reviews.create_token_review({"spec": {"token": "agent"}}).status
        unknown = reviews.create_token_review({"spec": {"token": "x"}}).status
    assert (known.authenticated, known.user.username, known.user.groups) == (
        True,
        AGENT.name,
        list(AGENT.groups),
    )
    assert unknown.authenticated is False
    assert unknown.user is None


def answer(review, **response):
    return {**review, "response": {"uid": review["request"]["uid"], "allowed": True, **response}}


def test_a_mutating_hook_changes_what_is_stored_and_its_warning_reaches_the_client():
    seen = []

    def mutate(review):
        seen.append(review["request"])
        patch = [{"op": "add", "path": "/metadata/labels", "value": {"by": "hook"}}]
        return answer(
            review, patch=base64.b64encode(json.dumps(patch).encode()).decode(), warnings=['an "old" key']
        )

    with StandInApi(hooks=[Hook("mutate.x", mutate)]) as api, client_of(api, ADMIN_TOKEN) as kube:
        made, _, headers = client.CoreV1Api(kube).create_namespaced_pod_with_http_info("default", pod())
    assert made.metadata.labels == {"by": "hook"}
    assert headers["Warning"] == '299 - "an \\"old\\" key"'
    request = seen[0]
    assert (request["operation"], request["namespace"], request["name"]) == ("CREATE", "default", "train")
    assert request["object"]["spec"]["schedulerName"] == "default-scheduler"
    assert request["userInfo"]["username"] == "kubernetes-admin"


def test_a_validating_hook_refuses_creation_update_and_binding_in_the_servers_words():
    def refuse(review):
        return answer(review, allowed=False, status={"code": 403, "message": "not here"})

    with StandInApi(hooks=[Hook("no.x", refuse, operations=frozenset({"UPDATE"}))]) as api:
        api.create(pod())
        with client_of(api, ADMIN_TOKEN) as kube, pytest.raises(ApiException) as caught:
            client.CoreV1Api(kube).patch_namespaced_pod(
                "train", "default", {"metadata": {"labels": {"a": "b"}}}
            )
        assert caught.value.status == 403
        message = json.loads(caught.value.body)["message"]
        assert message == 'admission webhook "no.x" denied the request: not here'
        assert "labels" not in api.get("pods", "train")["metadata"]


def refuse_by_name(handler):
    """Refuses every pod by the name of ``refused``."""
    review = json.loads(given(handler))
    allowed = review["request"]["name"] != "refused"
    body = answer(review, allowed=allowed, status={"code": 422, "reason": "Invalid"})
    send(handler, json.dumps(body).encode())
    handler.close_connection = True  # a kept one would outlive the server


def test_a_webhook_is_asked_over_http_and_its_absence_fails_closed_or_open():
    with serving(refuse_by_name) as url:
        call = https_hook(f"{url}/validate", timeout=PATIENCE)
        api = StandInApi(hooks=[Hook("web.x", call)])
        api.create(pod("allowed"))
        with pytest.raises(ApiError, match=r'webhook "web\.x" denied the request: Invalid') as caught:
            api.create(pod("refused"))
        assert caught.value.code == 422
    with pytest.raises(ApiError, match=r"failed calling webhook"):
        api.create(pod("later"))
    open_api = StandInApi(hooks=[Hook("web.x", call, fail_open=True)])
    assert open_api.create(pod("later"))["metadata"]["name"] == "later"


def test_a_hook_that_answers_another_request_fails_closed():
    hook = Hook("odd.x", lambda review: {**review, "response": {"uid": "other", "allowed": True}})
    with StandInApi(hooks=[hook]) as api, client_of(api, ADMIN_TOKEN) as kube:
        with pytest.raises(ApiException) as caught:
            client.CoreV1Api(kube).create_namespaced_pod("default", pod())
        assert caught.value.status == 500
        assert api.get("pods", "train") is None
