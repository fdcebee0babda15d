"""What the adapter writes: to the right pod, once, in the end, and never in anybody's way."""

from __future__ import annotations

import pytest

from gpu_manager.adapters.kube.connection import Timeouts, connect
from gpu_manager.adapters.kube.kube import Kube, left_taints
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.contract import (
    CORDON,
    CORE,
    FRONT_LABEL,
    INVENTORY,
    STARTUP_TAINT,
    Inventory,
    encode_inventory,
)
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.topology import Topology
from sandbox.api import ADMIN_TOKEN
from tests.fakes.ports import FakeStore
from tests.fakes.waiting import PATIENCE, until

PATIENT = Timeouts(connect=PATIENCE, answer=PATIENCE, watch=30)


class SettableClock(SystemClock):
    """The machine's clock, moved forward by hand."""

    def __init__(self):
        self.ahead = 0.0

    def now(self):
        return super().now() + self.ahead

    def monotonic(self):
        return super().monotonic() + self.ahead


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def kube(api, clock):
    kube = Kube(
        connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT), "n1", clock=clock, pause=Pause(0.01, 0.05)
    )
    kube.start()
    assert kube.pods.wait(PATIENCE)
    assert kube.node.wait(PATIENCE)
    yield kube
    kube.close()


def make(api, name="train", **meta):
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "busybox"}]}
    return parse_pod(
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec})
    )


def annotations(api, name="train"):
    return api.get("pods", name)["metadata"].get("annotations", {})


def events(api, **wanted):
    fields = ",".join(f"{k}={v}" for k, v in wanted.items())
    return api.list("events", fields=fields)


def idle(kube):
    until(lambda: not kube._outbox._entries)


def test_annotations_are_merged_into_the_pod(api, kube):
    pod = make(api, annotations={"mine": "1"})
    kube.pods.annotate(pod, {"ours": "2"})
    until(lambda: annotations(api) == {"mine": "1", "ours": "2"})


def test_a_namesake_never_gets_its_predecessors_annotations(api, kube):
    pod = make(api)
    api.delete("pods", "train", grace=0)
    make(api)
    kube.pods.annotate(pod, {"ours": "2"})
    idle(kube)
    assert annotations(api) == {}


def test_the_last_value_of_each_annotation_wins_and_is_written_once(api, kube):
    pod = make(api)
    api.stop()
    for number in range(50):
        kube.pods.annotate(pod, {"n": str(number), f"k{number % 3}": "x"})
    before = int(api.get("pods", "train")["metadata"]["resourceVersion"])
    api.start()
    wanted = {"n": "49", "k0": "x", "k1": "x", "k2": "x"}
    until(lambda: annotations(api) == wanted)
    idle(kube)
    # The first may have been under way when the server stopped, so one write or two, never fifty.
    assert int(api.get("pods", "train")["metadata"]["resourceVersion"]) <= before + 2


@pytest.mark.parametrize("status", [429, 500, 503, 403])
def test_a_write_that_is_refused_for_now_is_tried_again(api, kube, status):
    pod = make(api)
    api.fail(3, status, match="patch pods")
    kube.pods.annotate(pod, {"a": "1"})
    until(lambda: annotations(api) == {"a": "1"})


def test_a_write_whose_answer_is_lost_is_repeated_without_harm(api, kube):
    pod = make(api)
    api.cut(1, match="patch pods", after=True)
    kube.pods.annotate(pod, {"a": "1"})
    idle(kube)
    assert annotations(api) == {"a": "1"}


def test_a_write_that_can_never_succeed_does_not_hold_up_the_others(api, kube):
    bad, good = make(api, "bad"), make(api, "good")
    kube.pods.annotate(bad, {"not a key": 5})  # type: ignore[dict-item] # the server answers 400
    kube.pods.annotate(good, {"a": "1"})
    until(lambda: annotations(api, "good") == {"a": "1"})
    idle(kube)


def test_what_a_node_publishes_counts_as_shown_once_the_server_shows_it(api, kube):
    node(api)
    kube.node.publish({"a": "1"}, {"zone": "b"})
    until(kube.node.shown)
    api.stop()
    kube.node.publish({"a": "2"}, {})
    assert not kube.node.shown()
    api.start()
    until(kube.node.shown)
    assert api.get("nodes", "n1")["metadata"]["annotations"]["a"] == "2"


def test_an_event_names_the_pod_the_reason_and_the_node(api, kube):
    pod = make(api)
    kube.pods.event(pod, "GpuRefused", "card 3 has 20 cores free, 30 asked", warning=True)
    (event,) = until(lambda: events(api, reason="GpuRefused"))
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "train",
        "namespace": "default",
        "uid": pod.uid,
    }
    assert (event["type"], event["count"]) == ("Warning", 1)
    assert event["message"] == "card 3 has 20 cores free, 30 asked"
    assert event["source"] == {"component": "gpu-manager", "host": "n1"}


def test_the_same_thing_said_again_counts_up_one_event(api, kube, clock):
    pod = make(api)
    for _ in range(5):
        kube.pods.event(pod, "GpuRefused", "no room")
        idle(kube)
    (event,) = events(api)
    assert event["count"] == 5
    clock.ahead += 3600
    kube.pods.event(pod, "GpuRefused", "no room")
    idle(kube)
    assert sorted(e["count"] for e in events(api)) == [1, 5]


def test_an_event_that_the_server_has_forgotten_is_told_anew(api, kube):
    pod = make(api)
    kube.pods.event(pod, "GpuRefused", "no room")
    idle(kube)
    api.delete("events", events(api)[0]["metadata"]["name"])
    kube.pods.event(pod, "GpuRefused", "no room")
    idle(kube)
    assert [e["count"] for e in events(api)] == [1]


def test_a_pod_that_talks_too_much_is_slowed_down_and_others_are_not(api, kube, clock):
    loud, calm = make(api, "loud"), make(api, "calm")
    for number in range(15):
        kube.pods.event(loud, "GpuRefused", f"reason {number}")
    kube.pods.event(calm, "GpuAllocated", "30 cores of card 1")
    until(lambda: events(api, **{"involvedObject.name": "calm"}))
    until(lambda: len(events(api, **{"involvedObject.name": "loud"})) == 10)
    clock.ahead += 31
    kube.pods.event(calm, "GpuAllocated", "30 cores of card 2")
    until(lambda: len(events(api, **{"involvedObject.name": "loud"})) == 11)
    for _ in range(50):  # said again while it must be silent: counted, not sent
        kube.pods.event(loud, "GpuRefused", "reason 14")
    assert len(events(api, **{"involvedObject.name": "loud"})) == 11


def test_hostile_names_and_long_messages_make_legal_events(api, kube):
    pod = make(api, "a" * 200 + "." + "b" * 52)
    kube.pods.event(pod, "R" * 300, "ä" * 2000 + "\n\x00")
    (event,) = until(lambda: events(api))
    assert len(event["message"].encode()) <= 1024
    assert len(event["reason"]) == 128
    assert len(event["metadata"]["name"]) <= 253


def test_an_eviction_waits_for_the_disruption_budget_and_then_happens(api, kube):
    pod = make(api, labels={"app": "web"})
    api.patch("pods", "train", {"status": {"phase": "Running"}}, subresource="status")
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
    api.create({**budget, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}})
    kube.pods.evict(pod, "its card is another")
    until(lambda: any(a.resource == "pods/eviction" for a in api.verbs_used()))
    assert "deletionTimestamp" not in api.get("pods", "train")["metadata"]
    api.delete("poddisruptionbudgets", "web")
    until(lambda: "deletionTimestamp" in api.get("pods", "train")["metadata"])


def test_a_namesake_is_not_evicted_in_its_predecessors_place(api, kube):
    pod = make(api)
    api.delete("pods", "train", grace=0)
    make(api)
    kube.pods.evict(pod, "its card is another")
    idle(kube)
    assert "deletionTimestamp" not in api.get("pods", "train")["metadata"]


def node(api, **meta):
    return api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", **meta}})


def test_the_inventory_waits_for_the_node_and_reaches_it(api, kube):
    kube.node.publish({"inventory": "1"}, {"model": "T4"})
    until(lambda: any((a.verb, a.resource) == ("patch", "nodes") for a in api.verbs_used()))
    node(api, annotations={"other": "x"})
    until(lambda: api.get("nodes", "n1")["metadata"].get("labels") == {"model": "T4"})
    assert api.get("nodes", "n1")["metadata"]["annotations"] == {"other": "x", "inventory": "1"}


def test_publishing_what_is_there_writes_nothing(api, kube):
    node(api, annotations={"inventory": "1", CORDON: "GPU-a"})
    until(kube.node.cordoned)
    kube.node.publish({"inventory": "1"}, {})
    idle(kube)
    assert not [a for a in api.verbs_used() if a.verb == "patch"]


def test_an_inventory_that_somebody_removed_is_put_back(api, kube, clock):
    node(api)
    kube.node.publish({"inventory": "1"}, {})
    until(lambda: api.get("nodes", "n1")["metadata"].get("annotations") == {"inventory": "1"})
    idle(kube)
    clock.ahead += 31
    api.patch("nodes", "n1", {"metadata": {"annotations": {"inventory": None}}})
    until(lambda: api.get("nodes", "n1")["metadata"].get("annotations") == {"inventory": "1"})


def test_cordoned_cards_follow_the_nodes_annotation(api, kube):
    assert kube.node.cordoned() == frozenset()
    node(api, annotations={CORDON: "GPU-a, GPU-b"})
    until(lambda: kube.node.cordoned() == {"GPU-a", "GPU-b"})
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: None}}})
    until(lambda: kube.node.cordoned() == frozenset())


def test_cards_stay_cordoned_when_the_node_object_is_made_anew(api, kube):
    """As by ``kubectl delete node`` and a restart of its kubelet."""
    node(api, annotations={CORDON: "GPU-a"})
    until(kube.node.cordoned)
    api.delete("nodes", "n1")
    node(api)
    until(lambda: api.get("nodes", "n1")["metadata"].get("annotations") == {CORDON: "GPU-a"})
    assert kube.node.cordoned() == {"GPU-a"}
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: None}}})
    until(lambda: not kube.node.cordoned())


@pytest.mark.parametrize("anew", [True, False])
def test_an_agent_knows_the_cordons_of_the_one_before_it(api, clock, anew):
    store = FakeStore()

    def agent():
        connection = connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT)
        kube = Kube(connection, "n1", clock=clock, pause=Pause(0.01, 0.05), cordons=store)
        kube.start()
        assert kube.node.wait(PATIENCE)
        return kube

    node(api, annotations={CORDON: "GPU-a"})
    first = agent()
    assert first.node.cordoned() == {"GPU-a"}
    first.close()
    if anew:
        api.delete("nodes", "n1")
        node(api)
    else:
        api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: None}}})
    second = agent()
    assert second.node.cordoned() == ({"GPU-a"} if anew else frozenset())
    second.close()


@pytest.mark.parametrize("state", [b"", b"[]", b"7", b'{"uid": 3, "cordoned": 4}', b"\xff", b"[" * 100_000])
def test_cordons_that_cannot_be_read_close_nothing(api, clock, state):
    connection = connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT)
    kube = Kube(connection, "n1", clock=clock, cordons=FakeStore(state))
    assert kube.node.cordoned() == frozenset()
    connection.close()


def test_cards_stay_cordoned_while_the_api_server_is_away(api, kube):
    node(api, annotations={CORDON: "GPU-a"})
    until(kube.node.cordoned)
    api.stop()
    until(lambda: kube.node.error)
    assert kube.node.cordoned() == {"GPU-a"}


def test_when_too_much_waits_events_go_first_and_annotations_stay(api, kube):
    pods = [make(api, f"p{number}") for number in range(40)]
    api.stop()
    for number in range(600):
        kube.pods.event(pods[0], "GpuRefused", f"reason {number}")
    for pod in pods:
        kube.pods.annotate(pod, {"a": "1"})
    assert kube.writes_dropped >= 100
    api.start()
    until(lambda: all(annotations(api, pod.name) == {"a": "1"} for pod in pods))


START = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "company.example/gpus", "effect": "NoSchedule", "value": "yes"}


def report(api, cores):
    api.patch("nodes", "n1", {"status": {"allocatable": {CORE: cores}}}, subresource="status")


def taints(api):
    return api.get("nodes", "n1")["spec"].get("taints")


@pytest.fixture
def joining(api, clock):
    """An agent's adapter beside a node that has just joined."""
    made = []

    def join(*, serving=True, cores="800", labels=None, startup_taint=True):
        inventory = encode_inventory(Inventory(1 << 28, (), Topology(()), serving=serving))
        meta = {"name": "n1", "annotations": {INVENTORY: inventory}, "labels": labels or {}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [OTHER, START]}}
        api.create(node)
        report(api, cores)
        connection = connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT)
        made.append(Kube(connection, "n1", clock=clock, pause=Pause(0.01, 0.05), startup_taint=startup_taint))
        made[0].start()
        assert made[0].node.wait(PATIENCE)
        return made[0]

    yield join
    for kube in made:
        kube.close()


def test_the_startup_taint_goes_once_the_kubelet_has_reported_the_devices(api, joining):
    kube = joining(cores="0")
    idle(kube)
    assert taints(api) == [OTHER, START]
    report(api, "800")
    until(lambda: taints(api) == [OTHER])


@pytest.mark.parametrize("cores", ["", "-1", "x", None, "0"])
def test_the_startup_taint_stays_while_no_device_is_reported(api, joining, cores):
    idle(joining(cores=cores))
    assert taints(api) == [OTHER, START]


def test_the_startup_taint_stays_while_the_agent_does_not_serve(api, joining):
    idle(joining(serving=False))
    assert taints(api) == [OTHER, START]


def test_a_node_that_gives_its_cards_by_claims_alone_reports_no_devices(api, joining):
    joining(cores="0", labels={FRONT_LABEL: "dra"})
    until(lambda: taints(api) == [OTHER])


def test_an_agent_that_was_not_told_to_leaves_the_taint(api, joining):
    idle(joining(startup_taint=False))
    assert taints(api) == [OTHER, START]


def test_a_taint_that_comes_while_the_startup_taint_goes_is_kept(api, joining):
    kube = joining(cores="0")
    late = {"key": "late", "effect": "NoExecute"}
    api.fail(1, 503, match="patch nodes")  # the write is on its way while the other taint comes
    report(api, "800")
    api.patch("nodes", "n1", {"spec": {"taints": [late, OTHER, START]}})
    until(lambda: taints(api) == [late, OTHER])
    idle(kube)


@pytest.mark.parametrize("odd", [None, "x", 5, {}, [None, "x", {"key": 5}]])
def test_odd_taints_are_nobodys_to_remove(odd):
    assert left_taints({"spec": {"taints": odd}, "status": odd, "metadata": {"annotations": odd}}) is None
