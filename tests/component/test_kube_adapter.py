"""The node's pods as the adapter sees them through an API server that comes, goes, forgets and stammers."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import pytest

from gpu_manager.adapters.kube.connection import Timeouts, connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.contract import CORE
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ADMIN_TOKEN
from tests.fakes.waiting import PATIENCE, until

PATIENT = Timeouts(connect=PATIENCE, answer=PATIENCE, watch=30)


class Changes:
    """Collects what the adapter tells, and lets a test wait for it."""

    def __init__(self):
        self._seen = []
        self._news = threading.Condition()

    def __call__(self, found):
        with self._news:
            self._seen.append(found)
            self._news.notify_all()

    def wait(self, wanted):
        """The first change for which ``wanted`` is true."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(wanted, self._seen)), PATIENCE), self._seen
            return next(found for found in self._seen if wanted(found))


@pytest.fixture
def timeouts():
    return PATIENT


@pytest.fixture
def kube(api, timeouts):
    kube = Kube(
        connect(url=api.url, token=ADMIN_TOKEN, timeouts=timeouts),
        "n1",
        clock=SystemClock(),
        pause=Pause(0.01, 0.05),
    )
    kube.changes = Changes()
    kube.pods.on_change(kube.changes)
    kube.start()
    assert kube.pods.wait(PATIENCE)
    yield kube
    kube.close()


def pod(name="train", node="n1", **meta):
    resources = {"limits": {CORE: "30"}}
    spec = {"containers": [{"name": "main", "image": "busybox", "resources": resources}]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}


def named(name, *, gone=False):
    return lambda found: found.pod.name == name and found.tombstone is gone


def names(kube):
    return sorted(key for key, found in kube.pods.local().items() if not found[0].tombstone)


def test_the_pods_of_this_node_are_known_and_no_others(api, kube):
    api.create(pod("here"))
    api.create(pod("there", node="n2"))
    api.create(pod("nowhere", node=None))
    api.create(pod("last"))
    kube.changes.wait(named("last"))
    assert names(kube) == ["default/here", "default/last"]


def test_a_bound_pod_is_seen_with_its_annotation_from_its_first_event_on(api, kube):
    api.create(pod(node=None))
    api.bind("train", "n1", annotations={"tencent.com/card": "3"})
    found = kube.changes.wait(named("train"))
    assert found.pod.annotations == {"tencent.com/card": "3"}
    assert found.pod.containers[0].wants(CORE) == 30


def test_pods_that_were_there_before_the_agent_are_known_after_the_first_list(api):
    api.create(pod("early"))
    connection = connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT)
    kube = Kube(connection, "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
    assert kube.pods.local() == {}
    kube.start()
    assert kube.pods.wait(PATIENCE)
    assert names(kube) == ["default/early"]
    kube.close()


def test_a_force_deleted_pod_stays_as_a_tombstone(api, kube):
    uid = api.create(pod())["metadata"]["uid"]
    kube.changes.wait(named("train"))
    api.delete("pods", "train", grace=0)
    assert kube.changes.wait(named("train", gone=True)).pod.uid == uid
    (found,) = kube.pods.local()["default/train"]
    assert (found.pod.uid, found.tombstone) == (uid, True)
    assert kube.pods.fetch("default", "train") is None


def test_a_gracefully_deleted_pod_is_alive_and_deleting_until_the_kubelet_confirms(api, kube):
    api.create(pod())
    api.delete("pods", "train")
    found = kube.changes.wait(lambda f: f.pod.deleting)
    assert not found.tombstone
    api.delete("pods", "train", grace=0)
    kube.changes.wait(named("train", gone=True))


def test_a_namesake_stands_before_the_tombstone_of_the_one_before(api, kube):
    uids = []
    for _ in range(3):
        uids.append(api.create(pod())["metadata"]["uid"])
        api.delete("pods", "train", grace=0)
    uids.append(api.create(pod())["metadata"]["uid"])
    kube.changes.wait(lambda f: f.pod.uid == uids[-1])
    found = kube.pods.local()["default/train"]
    assert [(f.pod.uid, f.tombstone) for f in found] == [(uids[3], False)] + [(u, True) for u in uids[2::-1]]


def test_a_fetch_shows_the_namesake_that_a_late_watch_has_not_shown_yet(api, kube):
    old = api.create(pod())["metadata"]["uid"]
    kube.changes.wait(named("train"))
    api.lag_watches(math.inf)
    api.delete("pods", "train", grace=0)
    new = api.create(pod(annotations={"card": "5"}))["metadata"]["uid"]
    assert kube.pods.fetch("default", "train").uid == new
    assert [f.pod.uid for f in kube.pods.local()["default/train"]] == [new, old]
    api.lag_watches(0)
    kube.changes.wait(lambda f: f.pod.uid == new)
    found = kube.pods.local()["default/train"]
    assert [(f.pod.uid, f.tombstone) for f in found] == [(new, False), (old, True)]


@pytest.mark.parametrize("node", ["n2", ""])
def test_a_namesake_on_another_node_or_on_none_is_no_pod_of_this_one(api, kube, node):
    api.create(pod(node=node))
    assert kube.pods.fetch("default", "train") is None
    assert kube.pods.local() == {}


@pytest.mark.parametrize("name", ["../../nodes/n1", "train/../x", "a b", "?watch=true", "%2e%2e", "\n"])
def test_a_hostile_name_points_at_no_other_object(api, kube, name):
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    assert kube.pods.fetch("default", name) is None


def test_an_expired_watch_lists_again_and_buries_who_was_deleted_unseen(api, kube):
    gone, stays = (api.create(pod(name))["metadata"]["uid"] for name in ("gone", "stays"))
    kube.changes.wait(named("stays"))
    api.stop()
    api.delete("pods", "gone", grace=0)
    api.create(pod("new"))
    api.compact()
    api.start()
    kube.changes.wait(named("new"))
    kube.changes.wait(named("gone", gone=True))
    assert names(kube) == ["default/new", "default/stays"]
    assert kube.pods.local()["default/gone"][0].pod.uid == gone
    assert kube.pods.local()["default/stays"][0].pod.uid == stays


def test_the_api_server_away_leaves_the_last_picture_and_says_why(api, kube):
    api.create(pod())
    kube.changes.wait(named("train"))
    assert kube.pods.error is None
    api.stop()
    until(lambda: kube.pods.error is not None)
    assert "no answer from the API server" in kube.pods.error
    assert names(kube) == ["default/train"]
    with pytest.raises(NodeUnready, match="cannot read the pod default/train: no answer"):
        kube.pods.fetch("default", "train")
    api.create(pod("while-away"))
    api.start()
    kube.changes.wait(named("while-away"))
    until(lambda: kube.pods.error is None)


def test_a_watch_cut_in_the_middle_of_a_line_loses_nothing_and_invents_nothing(api, kube):
    until(lambda: api.watching() == 2)
    for name in ("one", "two", "three"):
        api.drop_watches(mid_line=True)
        api.create(pod(name))
        kube.changes.wait(named(name))
    assert names(kube) == ["default/one", "default/three", "default/two"]


def test_dropped_watches_are_opened_again_from_where_they_were(api, kube):
    until(lambda: api.watching() == 2)
    lists = [a for a in api.verbs_used() if a.verb == "list"]
    for name in ("one", "two", "three"):
        api.drop_watches()
        api.create(pod(name))
        kube.changes.wait(named(name))
    assert len(lists) == 2
    assert names(kube) == ["default/one", "default/three", "default/two"]


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503, 504])
def test_refused_lists_and_watches_are_tried_again(api, kube, status):
    api.stop()
    api.create(pod())
    api.compact()
    for verb in ("list", "watch"):
        api.fail(2, status, match=f"{verb} pods")
    api.start()
    kube.changes.wait(named("train"))
    api.create(pod("later"))
    kube.changes.wait(named("later"))


def test_a_listener_that_fails_costs_nobody_else_the_news(api, kube):
    def broken(_):
        raise RuntimeError("a listener's own fault")

    later = Changes()
    kube.pods.on_change(broken)
    kube.pods.on_change(later)
    for name in ("one", "two"):
        api.create(pod(name))
        later.wait(named(name))


@pytest.mark.parametrize("timeouts", [Timeouts(connect=1.0, answer=1.0, watch=3600)])
def test_a_slow_server_blocks_neither_the_books_nor_the_end(api, kube):
    api.create(pod())
    found = kube.changes.wait(named("train"))
    api.delay(3600)
    api.drop_watches()
    began = time.monotonic()
    for number in range(100):
        kube.pods.annotate(found.pod, {"n": str(number)})
        kube.pods.event(found.pod, "Refused", "no room", warning=True)
        kube.pods.local()
    assert time.monotonic() - began < PATIENCE  # a second each, if they waited for an answer
    with pytest.raises(NodeUnready, match="no answer"):
        kube.pods.fetch("default", "train")
    kube.close()
    api.faults.clear()


@pytest.mark.parametrize("timeouts", [replace(PATIENT, watch=3600)])
def test_open_watches_end_at_once_when_the_adapter_is_closed(api, kube):
    until(lambda: api.watching() == 2)
    kube.close()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith(("watch-", "outbox"))])


def test_it_needs_no_more_rights_than_these(api, kube):
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.create(pod())
    found = kube.changes.wait(named("train"))
    kube.pods.fetch("default", "train")
    kube.pods.annotate(found.pod, {"a": "1"})
    for _ in range(2):
        kube.pods.event(found.pod, "Placed", "30 cores")
        until(lambda: not kube._outbox._entries)
    kube.node.publish({"inventory": "{}"}, {})
    kube.pods.evict(found.pod, "a test")
    until(lambda: not kube._outbox._entries)
    until(lambda: api.watching() == 2)
    assert {(a.verb, a.resource) for a in api.verbs_used()} == {
        *((verb, "pods") for verb in ("get", "list", "watch", "patch")),
        ("create", "pods/eviction"),
        ("create", "events"),
        ("patch", "events"),
        *((verb, "nodes") for verb in ("list", "watch", "patch")),
    }
