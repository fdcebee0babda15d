"""What operators, tenants and people get from the whole admission service: quota, names, explanations."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from gpu_manager.domain.contract import ALLOCATION, QUOTA_SEEN, TOKEN_HEADER
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.admission import NODES, TENANT, Service, cluster, create, known
from tests.fakes.browser import NEEDS_A_BROWSER, browsing
from tests.fakes.sandbox import until
from tests.fakes.web import send, serving

_KEYS = st.sampled_from(
    ["kind", "metadata", "spec", "template", "containers", "name", "namespace", "resources", "limits", "Pod",
     "NodeNames", "Nodes", "tencent.com/vcuda-core", "annotations", "items", "PodName", "Node"]
)  # fmt: skip
Serve = Callable[..., Service]


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with cluster() as made:
        yield made


# The quota.


def limit(api: StandInApi, text: str | None) -> None:
    meta = {"name": "gpuquota", "namespace": "kube-system"}
    if text is None:
        api.delete("configmaps", "gpuquota", "kube-system")
    elif api.get("configmaps", "gpuquota", "kube-system") is None:
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpu_quota": text}})
    else:
        api.patch("configmaps", "gpuquota", {"data": {"gpu_quota": text}}, "kube-system")


def seen(api: StandInApi, name: str) -> Any:
    return ((api.get("pods", name) or {})["metadata"].get("annotations") or {}).get(QUOTA_SEEN)


def test_a_quota_holds_a_bad_one_changes_nothing_and_a_change_touches_who_waits(
    api: StandInApi, serve: Serve
) -> None:
    limit(api, json.dumps({"default": {"quota": {"T4": 0.5}}}))
    service = serve()
    first, second = create(api, "first", core=30), create(api, "second", core=30)
    create(api, "other", core=30, namespace="kube-public")
    until(known(service, "second"))
    assert service.placed(first, NODES) == "n1"
    assert "ExceedsGPUQuota" in service.place(second, NODES)
    assert service.figures()["vcuda_admission_quota_cards_used", ("T4", "default")] == pytest.approx(0.3)
    assert service.figures()["vcuda_admission_quota_cards_limit", ("T4", "default")] == 0.5

    limit(api, "{")
    until(lambda: service.figures()["vcuda_admission_quota_in_force", ()] == 0)
    assert "ExceedsGPUQuota" in service.place(second, NODES)
    told = until(lambda: [e for e in api.list("events", "kube-system") if e["reason"] == "GPUQuotaUnusable"])
    assert told[0]["involvedObject"]["kind"] == "ConfigMap"
    assert "kube-system/gpuquota" in told[0]["message"]
    assert "last good quota stays in force" in told[0]["message"]
    assert service.figures()["vcuda_admission_quota_rejections_total", ()] == 1
    before = seen(api, "second")

    limit(api, json.dumps({"default": {"quota": {"T4": 0.6}}}))
    until(lambda: seen(api, "second") != before)
    other = api.get("pods", "other", "kube-public")
    assert other is not None
    assert QUOTA_SEEN not in other["metadata"]["annotations"]
    assert service.placed(second, NODES) == "n1"


def test_a_quota_that_is_deleted_limits_nobody_any_more(api: StandInApi, serve: Serve) -> None:
    limit(api, json.dumps({"*": {"quota": {"*": 0}}}))
    service = serve()
    obj = create(api, "a")
    until(known(service, "a"))
    assert "ExceedsGPUQuota" in service.place(obj, NODES)
    before = seen(api, "a")
    limit(api, None)
    until(lambda: seen(api, "a") != before)
    assert service.placed(obj, NODES) == "n1"


# Tenants.


def test_what_a_tenant_writes_on_its_running_pod_moves_no_booking(api: StandInApi, serve: Serve) -> None:
    service = serve()
    obj = create(api, "a", core=80)
    until(known(service, "a"))
    assert service.placed(obj, NODES) == "n1"
    until(lambda: "bound to node n1" in service.get("/explain/default/a")[1])
    for lie in (None, "{}", json.dumps({"v": 1, "node": "n9", "pod": "x", "containers": {}})):
        api.patch("pods", "a", {"metadata": {"annotations": {ALLOCATION: lie, "note": str(lie)}}})
        create(api, f"after-{hash(lie)}", core=1, memory=1)
        until(known(service, f"after-{hash(lie)}"))
        tight = create(api, f"tight-{hash(lie)}", core=30)
        until(known(service, tight["metadata"]["name"]))
        assert service.filter(tight, ["n1"])["NodeNames"] == []


def test_who_gets_past_the_scheduler_is_named_once(api: StandInApi, serve: Serve) -> None:
    create(api, "before", on="n1")
    service = serve()
    until(lambda: [e for e in api.list("events") if e["reason"] == "GPUBypassed"])
    api.delete("pods", "before", grace=0)
    create(api, "direct", on="n1")
    create(api, "illegal", core=150, memory=None, on="n1")
    told = until(
        lambda: len(found := [e for e in api.list("events") if e["reason"] == "GPUBypassed"]) > 2 and found
    )
    texts = {e["involvedObject"]["name"]: e["message"] for e in told}
    assert "without a choice of cards" in texts["direct"]
    assert "use 1 to 100" in texts["illegal"]
    figures = service.figures()
    assert figures["vcuda_admission_bypassing_pods", ("no-binding",)] == 1
    assert len(told) == 3
    assert figures["vcuda_admission_bypassing_pods", ("illegal",)] == 1
    assert figures["vcuda_admission_bypasses_total", ("illegal",)] == 1
    api.delete("pods", "direct", grace=0)
    until(lambda: service.figures()["vcuda_admission_bypassing_pods", ("no-binding",)] == 0)


def test_people_hear_about_namespaces_in_which_they_may_get_pods(api: StandInApi, serve: Serve) -> None:
    limit(api, json.dumps({"team-a": {"quota": {"T4": 1}}, "team-b": {"quota": {"T4": 2}}}))
    service = serve()
    for team in ("team-a", "team-b"):
        create(api, "p", core=200, memory=None, namespace=team)
    until(lambda: service.get("/explain/team-b/p")[0] == 200)
    assert service.get("/explain/team-a/p", TENANT)[0] == 200
    for path in ("/explain/team-b/p", "/explain/team-b/none", "/quota", "/quota?namespace=team-b", "/closed"):
        assert service.get(path, TENANT)[0] == 403, path
    for token in ("unknown", None):
        assert service.get("/explain/team-a/p", token)[0] == 401
    for dots in ("..", "."):  # not what lies elsewhere in the API
        assert service.get(f"/explain/team-a/{dots}", TENANT) == (
            400,
            f'{{"error":"\\"{dots}\\" is no name"}}',
        )
    status, text = service.get("/quota?namespace=team-a&o=json", TENANT)
    assert (status, [row["namespace"] for row in json.loads(text)["quota"]]) == (200, ["team-a"])
    assert "team-b" in service.get("/quota", ADMIN_TOKEN)[1]
    assert service.get("/closed?namespace=team-a", TENANT) == (200, '{"closed":[]}')
    own = {TOKEN_HEADER: f"Bearer {TENANT}"}  # through a proxy that has an identity of its own
    assert service.get("/explain/team-b/p", ADMIN_TOKEN, **own)[0] == 403
    assert service.get("/explain/team-b/p", TENANT, **{TOKEN_HEADER: f"Bearer {ADMIN_TOKEN}"})[0] == 200
    assert service.get("/explain/team-b/p", ADMIN_TOKEN, **{TOKEN_HEADER: "Bearer unknown"})[0] == 401
    assert json.loads(service.get("/explain/team-a/p", Accept="application/json")[1])["total"] == 2
    told = until(
        lambda: service.filter(api.get("pods", "p", "team-a") or {}, NODES) and api.list("events", "team-a")
    )
    assert told[0]["reason"] == "GPUNotPlaced"


@NEEDS_A_BROWSER
def test_behind_a_proxy_that_logs_people_in_each_sees_what_that_person_may(
    api: StandInApi, serve: Serve, tmp_path: Path
) -> None:
    """The proxy serves the console below a path, and puts the person's token into Authorization."""
    service = serve()
    for team in ("team-a", "team-b"):
        create(api, "late", core=200, memory=None, namespace=team)
    until(lambda: service.get("/explain/team-b/late")[0] == 200)

    def proxy(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.removeprefix("/gpu")
        kind = "text/javascript" if path.endswith("js") else ""
        kind = kind or {"/ui": "text/html", "/ui/console.css": "text/css"}.get(path, "application/json")
        status, text = service.get(path, TENANT)
        send(handler, text.encode(), status, kind=kind)

    with serving(proxy) as url, browsing(tmp_path) as page:
        page.open(f"{url}/gpu/ui#/waiting?namespace=team-a", "document.querySelector('main table')")
        assert "team-a/late" in page.text()
        assert "team-b" not in page.text()
        assert page.look("document.querySelector('form.login')") is None
        page.click("nav a")
        page.wait("document.querySelector('.heat .cell')")
        assert page.complaints == []
        page.open("about:blank", "true")
        page.open(f"{url}/gpu/ui", "document.querySelector('form.login')")
        assert "with that right in all, everything" in page.text()


def test_a_manifest_is_explained_before_it_is_created(api: StandInApi, serve: Serve) -> None:
    service = serve()
    limits = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}
    spec = {"containers": [{"name": "train", "image": "i", "resources": {"limits": limits}}]}
    manifest = {"kind": "Pod", "metadata": {"name": "x", "namespace": "team-a"}, "spec": spec}
    status, text = service.send("POST", "/explain", manifest, TENANT)
    assert (status, "there is room now on 2 of 2 nodes" in text) == (200, True)
    work = {
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": "team-a"},
        "spec": {"template": {"spec": spec}},
    }
    status, text = service.send("POST", "/explain?o=json", work, TENANT)
    assert (status, json.loads(text)["counts"]["fits"]) == (200, 2)
    assert service.send("POST", "/explain", {**manifest, "metadata": {}}, TENANT)[0] == 403
    for bad, words in (
        ([], "not an object"),
        ({"kind": "Service"}, "send a Pod"),
        ({"kind": "Job"}, "no pod template"),
    ):
        status, text = service.send("POST", "/explain", bad, TENANT)
        assert (status, words in text) == (400, True), text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


def test_no_manifest_and_no_path_breaks_the_service(api: StandInApi, serve: Serve) -> None:
    """Whatever is sent, the answer is a sentence and never a fault of ours."""
    service = serve()

    @hypothesis.settings(max_examples=25)
    @hypothesis.given(body=_JSON, word=st.text(max_size=12))
    def ask(body: Any, word: str) -> None:
        quoted = urllib.parse.quote(word, safe="")
        for status, _ in (
            service.send("POST", "/explain", body),
            service.get(f"/explain/{quoted or 'x'}/{quoted or 'y'}"),
            service.get(f"/quota?namespace={quoted}&o={quoted}"),
        ):
            assert status < 500
        for verb in ("filter", "prioritize", "bind", "preempt"):
            assert service.ask(verb, body)[0] in (200, 400)

    ask()
