"""What the kubelet does between our calls: rejections, foreign plugins, its limiter, its own list, its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.domain.contract import (
    CORE,
    CORE_SOCKET,
    EVENT_OTHER_PLUGIN,
    LIBRARY_DIR,
    LIMITS_PATH,
    MEMORY,
    MEMORY_SOCKET,
    PRELOAD_PATH,
    USAGE_PATH,
)
from tests.cluster import auditor, double_offers, foreign_plugin, product, sever
from tests.cluster.cluster import Cluster
from tests.cluster.listing import ask, command
from tests.cluster.parts import minor
from tests.cluster.pods import Pods, cards_of, container, pod

FULL = (800, 1256)
HERE = Path(__file__).resolve().parent


@pytest.fixture
def nics(cluster: Cluster) -> Iterator[str]:
    """A foreign resource of four devices, in the kubelet for the test's length."""
    cluster.run("foreign", foreign_plugin.command())
    cluster.wait(lambda: offered(cluster) == foreign_plugin.COUNT, 30, "the foreign plugin is not registered")
    yield foreign_plugin.RESOURCE
    cluster.kill("foreign")


@pytest.mark.case(11)
def test_a_plugin_without_options_is_refused_and_harms_nobody(cluster: Cluster, pods: Pods) -> None:
    """Case 11: the kubelet asks for the options within Register, and hands the failure back."""
    log = cluster.scratch / "faulty.log"
    cluster.run("faulty", foreign_plugin.command("faulty"))
    try:
        cluster.wait(lambda: foreign_plugin.REFUSED in log.read_text("utf-8"), 30, "it is not refused")
        assert "no options today" in log.read_text("utf-8")
        pods.run(pod("beside", container("c", 30, 10)))
        assert offered(cluster) == 0
        assert product.allocatable(cluster) == (800, 1256)
    finally:
        cluster.kill("faulty")
    auditor.settled(cluster)


def test_cards_of_another_plugin_are_closed_and_open_again_once_it_has_gone(
    cluster: Cluster, pods: Pods
) -> None:
    """The pod on such a card runs on; a new one goes elsewhere."""
    pods.run(pod("before", container("c", 30, 10)))
    [uuid] = cards_of(pods.get("before"), "c")
    double_offers.start(cluster, [uuid])
    try:
        cluster.wait(lambda: double_offers.closed_cards(cluster)[uuid], 30, "the card is not closed")
        [card] = [one for one in product.ask_json(cluster, "/graph")["cards"] if one["uuid"] == uuid]
        assert f"offers the card as {foreign_plugin.GPU_RESOURCE}" in card["reason"]
        assert (
            f'uuid="{uuid}"' in product.ask(cluster, "/metric").partition("vcuda_card_offered_elsewhere{")[2]
        )
        cluster.wait(
            lambda: any(EVENT_OTHER_PLUGIN in one for one in pods.events("n1")), 30, "the node has no Event"
        )
        pods.run(pod("meanwhile", container("c", 30, 10)))
        assert uuid not in cards_of(pods.get("meanwhile"), "c")
        assert pods.phase("before") == "Running"
    finally:
        double_offers.stop(cluster)
    cluster.wait(lambda: not double_offers.closed_cards(cluster)[uuid], 60, "the card does not open again")
    cluster.wait(lambda: product.agent_ready(cluster), 30, "the agent is not ready again")
    auditor.settled(cluster)


def offered(cluster: Cluster) -> int:
    """Foreign devices that the node has."""
    found = cluster.api.get("/api/v1/nodes/n1")["status"]["allocatable"]
    return int(found.get(foreign_plugin.RESOURCE, 0))


@pytest.mark.case(33)
def test_pods_rejected_between_two_of_our_calls_confuse_nobody(
    cluster: Cluster, pods: Pods, nics: str
) -> None:
    """Case 33: the foreign resource runs out between core and memory; the next pod looks exactly alike."""
    both = container("c", 20, 8)
    both["resources"]["limits"][nics] = "1"
    # Bound by hand: the scheduler would not send more than there are devices.
    names = pods.create(*(pod(f"nic-{i}", both, nodeName="n1") for i in range(10)))
    names += pods.create(*(pod(f"plain-{i}", container("c", 20, 8)) for i in range(10)))
    ended = ("Running", "Failed")
    cluster.wait(lambda: all(pods.phase(n) in ended for n in names), 90, "some pods neither run nor fail")
    phases = {n: pods.phase(n) for n in names}
    assert [phases[n] for n in names if n.startswith("plain")] == ["Running"] * 10
    assert list(phases.values()).count("Failed") == 10 - foreign_plugin.COUNT
    auditor.settled(cluster)


@pytest.mark.case(52, 53, 54)
def test_the_kubelet_lists_what_the_ledger_has(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("one", container("a", 30, 10), container("b", 20, 4)), pod("two", container("c", 100)))
    pods.create(pod("ended", container("c", 10, 4, args=("true",))))
    pods.wait_phase("ended", "Succeeded")
    auditor.settled(cluster)
    listed = {
        (p["name"], c): {r: len(ids) for r, ids in devices.items() if r in (CORE, MEMORY)}
        for p in ask(cluster, "list")
        for c, devices in p["containers"].items()
        if p["namespace"] == "default"
    }
    expected: dict[tuple[str, str], dict[str, int]] = {
        ("one", "a"): {CORE: 30, MEMORY: 10},
        ("one", "b"): {CORE: 20, MEMORY: 4},
        ("two", "c"): {CORE: 100},
    }
    if minor() < 34:  # then pods that have ended are listed too, and there is no Get
        assert listed == {**expected, ("ended", "c"): {}}
        return
    assert listed == expected
    assert set(ask(cluster, "get", "default", "two")["containers"]) == {"c"}
    assert "error" in ask(cluster, "get", "default", "nobody")


@pytest.mark.case(55)
def test_a_client_that_hogs_the_limiter_delays_but_confuses_nobody(cluster: Cluster, pods: Pods) -> None:
    """Case 55: one bucket for all clients of the socket."""
    cluster.run("hog", command("hog", "600"))
    try:
        pods.run(*(pod(f"p-{i}", container("c", 20, 4)) for i in range(16)), seconds=90)
    finally:
        cluster.kill("hog")
    auditor.settled(cluster)


@pytest.mark.case(56)
def test_the_kubelet_counts_our_registrations_and_allocations(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("one", container("c", 30, 10)))
    text = str(cluster.api.get("/api/v1/nodes/n1/proxy/metrics", text=True))
    for name in ("registration_total", "alloc_duration_seconds_count"):
        lines = [x for x in text.splitlines() if x.startswith(f"kubelet_device_plugin_{name}")]
        counted = {r: float(x.split()[-1]) for x in lines for r in (CORE, MEMORY) if f'"{r}"' in x}
        assert set(counted) == {CORE, MEMORY}, lines
        assert min(counted.values()) >= 1


@pytest.mark.case(7)
@pytest.mark.parametrize("socket", [CORE_SOCKET, MEMORY_SOCKET])
def test_a_stream_that_is_cut_is_registered_again(cluster: Cluster, pods: Pods, socket: str) -> None:
    """The kubelet's socket stays, and the kubelet itself never dials again."""
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(cluster)
    before, agent = auditor.ledger_of(cluster), product.agent_pod(cluster)
    assert agent is not None
    said, kubelet = len(product.offers(cluster)), cluster.pid("kubelet")
    assert sum(sever.cut(pid, socket, kubelet) for pid in product.processes_of(agent)) >= 1
    # The node's status may show the devices all the while: the kubelet looks every 10 s.
    cluster.wait(lambda: len(product.offers(cluster)) >= said + 2, 10, "not offered again")
    cluster.wait(lambda: product.allocatable(cluster) == FULL, 20, "not offered again")
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)
    assert auditor.ledger_of(cluster).items() >= before.items()


@pytest.mark.case(24)
def test_the_second_resource_follows_the_first_ones_card_in_both_orders(cluster: Cluster, pods: Pods) -> None:
    """The kubelet asks in a random order, for cores first in three of four; the books tell if one strayed."""
    orders: set[str] = set()
    for _ in range(5):
        pods.run(*(pod(f"pair-{i}", container("c", 40, 30)) for i in range(12)), seconds=90)
        auditor.settled(cluster)
        orders |= set(product.first_asked(cluster).values())
        if orders == {CORE, MEMORY}:
            return
        pods.clear()
    pytest.fail(f"in 60 pods always in the same order: {orders}")


@pytest.mark.case(25)
def test_a_card_that_was_bound_and_is_full_yields_to_another(cluster: Cluster, pods: Pods) -> None:
    """A Binding that our scheduler would not have made; the agent corrects the annotation."""
    [full] = pods.run(pod("full", container("c", 90, 100)))
    [card] = cards_of(full, "c")
    pods.create(pod("stray", container("c", 30, 20), schedulerName="by-hand"))
    pods.bind("stray", {"c": [(card, 30, 20 << 28)]})
    pods.wait_running("stray")
    auditor.settled(cluster)
    [other] = cards_of(pods.get("stray"), "c")
    assert other != card


@pytest.mark.case(27)
def test_the_answer_arrives_in_the_container_as_it_was_given(cluster: Cluster, pods: Pods) -> None:
    pods.run(
        pod("part", container("c", 30, 20)), pod("whole", container("c", 100)), pod("none", container("c"))
    )
    auditor.settled(cluster)
    held = {one.pod: auditor.process_of(one) for one in auditor.containers(cluster)}
    ours = {name: mounts(pid) for name, pid in held.items()}
    assert ours["part"] >= {LIMITS_PATH: "ro", USAGE_PATH: "rw", PRELOAD_PATH: "ro"}.items()
    assert {path for path, _ in ours["part"]} >= {
        f"{LIBRARY_DIR}/libvcuda.so",
        f"{LIBRARY_DIR}/libvcuda-ml.so",
    }
    assert not {path for path, _ in ours["whole"]} & {LIMITS_PATH, USAGE_PATH, PRELOAD_PATH}
    assert all(len(auditor.cards_shown(pid)) == 1 for pid in held.values())
    mounted = pods.execute("none", "cat", "/proc/1/mountinfo")
    assert not any(path in mounted for path in (LIMITS_PATH, PRELOAD_PATH, LIBRARY_DIR))


def mounts(pid: int) -> set[tuple[str, str]]:
    """Where something is mounted for the process, and whether to be written."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text("utf-8").splitlines()]
    return {(words[4], words[5].partition(",")[0]) for words in lines}


@pytest.mark.case(8)
def test_a_deleted_agents_successor_takes_over(cluster: Cluster, pods: Pods) -> None:
    """Case 8: the old plugin's streams end around the new one's registration."""
    pods.run(pod("kept", container("c", 30, 10)))
    old = product.agent_pod(cluster)
    assert old is not None
    cluster.api.delete(f"/api/v1/namespaces/{product.NAMESPACE}/pods/{old['metadata']['name']}")
    cluster.wait(lambda: (product.agent_pod(cluster) or old) != old, 30, "no successor")
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the successor is not ready")
    cluster.wait(lambda: product.allocatable(cluster)[0] == 800, 30, "not offered")
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)


def test_force_deleted_pods_leave_nothing_wrong(cluster: Cluster, pods: Pods) -> None:
    """Names are used again at once, by pods of other shapes, while their predecessors still end."""
    for round_ in range(4):
        names = pods.create(
            *(pod(f"again-{i}", container("c", 10 + 10 * round_, 4 + round_)) for i in range(6))
        )
        if round_ < 3:
            for name in names:
                cluster.api.delete(f"/api/v1/namespaces/default/pods/{name}", 0)
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)
