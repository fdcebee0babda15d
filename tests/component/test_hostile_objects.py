"""Objects that a tenant wrote to do harm, in lists and watches of an API server: each costs itself alone."""

from __future__ import annotations

import json
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Condition, Event
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpu_manager.adapters.kube.connection import Connection, Timeouts, Unreachable, connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.objects import Unreadable
from gpu_manager.adapters.kube.reading import list_pods
from gpu_manager.adapters.kube.reflector import Pause, Reflector
from gpu_manager.adapters.kube.streams import PAGE_BYTES, Pages
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.cli.kubectl.cluster_view import read_view
from gpu_manager.domain.contract import EVENT_UNREADABLE
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.ports.api_server import KnownPod
from tests.fakes.waiting import PATIENCE, until
from tests.fakes.web import given, send, serving

_QUICK = Timeouts(connect=2.0, answer=10.0, watch=60)
DEEP = b'{"f:a":' * 1_500 + b"{}" + b"}" * 1_500
HOSTILE = {"deep": DEEP, "byte": b'{"f:\xff":{}}', "number": b"1" * 5_000}


def pod(name: str, fields: bytes = b"{}", version: int = 1) -> bytes:
    meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": str(version)}
    return b'{"metadata":%b,"managedFields":[%b]},"spec":{}}' % (json.dumps(meta).encode()[:-1], fields)


class Api:
    """Answers lists of pods in pages, and the newest watch of them with what :meth:`event` is told; it has no
    nodes.
    """

    def __init__(self, *pods: bytes) -> None:
        self.pods = list(pods)
        self.limits: list[int] = []
        self.watched_from: list[str] = []
        self.lists = 0
        self.version = 100
        self.posted: list[dict[str, Any]] = []
        self.spoil: Callable[[int], bool] = lambda _limit: False  # a page of so many breaks off
        self.before_page: Callable[[int], object] = lambda _begin: None
        self.refusals: list[tuple[int, bytes]] = []  # of the next pages that are no first ones
        self.of_watches: list[int] = []  # statuses of the next watches
        self._lines: deque[bytes | None] = deque()
        self._came = Condition()
        self._of_nodes: queue.Queue[bytes | None] = queue.Queue()

    def event(self, kind: str, obj: bytes) -> None:
        self.line(b'{"type":"%b","object":%b}\n' % (kind.encode(), obj))

    def line(self, line: bytes | None) -> None:
        with self._came:
            self._lines.append(line)
            self._came.notify_all()

    def end_watch(self) -> None:
        self.line(None)
        self._of_nodes.put(None)

    def _next(self, number: int) -> bytes | None:
        with self._came:
            self._came.wait_for(lambda: self._lines or number != len(self.watched_from))
            return self._lines.popleft() if number == len(self.watched_from) else None

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        nodes = handler.path.startswith("/api/v1/nodes")
        asked = {key: values[0] for key, values in parse_qs(urlsplit(handler.path).query).items()}
        if handler.command == "POST":
            self.posted.append(json.loads(given(handler)))
            send(handler, b"{}", 201)
            return
        if "watch" in asked:
            get_next: Callable[[], bytes | None] = self._of_nodes.get
            if not nodes:
                with self._came:
                    self.watched_from.append(asked["resourceVersion"])
                    self._came.notify_all()
                get_next = partial(self._next, len(self.watched_from))
                if self.of_watches:
                    send(handler, b'{"message":"no"}', self.of_watches.pop(0))
                    return
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            while (line := get_next()) is not None:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")
            return
        if nodes:
            send(handler, b'{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":null}')
            return
        self.lists += "continue" not in asked
        limit, begin = int(asked["limit"]), int(asked.get("continue", 0))
        self.before_page(begin)
        if begin and self.refusals:
            code, body = self.refusals.pop(0)
            send(handler, body, code)
            return
        self.limits.append(limit)
        page = self.pods[begin : begin + limit]
        more = str(begin + limit) if begin + limit < len(self.pods) else ""
        spoilt = self.spoil(limit)
        head = json.dumps({"resourceVersion": str(self.version), "continue": more}).encode()
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":%b,"items":[%b]}' % (head, b",".join(page))
        if spoilt:
            send(handler, body[: len(body) * 2 // 3], length=len(body))
        else:
            send(handler, body)


@contextmanager
def serving_pods(*pods: bytes) -> Iterator[tuple[Api, Connection]]:
    api = Api(*pods)
    with serving(api.respond) as url:
        connection = connect(url=url, timeouts=_QUICK)
        try:
            yield api, connection
        finally:
            api.end_watch()
            connection.close()


class Watcher:
    """Keeps what a reflector hears."""

    def __init__(self, connection: Connection, poison: str = "") -> None:
        self.heard: list[tuple[str, bool]] = []
        self.told: list[Unreadable] = []
        self.poison = poison
        self.slowly: Callable[[str], object] = lambda _name: None
        self.reflector = Reflector(
            connection,
            "pods",
            "/api/v1/pods",
            "",
            replaced=lambda objects, take: [take(obj) for obj in objects],
            changed=self._changed,
            unreadable=self.told.append,
            pause=Pause(0.01, 0.05),
        )

    def _changed(self, obj: Any, gone: bool) -> None:
        if obj["metadata"]["name"] == self.poison:
            raise KeyError("spec")
        self.slowly(obj["metadata"]["name"])
        self.heard.append((obj["metadata"]["name"], gone))


@contextmanager
def watching(connection: Connection, poison: str = "") -> Iterator[Watcher]:
    watcher = Watcher(connection, poison)
    watcher.reflector.start()
    try:
        yield watcher
    finally:
        watcher.reflector.close()


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


def test_news_is_heard_while_a_list_is_read() -> None:
    """What happens behind the first page is heard before the last page comes, and nothing older after it."""
    with serving_pods(*(pod(f"p-{at:03}") for at in range(450))) as (api, connection):
        watcher, heard, in_time = Watcher(connection), Event(), list[bool]()

        torn = [True]

        def spoil(limit: int) -> bool:  # the first page, whose objects are older than the next try's
            api.version = 100 if torn else 101
            return limit == 20 and bool(torn) and torn.pop()

        api.spoil = spoil

        def before_page(begin: int) -> None:
            if begin == 10:
                api.event("ADDED", pod("news", version=101))
                api.event("DELETED", pod("p-000", version=102))
                api.event("DELETED", pod("p-440", version=103))
                api.event("MODIFIED", pod("p-441", version=104))
                api.line(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"105"}}}\n')
            elif begin > 350:
                in_time.append(heard.wait(PATIENCE))

        def slowly(name: str) -> None:
            if name == "p-441":
                heard.set()
            elif name > "p-020":
                heard.wait(0.005)  # the events may take so long

        api.before_page, watcher.slowly = before_page, slowly
        watcher.reflector.start()
        try:
            until(lambda: "105" in api.watched_from)
            told = {name: [gone for one, gone in watcher.heard if one == name] for name, _ in watcher.heard}
            assert in_time == [True]
            assert told["p-000"] == [False, False, True], "it was in the page that broke off, too"
            assert told["p-440"] == [True]
            assert told["p-441"] == told["news"] == [False]
            assert len(told) == 451
            assert (api.lists, api.watched_from) == (2, ["100", "105"])
        finally:
            watcher.reflector.close()


EXPIRED = b'{"kind":"Status","code":410,"reason":"Expired","message":"too old","metadata":{"continue":"%b"}}'


@pytest.mark.parametrize(("token", "lists"), [(b"20", 1), (b"", 2)])
def test_a_list_that_expires_in_the_middle_goes_on_where_it_may(token: bytes, lists: int) -> None:
    with serving_pods(*(pod(str(at)) for at in range(120))) as (api, connection):
        api.refusals = [(410, EXPIRED % token)]
        with watching(connection) as watcher:
            assert watcher.reflector.wait(PATIENCE)
            assert {name for name, _ in watcher.heard} == {str(at) for at in range(120)}
            assert api.lists == lists
            until(lambda: len(api.watched_from) > lists)
            assert set(api.watched_from) == {"100"}, "as it began, so that no change is missed"


@pytest.mark.parametrize(
    ("status", "lists"),
    [
        (b'{"code":410}', 2),
        (b'{"reason":"Expired"}', 2),
        (b'{"reason":"Gone","code":0,"message":"gone"}', 2),
        (b'{"code":410,"metadata":{},"message":null}', 2),
        (b"{}", 1),
        (b'{"code":true,"reason":7}', 1),
        (b'{"code":500,"message":"storage is (re)initializing"}', 1),
        (b'{"code":"410"}', 1),
    ],
)
def test_a_watch_that_ends_with_an_error_begins_again_with_a_list_where_it_must(
    status: bytes, lists: int
) -> None:
    with serving_pods() as (api, connection), watching(connection) as watcher:
        assert watcher.reflector.wait(PATIENCE)
        api.line(b'{"type":"ERROR","object":' + status + b"}\n")
        until(lambda: len(api.watched_from) == 2)
        api.line(b'{"type":"BOOKMARK","object":{}}\n')
        api.line(b'{"type":"ERROR","object":7}\n{"type":"ADDED","obj')
        api.end_watch()
        until(lambda: len(api.watched_from) == 3)
        api.event("ADDED", pod("b", version=101))
        until(lambda: watcher.heard == [("b", False)])
        assert (api.lists, watcher.reflector.unreadable) == (lists, 1)


@pytest.mark.parametrize(("status", "lists"), [(500, 2), (400, 2), (403, 1), (503, 1)])
def test_a_watch_that_is_always_refused_begins_again_with_a_list_where_that_may_help(
    status: int, lists: int
) -> None:
    with serving_pods() as (api, connection):
        api.of_watches = [status] * 6
        with watching(connection) as watcher:
            until(lambda: len(api.watched_from) == 7)
            api.event("ADDED", pod("b", version=101))
            until(lambda: watcher.heard == [("b", False)])
            assert api.lists == lists


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


def test_pages_are_asked_for_by_what_their_objects_weigh() -> None:
    large = b'["' + b"x" * (PAGE_BYTES // 20) + b'"]'
    with serving_pods(*(pod(str(at), large) for at in range(200))) as (api, connection):
        found = [obj["metadata"]["name"] for obj in Pages(connection, "list", "/api/v1/pods").read()]
        assert found == [str(at) for at in range(200)]
        assert api.limits == [20, *[19] * 10]


def test_pages_of_small_objects_grow() -> None:
    with serving_pods(*(pod(str(at)) for at in range(1_500))) as (api, connection):
        assert sum(1 for _ in Pages(connection, "list", "/api/v1/pods").read()) == 1_500
        assert api.limits == [20, 81, 325, 500, 500, 500]


def test_a_page_that_breaks_off_is_asked_for_again_at_half_its_size() -> None:
    with serving_pods(*(pod(str(at)) for at in range(300))) as (api, connection):
        api.spoil = lambda limit: limit > 150
        names = {obj["metadata"]["name"] for obj in Pages(connection, "list", "/api/v1/pods").read()}
        assert names == {str(at) for at in range(300)}
        assert api.limits == [20, 81, 325, 162, 81, 102, 128]


def test_a_server_that_answers_no_page_is_an_error_and_the_next_list_begins_smaller() -> None:
    with serving_pods(*(pod(str(at)) for at in range(300))) as (api, connection):
        api.spoil = lambda limit: limit > 3
        pages = Pages(connection, "list pods", "/api/v1/pods")
        with pytest.raises(Unreachable, match="list pods"):
            list(pages.read())
        assert api.limits == [20, 10, 5]
        assert sum(1 for _ in pages.read()) >= 300


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
