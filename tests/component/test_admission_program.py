"""The whole admission service beside an API server that fails: nothing over-committed, nothing stuck."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from admission.config import LeaderMode, Leadership
from gpu_manager.domain.contract import FEATURES, LEADER_LABEL, LEADER_SINCE, MULTI_CARD
from sandbox.api import StandInApi
from tests.fakes.admission import NODES, Process, Service, booked, cluster, create, known
from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

Serve = Callable[..., Service]


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with cluster() as made:
        yield made


@pytest.fixture
def process(api: StandInApi) -> Iterator[Callable[..., Process]]:
    with ExitStack() as running:
        where = f"--api-url={api.url}", "--leader-mode=alone"
        yield lambda *more: running.enter_context(Process(*where, *more))


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
    asking.join(PATIENCE)
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
    api: StandInApi, serve: Serve
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
    api: StandInApi, serve: Serve
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
    assert service.placed(obj, NODES) in NODES


def test_an_expired_watch_is_listed_anew(api: StandInApi, serve: Serve) -> None:
    service = serve()
    api.lag_watches(float("inf"))
    for number in range(70):
        create(api, f"p{number}", core=1, memory=1)
    api.compact()
    api.faults.clear()
    api.drop_watches()
    until(lambda: service.figures()["vcuda_admission_waiting_pods", ()] == 70)


# Who leads.


def test_the_leader_labels_its_pod_and_gives_its_lease_back(api: StandInApi, serve: Serve) -> None:
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


def test_each_replica_writes_what_it_can_do_into_its_own_pod(api: StandInApi, serve: Serve) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    for name in ("one", "two"):
        meta = {"name": name, "namespace": "kube-system"}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def written(name: str) -> Any:
        meta = (api.get("pods", name, "kube-system") or {})["metadata"]
        return (meta.get("annotations") or {}).get(FEATURES)

    api.fail(1, 403, match="patch pods/one")
    serve(Leadership(LeaderMode.LEASE, pod="one", pod_uid="uid-one"))
    until(lambda: MULTI_CARD in (written("one") or "").split(","))
    assert written("two") is None


def replicas(api: StandInApi, serve: Serve) -> tuple[Service, Service]:
    """Two, of which the first leads; lists of pods are refused from now on."""
    api.create(lease_of(""))
    for name in ("one", "two"):
        spec = {"containers": [{"name": "c", "image": "i"}]}
        meta = {"name": name, "namespace": "kube-system"}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    one = serve(Leadership(LeaderMode.LEASE, pod="one"))
    until(lambda: one.figures()["vcuda_admission_leader", ()])
    two = serve(Leadership(LeaderMode.LEASE, pod="two"))
    until(known(two, create(api, "first")["metadata"]["name"]))
    api.fail(1_000, 503, match="list pods")
    return one, two


def test_a_change_of_leader_lists_no_pods(api: StandInApi, serve: Serve) -> None:
    one, two = replicas(api, serve)
    one.program.stop()
    assert two.placed(create(api, "b"), NODES) in NODES


def test_a_new_leader_waits_for_a_watch_that_is_late(api: StandInApi, serve: Serve) -> None:
    """What the leader before it bound may be what the watch has not shown."""
    one, two = replicas(api, serve)
    second = create(api, "second", core=80)
    until(known(two, "second"))
    api.lag_watches(float("inf"))
    one.program.stop()
    until(lambda: LEADER_SINCE in str(api.get("pods", "two", "kube-system")))
    two.filter(second, ["n1"])
    assert "does not lead" in two.bind(second, "n1")
    api.lag_watches(0.0)
    assert two.placed(second, ["n1"]) == "n1"


def test_a_replica_that_does_not_lead_keeps_neither_a_label_nor_its_callers_connections(
    api: StandInApi, serve: Serve
) -> None:
    """A scheduler's connection outlives the Service's choice: it would be refused on it for ever."""
    api.create(lease_of("two_x", leaseDurationSeconds=3600, renewTime="t"))
    labels = {LEADER_LABEL: "true"}  # left by a process of this pod that was killed while it led
    meta = {"name": "one", "namespace": "kube-system", "labels": labels}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def closed(service: Service) -> bool:
        line = http.client.HTTPConnection("127.0.0.1", service.extender_port, timeout=PATIENCE)
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


def test_the_pod_whose_scheduler_holds_the_lease_binds(api: StandInApi, serve: Serve) -> None:
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
