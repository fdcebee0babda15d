"""Objects that a tenant wrote to do harm, in lists and watches of an API server: each costs itself alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.reading import list_pods
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.cli.kubectl.cluster_view import read_view
from gpu_manager.domain.contract import EVENT_UNREADABLE
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.ports.api_server import KnownPod
from tests.fakes.paged_api import Api, pod, serving_pods, watching
from tests.fakes.waiting import PATIENCE, until

DEEP = b'{"f:a":' * 1_500 + b"{}" + b"}" * 1_500
HOSTILE = {"deep": DEEP, "byte": b'{"f:\xff":{}}', "number": b"1" * 5_000}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=list(HOSTILE))
def test_a_list_with_a_hostile_pod_is_heard_whole(fields: bytes) -> None:
    with serving_pods(pod("a"), pod("evil", fields), pod("b")) as (_, connection):
        with watching(connection) as watcher:
            assert watcher.reflector.wait(PATIENCE)
            assert watcher.heard == [("a", False), ("evil", False), ("b", False)]
            assert watcher.reflector.error is None
        assert [obj["metadata"]["name"] for obj in list_pods(connection)] == ["a", "evil", "b"]


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=list(HOSTILE))
def test_a_watch_goes_on_after_a_hostile_pod_and_repeats_nothing(fields: bytes) -> None:
    with serving_pods() as (api, connection), watching(connection) as watcher:
        assert watcher.reflector.wait(PATIENCE)
        api.event("ADDED", pod("a", version=101))
        api.event("ADDED", pod("evil", fields, version=102))
        api.event("DELETED", pod("evil", fields, version=103))
        api.event("ADDED", pod("b", version=104))
        until(lambda: ("b", False) in watcher.heard)
        assert watcher.heard == [("a", False), ("evil", False), ("evil", True), ("b", False)]
        api.end_watch()
        until(lambda: len(api.watched_from) > 1)
        assert api.watched_from[:2] == ["100", "104"]


def test_an_event_that_cannot_be_read_is_named_once_and_the_watch_goes_on() -> None:
    with serving_pods() as (api, connection), watching(connection) as watcher:
        assert watcher.reflector.wait(PATIENCE)
        for _ in range(2):
            api.line(b'{"type":"ADDED","object":' + pod("evil")[:-1] + b",}}\n")
        api.line(b'{"type":"ADDED"}\n')
        api.event("ADDED", pod("b", version=104))
        until(lambda: ("b", False) in watcher.heard)
        assert [(one.key, one.uid, one.version) for one in watcher.told] == [
            ("team/evil", "u-evil", "1"),
            ("an object without a name", "", ""),
        ]
        assert watcher.reflector.unreadable == 3
        assert set(watcher.reflector.spoiled) == {"team/evil", "an object without a name"}
        api.event("MODIFIED", pod("evil", version=105))
        until(lambda: ("evil", False) in watcher.heard)
        until(lambda: set(watcher.reflector.spoiled) == {"an object without a name"})
        assert len(api.watched_from) == 1


def test_the_end_of_an_object_is_heard_though_it_cannot_be_read() -> None:
    with (
        serving_pods(pod("evil"), pod("poison")) as (api, connection),
        watching(connection, poison="poison") as watcher,
    ):
        assert watcher.reflector.wait(PATIENCE)
        api.line(b'{"type":"DELETED","object":' + pod("evil", version=102)[:-1] + b",}}\n")
        api.line(b'{"type":"DELETED","object":{"spec":' + b"}\n")
        api.event("DELETED", pod("poison", version=103))
        api.event("ADDED", pod("b", version=104))
        until(lambda: ("b", False) in watcher.heard)
        assert watcher.heard == [("evil", False), ("evil", True), ("b", False)]
        assert set(watcher.reflector.spoiled) == {"an object without a name", "team/poison"}


def test_an_object_at_which_its_reader_fails_costs_itself() -> None:
    with (
        serving_pods(pod("a"), pod("poison"), pod("b")) as (api, connection),
        watching(connection, poison="poison") as watcher,
    ):
        assert watcher.reflector.wait(PATIENCE)
        assert watcher.heard == [("a", False), ("b", False)]
        api.event("MODIFIED", pod("poison", version=101))
        api.event("ADDED", pod("c", version=102))
        until(lambda: ("c", False) in watcher.heard)
        assert [(one.key, one.version, one.reason) for one in watcher.told] == [
            ("team/poison", "1", "KeyError: 'spec'"),
            ("team/poison", "101", "KeyError: 'spec'"),
        ]
        assert api.lists == 1


def test_the_agent_tells_of_a_pod_that_it_cannot_read() -> None:
    broken = pod("evil")[:-1] + b",}"
    with serving_pods(broken, pod("odd").replace(b'"spec":{}', b'"spec":[]')) as (api, connection):
        kube = Kube(connection, "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
        kube.start()
        try:
            assert kube.pods.wait(PATIENCE)
            until(lambda: {"evil", "odd"} <= {event["involvedObject"]["name"] for event in api.posted})
            about = {event["involvedObject"]["name"]: event for event in api.posted}
            assert about["evil"]["reason"] == EVENT_UNREADABLE
            assert about["evil"]["involvedObject"]["uid"] == "u-evil"
            assert "it cannot be read and is passed over" in about["odd"]["message"]
            assert kube.unreadable["pods"] == 2
            assert kube.pods.spoiled == 2
            assert "cannot be read: see object_unreadable in the log" in kube.trouble
            assert "evil" not in kube.trouble
        finally:
            api.end_watch()
            kube.close()


def mirror(name: str, created: str) -> bytes:
    """A pod that carries the marks of a static pod's mirror."""
    digest = "d" * 32
    marks = {"kubernetes.io/config.mirror": digest, "kubernetes.io/config.hash": digest}
    meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "creationTimestamp": created}
    owners = [{"kind": "Node", "name": "n1", "controller": True}]
    obj = {
        "metadata": {**meta, "annotations": marks, "ownerReferences": owners},
        "spec": {"nodeName": "n1"},
    }
    return json.dumps(obj).encode()


@contextmanager
def agent(connection: Connection, api: Api, heard: Callable[[KnownPod], None]) -> Iterator[Kube]:
    kube = Kube(connection, "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
    kube.pods.on_change(heard)
    kube.start()
    try:
        yield kube
    finally:
        api.end_watch()
        kube.close()


def on_node(name: str, fields: bytes = b"{}") -> bytes:
    return pod(name, fields).replace(b'"spec":{}', b'"spec":{"nodeName":"n1"}')


def test_the_agent_hears_of_an_honest_pod_as_its_page_is_read() -> None:
    """The other pages come only once it has."""
    heard, in_time = Event(), []
    hostile = [on_node(f"evil-{at}", list(HOSTILE.values())[at % 3]) for at in range(60)]
    with serving_pods(*hostile[:10], on_node("honest"), *hostile[10:]) as (api, connection):
        api.before_page = lambda begin: begin and in_time.append(heard.wait(PATIENCE))
        with agent(
            connection, api, lambda found: heard.set() if found.pod.name == "honest" else None
        ) as kube:
            assert kube.pods.wait(PATIENCE)
            assert in_time
            assert all(in_time)
            assert len(kube.pods.local()) == 61


@pytest.mark.parametrize("listed", [True, False])
def test_a_pod_that_becomes_unreadable_stays_as_it_was_read_last_until_its_end(*, listed: bool) -> None:
    container = b'{"nodeName":"n1","containers":[{"name":"c"}]}'
    whole = pod("a").replace(b"{}", container)
    broken = pod("a", version=101).replace(b"{}", container)[:-1] + b",}"
    heard: list[KnownPod] = []
    with serving_pods(whole) as (api, connection), agent(connection, api, heard.append) as kube:
        assert kube.pods.wait(PATIENCE)
        if listed:
            api.pods[:] = [broken]
            api.line(b'{"type":"ERROR","object":{"code":410}}\n')
            api.end_watch()
        else:
            api.line(b'{"type":"MODIFIED","object":' + broken + b"}\n")
        until(lambda: any(found.unread for found in heard))
        ((found,),) = kube.pods.local().values()
        assert (found.unread, found.tombstone, len(found.pod.containers)) == (True, False, 1)
        api.line(b'{"type":"DELETED","object":' + broken + b"}\n")
        until(lambda: any(found.tombstone for found in heard))
        ((found,),) = kube.pods.local().values()
        assert (found.unread, found.tombstone, len(found.pod.containers)) == (False, True, 1)


def test_of_the_mirrors_in_a_list_that_claim_one_uid_the_oldest_counts() -> None:
    forged, real = mirror("a-forged", "2030-01-01T00:00:01Z"), mirror("real", "2030-01-01T00:00:00Z")
    heard: list[str] = []
    with serving_pods(forged, real) as (api, connection):
        with agent(connection, api, lambda found: heard.append(found.pod.name)) as kube:
            assert kube.pods.wait(PATIENCE)
            assert list(kube.pods.local()) == ["team/real"]
        assert heard == ["real"]


def test_the_agent_keeps_no_annotations_of_others() -> None:
    meta = {"metadata": {"name": "a", "namespace": "team", "uid": "u", "annotations": {"note": "x" * 1_000}}}
    meta["metadata"]["annotations"] |= {"tencent.com/placement": "spread"}
    with serving_pods(json.dumps({**meta, "spec": {"nodeName": "n1"}}).encode()) as (api, connection):
        kube = Kube(connection, "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
        kube.start()
        try:
            assert kube.pods.wait(PATIENCE)
            ((found,),) = kube.pods.local().values()
            assert found.pod.annotations == {"tencent.com/placement": "spread"}
        finally:
            api.end_watch()
            kube.close()


def test_what_could_not_be_read_is_forgotten_with_a_list_that_lacks_it() -> None:
    with serving_pods(pod("a"), b"7") as (api, connection), watching(connection) as watcher:
        assert watcher.reflector.wait(PATIENCE)
        assert set(watcher.reflector.spoiled) == {"an object without a name"}
        api.pods.pop()
        listed = watcher.reflector.listed
        watcher.reflector.relist()
        api.end_watch()
        until(lambda: watcher.reflector.listed != listed)
        assert watcher.reflector.spoiled == {}


def test_a_saved_cluster_with_a_hostile_pod_is_read(tmp_path: Path) -> None:
    saved = tmp_path / "cluster.json"
    hostile = (pod(name, fields).replace(b"{", b'{"kind":"Pod",', 1) for name, fields in HOSTILE.items())
    saved.write_bytes(b'{"apiVersion":"v1","kind":"List","items":[%b],"metadata":{}}' % b",".join(hostile))
    view = read_view(str(saved), "", "")
    assert (view.nodes, view.pods) == ((), ())
    assert set(view.hosts.details) == {f"u-{name}" for name in HOSTILE}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"kind: List", "not a list"),
        (b'{"items":[{}', "not a list"),
        (b"{}", "not"),
    ],
)
def test_a_file_that_is_no_saved_cluster_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    saved = tmp_path / "cluster.json"
    saved.write_bytes(content)
    with pytest.raises(RequestInvalid, match=words):
        read_view(str(saved), "", "")
