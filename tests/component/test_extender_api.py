"""The extender over the API server's own rules for bindings: cases 59 and 60 of spec/kubelet.md, and a 410."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import NODES, PODS
from admission.extender.binding import BindAnswer, BindOutcome
from gpu_manager.adapters.kube.connection import Connection, Refused, Unreachable, connect
from gpu_manager.adapters.kube.reflector import Pause, Reflector
from gpu_manager.domain.contract import ALLOCATION, decode_assignment
from gpu_manager.domain.kube.pod import Pod, parse_pod
from sandbox.api import StandInApi
from tests.fakes.extender import World, node, pod
from tests.fakes.waiting import PATIENCE

_QUICK = Pause(first=0.01, most=0.05)


class KubeApi:
    """:class:`admission.extender.binding.BindingApi` over a connection: what the program does, in little."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "uid": pod.uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
        try:
            self._connection.request("bind", "POST", path, query={"timeout": f"{seconds:.0f}s"}, body=body)
        except Refused as error:
            refused = 400 <= error.code < 500
            return BindAnswer(BindOutcome.REFUSED if refused else BindOutcome.UNKNOWN, str(error))
        except Unreachable as error:
            return BindAnswer(BindOutcome.UNKNOWN, str(error))
        return BindAnswer(BindOutcome.BOUND)

    def fetch(self, namespace: str, name: str) -> Pod | None:
        try:
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            return parse_pod(self._connection.request("get a pod", "GET", path))
        except Refused as error:
            if error.code == 404:
                return None
            raise


class Rig:
    """The stand-in, and an extender that watches it."""

    def __init__(self, tmp_path: Path) -> None:
        self.api = StandInApi(history=20).start()
        self.connection = connect(url=self.api.url)
        for name in ("n1", "n2"):
            self.api.create(node(name, cards=1))
        self.watches: list[Reflector] = []
        self.world = self.extender()

    def extender(self) -> World:
        world = World(watching=False)
        world.binder.api = KubeApi(self.connection)
        for kind in (NODES, PODS):
            watch = Reflector(
                self.connection,
                kind,
                f"/api/v1/{kind}",
                "",
                replaced=lambda objects, take, kind=kind: world.cluster.replace(kind, objects, take),
                changed=lambda obj, gone, kind=kind: world.cluster.apply(
                    kind, "DELETED" if gone else "MODIFIED", obj
                ),
                pause=_QUICK,
            )
            watch.start()
            self.watches.append(watch)
            assert watch.wait(PATIENCE)
        return world

    def create(self, name: str, **more: Any) -> dict[str, Any]:
        obj = pod(name, **more)
        del obj["metadata"]["uid"]
        made = self.api.create(obj)
        self.until(lambda: self.seen(made) is not None)
        return made

    def seen(self, obj: Mapping[str, Any], world: World | None = None) -> PodView | None:
        return (world or self.world).cluster.pod(obj["metadata"]["uid"])

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        seen = 0
        while not true():
            assert time.monotonic() < deadline
            seen = self.api.wait("pods", seen, 0.02)

    def close(self) -> None:
        for watch in self.watches:
            watch.close()
        self.connection.close()
        self.api.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_the_binding_writes_node_and_annotations_at_once(rig: Rig) -> None:
    obj = rig.create("a")
    assert rig.world.filter(obj)["NodeNames"] == ["n1", "n2"]
    assert rig.world.bind(obj, "n1") == ""
    stored = rig.api.get("pods", "a")
    assert stored is not None
    assert stored["spec"]["nodeName"] == "n1"
    said = decode_assignment(stored["metadata"]["annotations"][ALLOCATION])
    assert said is not None
    assert said.pod == obj["metadata"]["uid"]
    rig.until(lambda: not rig.world.cluster.snapshot().reserved)
    assert rig.world.booked("n1") == [(30, 4)]


def test_a_wider_watch_shows_a_pod_that_ends_as_ended_and_one_deleted_by_force_as_deleted(rig: Rig) -> None:
    for name in ("before", "ends", "forced"):
        rig.api.create(pod(name, on="n1"))
    ended = {"status": {"phase": "Succeeded"}}
    rig.api.patch("pods", "before", ended, subresource="status")
    listed: list[str] = []
    changes: list[tuple[str, str, bool]] = []
    running = "status.phase!=Succeeded,status.phase!=Failed"
    watch = Reflector(
        rig.connection,
        PODS,
        "/api/v1/pods",
        running,
        watch_selector="",
        replaced=lambda objects, _: listed.extend(o["metadata"]["name"] for o in objects),
        changed=lambda o, gone: changes.append((o["metadata"]["name"], o["status"]["phase"], gone)),
        pause=_QUICK,
    )
    watch.start()
    rig.watches.append(watch)
    assert watch.wait(PATIENCE)
    assert listed == ["ends", "forced"]
    rig.api.patch("pods", "ends", ended, subresource="status")
    rig.api.delete("pods", "forced", grace=0)
    rig.until(lambda: ("forced", "Pending", True) in changes)
    assert [c for c in changes if c[0] == "ends"] == [("ends", "Succeeded", False)]


def test_another_pod_of_that_name_a_bound_one_and_a_gated_one_are_refused_and_undone(rig: Rig) -> None:
    renewed, taken, gated = rig.create("renewed"), rig.create("taken"), pod("gated")
    del gated["metadata"]["uid"]
    gated["spec"]["schedulingGates"] = [{"name": "wait"}]
    gated = rig.api.create(gated)
    rig.until(lambda: rig.seen(gated) is not None)
    rig.api.faults.watch_lag = float("inf")  # the extender does not see what happens now
    for obj in (renewed, taken, gated):
        rig.world.filter(obj)
    rig.api.delete("pods", "renewed", grace=0)
    again = pod("renewed")
    del again["metadata"]["uid"]
    rig.api.create(again)
    rig.api.bind("taken", "n2")
    for obj, words in (
        (renewed, "UID in precondition"),
        (taken, "already assigned"),
        (gated, "schedulingGates"),
    ):
        assert words in rig.world.bind(obj, "n1")
        assert rig.world.booked("n1") == [(0, 0)]


def test_an_answer_cut_off_after_the_binding_took_effect_keeps_the_place(rig: Rig) -> None:
    obj = rig.create("a")
    rig.world.filter(obj)
    rig.api.faults.watch_lag = float("inf")
    rig.api.faults.cut(1, match="create pods/binding", after=True)
    assert "did not say" in rig.world.bind(obj, "n1")
    assert rig.world.booked("n1") == [(30, 4)]
    assert rig.world.binder.settle() == 0
    occupant = rig.seen(obj)
    assert occupant is not None
    assert occupant.pod.node == "n1"


def test_a_server_s_own_fault_is_an_unknown_outcome_and_the_pod_goes_on_after_it(rig: Rig) -> None:
    obj = rig.create("a")
    rig.world.filter(obj)
    rig.api.faults.fail(1, 500, match="create pods/binding")
    assert "did not say" in rig.world.bind(obj, "n1")
    rig.world.clock.time += 11
    assert rig.world.binder.settle() == 0
    rig.world.filter(obj)
    assert rig.world.bind(obj, "n1") == ""


def test_a_new_extender_beside_a_silent_watch_sees_what_the_old_one_bound(rig: Rig) -> None:
    obj = rig.create("a", core=80)
    rig.world.filter(obj)
    assert rig.world.bind(obj, "n1") == ""
    fresh = rig.extender()
    assert fresh.booked("n1") == [(80, 4)]


def test_an_expired_watch_is_replaced_by_a_full_list(rig: Rig) -> None:
    first = rig.create("a")
    rig.api.faults.watch_lag = float("inf")
    rig.api.bind("a", "n1")
    for number in range(60):  # more than the API server remembers
        rig.api.create(
            {**pod(f"later-{number}"), "metadata": {"name": f"later-{number}", "namespace": "default"}}
        )
    rig.api.faults.clear()
    rig.until(lambda: rig.world.booked("n1") == [(30, 4)])
    assert rig.seen(first) is not None
    rig.until(lambda: rig.world.cluster.named("default", "later-59") is not None)
