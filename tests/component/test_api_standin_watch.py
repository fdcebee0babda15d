"""Watches of the API stand-in: order, selection, expiry, bookmarks, ends of every kind."""

from __future__ import annotations

import json
import math
import socket
import threading
from urllib.parse import urlsplit

import pytest
from kubernetes import watch
from kubernetes.client.exceptions import ApiException

from sandbox.api import StandInApi
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def api():
    with StandInApi(bookmark_seconds=0.05) as api:
        yield api


def pod(name, node=None):
    spec = {"containers": [{"name": "main", "image": "busybox"}], **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def seen(core, count, **arguments):
    """The next ``count`` events as (type, name)."""
    found = []
    stream = watch.Watch()
    for event in stream.stream(core.list_pod_for_all_namespaces, timeout_seconds=20, **arguments):
        found.append((event["type"], event["object"].metadata.name))
        if len(found) == count:
            stream.stop()
    return found


class Raw:
    """A watch read from the socket, line by line, to see exactly what is on the wire."""

    def __init__(self, api, query):
        address = urlsplit(api.url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
        self.socket.sendall(f"GET /api/v1/pods?watch=true&{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.file = self.socket.makefile("rb")
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def chunk(self):
        size = self.file.readline().strip()
        if not size or size == b"0":
            return None
        text = self.file.read(int(size, 16))
        self.file.readline()
        return text

    def event(self):
        return json.loads(self.chunk())


def version(core):
    return core.list_pod_for_all_namespaces().metadata.resource_version


def test_a_watch_from_a_version_shows_every_later_change_once_and_in_order(api, core):
    api.create(pod("before"))
    start = version(core)
    api.create(pod("a"))
    api.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}})
    api.delete("pods", "a")
    expected = [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert seen(core, 4, resource_version=start) == expected


def test_a_watch_without_a_version_begins_with_what_there_is(api, core):
    api.create(pod("a"))
    api.create(pod("b"))
    assert seen(core, 2) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_pod_enters_a_nodes_watch_when_it_is_bound_and_leaves_it_deleted(api, core):
    start = version(core)
    api.create(pod("a"))
    api.create(pod("other", "n2"))
    api.bind("a", "n1", annotations={"k": "v"})
    api.delete("pods", "a")
    api.delete("pods", "a", grace=0)
    found = seen(core, 4, resource_version=start, field_selector="spec.nodeName=n1")
    assert found == [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_leaving_the_selection_by_a_change_of_status_is_deleted_with_the_last_matching_state(api, core):
    api.create(pod("a", "n1"))
    with Raw(api, f"resourceVersion={version(core)}&fieldSelector=status.phase!=Failed") as stream:
        changed = api.patch("pods", "a", {"status": {"phase": "Failed"}}, subresource="status")
        event = stream.event()
    assert event["type"] == "DELETED"
    assert event["object"]["status"]["phase"] == "Pending"
    assert event["object"]["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


def test_a_watch_of_a_compacted_version_is_gone(api, core):
    api.create(pod("a"))
    start = version(core)
    api.create(pod("b"))
    api.compact()
    with pytest.raises(ApiException) as caught:
        seen(core, 1, resource_version=start)
    assert caught.value.status == 410


def test_a_full_history_compacts_itself():
    with StandInApi(history=3) as api:
        for name in "abcdef":
            api.create(pod(name))
        with Raw(api, "resourceVersion=2") as stream:
            event = stream.event()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_an_open_watch_that_has_seen_everything_survives_a_compaction(api, core):
    api.create(pod("a"))
    with Raw(api, f"resourceVersion={version(core)}") as stream:
        api.compact()
        api.create(pod("b"))
        assert stream.event()["object"]["metadata"]["name"] == "b"


def test_bookmarks_carry_the_newest_version_to_those_who_ask(api, core):
    start = version(core)
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    with Raw(api, f"resourceVersion={start}&allowWatchBookmarks=true") as stream:
        event = stream.event()
    assert event["type"] == "BOOKMARK"
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(start)


def test_a_watch_ends_by_itself_after_its_timeout_with_a_clean_end(api):
    with Raw(api, "timeoutSeconds=1") as stream:
        assert stream.chunk() is None


def test_dropped_watches_end_and_a_new_one_goes_on(api, core):
    api.create(pod("a"))
    with Raw(api, "resourceVersion=0") as stream:
        assert stream.event()["object"]["metadata"]["name"] == "a"
        api.drop_watches()
        assert stream.chunk() is None
    assert seen(core, 1) == [("ADDED", "a")]


def test_a_watch_can_be_cut_in_the_middle_of_a_line(api):
    with Raw(api, "resourceVersion=0") as stream:
        api.create(pod("first"))
        assert stream.event()["type"] == "ADDED"
        api.drop_watches(mid_line=True)
        api.create(pod("second"))
        broken = stream.chunk()
        with pytest.raises(ValueError, match=r"char"):
            json.loads(broken)
        assert stream.chunk() is None


def test_held_watches_learn_nothing_until_they_are_let_go(api, core):
    start = version(core)
    api.lag_watches(math.inf)
    with Raw(api, f"resourceVersion={start}&allowWatchBookmarks=true") as stream:
        api.create(pod("a"))
        bookmark = stream.event()
        assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", start)
        assert [p.metadata.name for p in core.list_pod_for_all_namespaces().items] == ["a"]
        api.lag_watches(0)
        event = stream.event()
        while event["type"] == "BOOKMARK":
            event = stream.event()
    assert event["object"]["metadata"]["name"] == "a"


def test_stopping_ends_every_watch(api):
    streams = [Raw(api, "resourceVersion=0") for _ in range(3)]
    api.stop()
    for stream in streams:
        with stream:
            assert stream.chunk() is None


def test_many_watchers_and_writers_agree_on_the_order(api, core):
    start = version(core)
    writers = [
        threading.Thread(target=lambda part=part: [api.create(pod(f"p{part}-{i}")) for i in range(10)])
        for part in range(4)
    ]
    for writer in writers:
        writer.start()
    with Raw(api, f"resourceVersion={start}") as one, Raw(api, f"resourceVersion={start}") as two:
        first = [one.event()["object"]["metadata"]["resourceVersion"] for _ in range(40)]
        second = [two.event()["object"]["metadata"]["resourceVersion"] for _ in range(40)]
    for writer in writers:
        writer.join()
    assert first == second == sorted(first, key=int)
