"""The whole admission service beside an API server that fails: nothing over-committed, nothing stuck."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from admission.app import Program, compose
from admission.config import ExtenderDoor, LeaderMode, Leadership, Settings
from gpu_manager.domain.contract import ALLOCATION, LEADER_LABEL, QUOTA_SEEN, TOKEN_HEADER
from gpu_manager.sandbox.api import ADMIN_TOKEN, StandInApi, User
from tests.fakes.admission import Calls, Process, booked, create
from tests.fakes.extender import node
from tests.fakes.sandbox import until

NODES = ["n1", "n2"]
_KEYS = st.sampled_from(
    ["kind", "metadata", "spec", "template", "containers", "name", "namespace", "resources", "limits", "Pod",
     "NodeNames", "Nodes", "tencent.com/vcuda-core", "annotations", "items", "PodName", "Node"]
)  # fmt: skip
TENANT = "tenant-token"


def only_team_a(user: User, access: Any) -> bool:
    return user.name != "tenant" or access.namespace == "team-a"


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with StandInApi(history=50, tokens={TENANT: User("tenant")}, authorize=only_team_a) as made:
        for name in NODES:
            made.create(node(name, cards=1))
        for name in ("team-a", "team-b"):
            made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield made
        made.faults.clear()


class Service(Calls):
    """The same in this process."""

    def __init__(self, api: StandInApi, leadership: Leadership | None = None) -> None:
        settings = Settings(
            address="127.0.0.1",
            port=0,
            api_url=api.url,
            extender=ExtenderDoor(port=0),
            leadership=leadership or Leadership(LeaderMode.ALONE),
            drain_seconds=0,
        )
        self.program: Program = compose(settings)
        super().__init__(self.program.port, self.program._ports()["extender_port"])
        self.program.start()


@pytest.fixture
def serve(api: StandInApi) -> Iterator[Callable[..., Service]]:
    running: list[Service] = []

    def start(*arguments: Any) -> Service:
        running.append(Service(api, *arguments))
        until(lambda: all(running[-1].program.ready().values()))
        return running[-1]

    yield start
    for service in running:
        service.program.stop()


@pytest.fixture
def process(api: StandInApi) -> Iterator[Callable[..., Process]]:
    running: list[Process] = []

    def start(*arguments: str) -> Process:
        running.append(Process(f"--api-url={api.url}", "--leader-mode=alone", *arguments))
        return running[-1]

    yield start
    for one in running:
        one.close()


def known(service: Calls, name: str) -> Callable[[], bool]:
    return lambda: service.get(f"/explain/default/{name}")[0] == 200


# As its own process, killed.


def lease_of(holder: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "gpu-quota-admission", "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, **spec},
    }


def test_a_pod_is_placed_explained_and_still_booked_after_a_kill(
    api: StandInApi, process: Callable[..., Process]
) -> None:
    service = process()
    first = create(api, "first", core=80)
    until(known(service, "first"))
    assert service.placed(first, NODES) == "n1"
    service.kill()
    service = process()
    again = create(api, "again", core=80)
    assert service.placed(again, NODES) == "n2"
    third = create(api, "third", core=80)
    until(known(service, "third"))
    assert "20 cores" in service.place(third, NODES)
    status, text = service.get("/explain/default/third")
    assert status == 200
    assert "have no room now" in text
    assert sorted(booked(api).values()) == [80, 80]


def test_a_binding_under_way_when_its_sender_is_killed_is_waited_for(
    api: StandInApi, process: Callable[..., Process]
) -> None:
    service = process()
    first = create(api, "first", core=80)
    until(known(service, "first"))
    until(lambda: service.figures()["vcuda_admission_leader", ()])
    api.delay(60, match="create pods/binding")
    assert service.filter(first, ["n1"])["NodeNames"] == ["n1"]

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            service.bind(first, "n1")

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: service.figures()["vcuda_admission_reservations", ()])
    service.kill()
    asking.join(20)
    service = process()
    second = create(api, "second", core=80)
    until(known(service, "second"))
    assert service.filter(second, ["n1"])["NodeNames"] == ["n1"]  # it knows nothing of the first yet
    assert "ask again" in service.bind(second, "n1")
    api.faults.clear()  # the first one's Binding takes effect, of which nobody is told
    until(lambda: booked(api))
    assert service.placed(second, NODES) == "n2"
    assert sorted(booked(api).values()) == [80, 80]


# The API server fails.


def test_an_answer_that_comes_too_late_keeps_the_place_until_the_server_says(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    service = serve()
    first, second = create(api, "first", core=80), create(api, "second", core=80)
    until(known(service, "second"))
    api.cut(1, match="create pods/binding", after=True)
    api.lag_watches(float("inf"))
    until(lambda: service.figures()["vcuda_admission_leader", ()])
    service.filter(first, ["n1"])
    assert "did not say" in service.bind(first, "n1")
    assert service.filter(second, ["n1"])["NodeNames"] == []
    api.faults.clear()
    assert service.placed(second, NODES) == "n2"
    assert sorted(booked(api).values()) == [80, 80]
    until(lambda: service.figures()["vcuda_admission_reservations", ()] == 0)


def test_while_the_api_server_is_away_nothing_is_bound_and_all_goes_on_after(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    service = serve()
    obj = create(api, "a")
    until(known(service, "a"))
    until(lambda: service.figures()["vcuda_admission_leader", ()])
    api.stop()
    assert service.filter(obj, NODES)["NodeNames"] == NODES
    assert "did not say" in service.bind(obj, "n1")
    assert service.get("/explain/default/a", "never-seen")[0] == 503
    assert service.get("/healthz")[0] == 200
    api.start()
    later = create(api, "later")
    until(known(service, "later"))
    assert service.placed(later, ["n2"]) == "n2"
    assert service.placed(obj, NODES, 30) in NODES


def test_an_expired_watch_is_listed_anew(api: StandInApi, serve: Callable[..., Service]) -> None:
    service = serve()
    api.lag_watches(float("inf"))
    for number in range(70):
        create(api, f"p{number}", core=1, memory=1)
    api.compact()
    api.faults.clear()
    api.drop_watches()
    until(lambda: service.figures()["vcuda_admission_waiting_pods", ()] == 70)


# Who leads.


def test_the_leader_labels_its_pod_and_gives_its_lease_back(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    api.create(lease_of(""))
    for name in ("one", "two"):
        spec = {"containers": [{"name": "c", "image": "i"}]}
        meta = {"name": name, "namespace": "kube-system"}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def label(name: str) -> Any:
        return ((api.get("pods", name, "kube-system") or {})["metadata"].get("labels") or {}).get(
            LEADER_LABEL
        )

    one = serve(Leadership(LeaderMode.LEASE, pod="one"))
    until(lambda: label("one") == "true")
    two = serve(Leadership(LeaderMode.LEASE, pod="two"))
    obj = create(api, "a")
    until(known(two, "a"))
    assert two.filter(obj, ["n1"])["NodeNames"] == ["n1"]
    assert "does not lead" in two.bind(obj, "n1")
    assert one.placed(obj, NODES) == "n1"
    one.program.stop()
    until(lambda: label("two") == "true")
    assert label("one") is None
    assert two.placed(create(api, "b"), NODES) == "n1"
    lease = api.get("leases", "gpu-quota-admission", "kube-system")
    assert lease is not None
    assert lease["spec"]["holderIdentity"].startswith("two_")


def test_a_replica_that_does_not_lead_keeps_neither_a_label_nor_its_callers_connections(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    """A scheduler's connection outlives the Service's choice: it would be refused on it for ever."""
    api.create(lease_of("two_x", leaseDurationSeconds=3600, renewTime="t"))
    labels = {LEADER_LABEL: "true"}  # left by a process of this pod that was killed while it led
    meta = {"name": "one", "namespace": "kube-system", "labels": labels}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def closed(service: Service) -> bool:
        line = http.client.HTTPConnection("127.0.0.1", service.extender_port, timeout=20)
        try:
            line.request("POST", "/scheduler/filter", "{}", {"Content-Type": "application/json"})
            with line.getresponse() as answer:
                return answer.getheader("connection") == "close"
        finally:
            line.close()

    def labelled() -> bool:
        return LEADER_LABEL in ((api.get("pods", "one", "kube-system") or {})["metadata"].get("labels") or {})

    assert labelled()
    assert closed(serve(Leadership(LeaderMode.LEASE, pod="one")))
    until(lambda: not labelled())
    assert not closed(serve())


def test_the_pod_whose_scheduler_holds_the_lease_binds(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    lease = lease_of(
        f"{socket.gethostname()}_8f2c",
        leaseDurationSeconds=15,
        leaseTransitions=0,
        renewTime="1970-01-01T00:00:00.000000Z",  # its clock is wrong: nobody may look at it
    )
    service = serve(Leadership(pod="some-pod"))
    obj = create(api, "a")
    until(known(service, "a"))
    service.filter(obj, ["n1"])
    assert "does not lead" in service.bind(obj, "n1")
    api.create(lease)
    assert service.placed(obj, NODES) == "n1"
    api.patch("leases", "gpu-quota-admission", {"spec": {"holderIdentity": "elsewhere_1"}}, "kube-system")
    until(lambda: not service.figures()["vcuda_admission_leader", ()])


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
    api: StandInApi, serve: Callable[..., Service]
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


def test_a_quota_that_is_deleted_limits_nobody_any_more(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
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


def test_what_a_tenant_writes_on_its_running_pod_moves_no_booking(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
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


def test_who_gets_past_the_scheduler_is_named_once(api: StandInApi, serve: Callable[..., Service]) -> None:
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


def test_people_hear_about_namespaces_in_which_they_may_get_pods(
    api: StandInApi, serve: Callable[..., Service]
) -> None:
    limit(api, json.dumps({"team-a": {"quota": {"T4": 1}}, "team-b": {"quota": {"T4": 2}}}))
    service = serve()
    for team in ("team-a", "team-b"):
        create(api, "p", core=200, memory=None, namespace=team)
    until(lambda: service.get("/explain/team-b/p")[0] == 200)
    assert service.get("/explain/team-a/p", TENANT)[0] == 200
    for path in ("/explain/team-b/p", "/explain/team-b/none", "/quota", "/quota?namespace=team-b"):
        assert service.get(path, TENANT)[0] == 403, path
    for token in ("unknown", None):
        assert service.get("/explain/team-a/p", token)[0] == 401
    status, text = service.get("/quota?namespace=team-a&o=json", TENANT)
    assert (status, [row["namespace"] for row in json.loads(text)["quota"]]) == (200, ["team-a"])
    assert "team-b" in service.get("/quota", ADMIN_TOKEN)[1]
    own = {TOKEN_HEADER: f"Bearer {TENANT}"}  # through a proxy that has an identity of its own
    assert service.get("/explain/team-b/p", ADMIN_TOKEN, **own)[0] == 403
    assert service.get("/explain/team-b/p", TENANT, **{TOKEN_HEADER: f"Bearer {ADMIN_TOKEN}"})[0] == 200
    assert service.get("/explain/team-b/p", ADMIN_TOKEN, **{TOKEN_HEADER: "Bearer unknown"})[0] == 401
    assert json.loads(service.get("/explain/team-a/p", Accept="application/json")[1])["total"] == 2
    told = until(
        lambda: service.filter(api.get("pods", "p", "team-a") or {}, NODES) and api.list("events", "team-a")
    )
    assert told[0]["reason"] == "GPUNotPlaced"


def test_a_manifest_is_explained_before_it_is_created(api: StandInApi, serve: Callable[..., Service]) -> None:
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


def test_no_manifest_and_no_path_breaks_the_service(api: StandInApi, serve: Callable[..., Service]) -> None:
    """Whatever is sent, the answer is a sentence and never a fault of ours."""
    service = serve()

    @hypothesis.settings(max_examples=25, deadline=None)
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
