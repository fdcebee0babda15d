"""Kueue, installed by its own chart: what it holds back, and what it lets through to our scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from tests.cluster import auditor
from tests.cluster.cluster import Cluster
from tests.cluster.controllers.programs import KUEUE
from tests.cluster.pods import Pods, container, pod
from tests.cluster.test_held import counted, held, told
from tests.cluster.workloads import Workload

SPACE: Final = "kueue-system"
API: Final = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
GATE: Final = "kueue.x-k8s.io/admission"
GROUP: Final = "kueue.x-k8s.io/pod-group-name"
TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
CORES: Final = 200  # of the queue
UNITS: Final = 80
LABEL: Final = {QUEUE: "cards"}
DONE: Final = ("/bin/sh", "-c", "sleep 1")
TOLD: Final = ("/bin/sh", "-c", "until [ -e /tmp/done ]; do sleep 1; done")  # it ends once it is told


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> Iterator[Cluster]:
    """Kueue, and one queue for 200 cores and 20 GiB; nothing of it afterwards."""
    KUEUE.load(cluster)
    image = "controllerManager.manager.image"
    repository, _, tag = KUEUE.image.partition(":")
    values = {
        f"{image}.repository": repository,
        f"{image}.tag": tag,
        f"{image}.pullPolicy": "Never",
        "controllerManager.manager.resources.requests.cpu": "50m",
    }
    pairs = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    chart = str(KUEUE.source / "charts/kueue")
    cluster.helm("upgrade", "--install", "kueue", chart, "-n", SPACE, "--create-namespace", *pairs)
    try:
        for path, obj in OBJECTS.items():
            cluster.wait(lambda path=path, obj=obj: cluster.api.post(path, obj), 300, f"no {obj['kind']}")
        yield cluster
    finally:
        for path, obj in reversed(OBJECTS.items()):
            cluster.api.delete(f"{path}/{obj['metadata']['name']}")
        cluster.helm("uninstall", "kueue", "-n", SPACE, "--wait")


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


OBJECTS: Final = {
    f"{API}/resourceflavors": _object("ResourceFlavor", "cards", {}),
    f"{API}/clusterqueues": _object(
        "ClusterQueue",
        "cards",
        {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": [CORE, MEMORY],
                    "flavors": [
                        {
                            "name": "cards",
                            "resources": [
                                {"name": CORE, "nominalQuota": CORES},
                                {"name": MEMORY, "nominalQuota": UNITS},
                            ],
                        }
                    ],
                }
            ],
        },
    ),
    f"{API}/namespaces/default/localqueues": _object("LocalQueue", "cards", {"clusterQueue": "cards"}),
}


def used(cluster: Cluster) -> dict[str, int]:
    """What the queue's admitted workloads use, by its own count."""
    [flavour] = cluster.api.get(f"{API}/clusterqueues/cards")["status"]["flavorsUsage"]
    return {one["name"]: int(one["total"]) for one in flavour["resources"]}


def grouped(name: str, cores: int = 80) -> dict[str, Any]:
    """A pod of a group of two."""
    made = pod(name, container("c", cores, 20))
    made["metadata"]["labels"] = {**LABEL, GROUP: "pair"}
    made["metadata"]["annotations"] = {TOTAL: "2"}
    return made


def test_a_job_starts_within_the_queue_and_the_next_once_it_has_ended(queue: Cluster, pods: Pods) -> None:
    """A suspended Job has no pod: nobody of ours is asked before Kueue has admitted it."""
    shape = container("c", 60, 20, args=TOLD)
    with Workload(
        queue, "Job", "first", shape, labels=LABEL, parallelism=3, completions=3, suspend=True
    ) as first:
        queue.wait(lambda: first.status().get("ready") == 3, 120, "the first Job does not run")
        assert used(queue) == {CORE: 180, MEMORY: 60}
        short = container("c", 60, 20, args=DONE)
        with Workload(queue, "Job", "second", short, labels=LABEL, suspend=True) as second:
            queue.wait(lambda: pending(queue) == 1, 60, "the second Job is not kept waiting")
            assert second.pods() == []
            auditor.settled(queue)
            for one in first.pods():
                pods.execute(one["metadata"]["name"], "touch", "/tmp/done")
            queue.wait(lambda: second.status().get("succeeded") == 1, 120, "the second Job does not run")
    queue.wait(lambda: used(queue) == {CORE: 0, MEMORY: 0}, 60, "the queue still counts what has ended")


def pending(cluster: Cluster) -> int:
    """Workloads that wait for the queue."""
    return int(cluster.api.get(f"{API}/clusterqueues/cards")["status"]["pendingWorkloads"])


def test_a_group_is_held_by_its_gate_until_all_of_it_is_there_and_fits(queue: Cluster, pods: Pods) -> None:
    pods.create(grouped("one"))
    queue.wait(lambda: held(queue, "one")[0] == "gate", 30, "it is not held by its gate")
    queue.wait(lambda: counted(queue, "gate") == 1, 30, "it is not counted")
    _, line = held(queue, "one")
    assert GATE in line
    assert "Kueue" in line
    assert told(pods, "one") == []
    pods.create(grouped("two"))
    for name in ("one", "two"):
        pods.wait_running(name)
    assert used(queue) == {CORE: 160, MEMORY: 40}
    auditor.settled(queue)


def test_what_the_queue_admits_and_no_card_has_room_for_is_told_by_us(queue: Cluster, pods: Pods) -> None:
    """Kueue counts sums: both fit into the queue, and on the cards there is no room for the second."""
    pods.run(*(pod(f"full-{i}", container("c", 60, 10)) for i in range(8)))
    waits = pod("waits", container("c", 50, 10))
    waits["metadata"]["labels"] = LABEL
    pods.create(waits)
    queue.wait(lambda: told(pods, "waits"), 60, "nobody is told why it waits")
    assert held(queue, "waits")[0] != "gate"
    pods.delete("full-0")
    pods.wait_running("waits")


def test_a_queue_that_covers_one_name_alone_is_named_as_the_cure(queue: Cluster, pods: Pods) -> None:
    """Kueue admits nothing that asks for a resource which the queue does not have."""
    path = f"{API}/clusterqueues/cards"
    [group] = OBJECTS[f"{API}/clusterqueues"]["spec"]["resourceGroups"]
    [flavour] = group["flavors"]
    cores = {
        **group,
        "coveredResources": [CORE],
        "flavors": [{**flavour, "resources": flavour["resources"][:1]}],
    }
    queue.api.patch(path, {"spec": {"resourceGroups": [cores]}})
    try:
        alone = pod("alone", container("c", 30, 10))
        alone["metadata"]["labels"] = LABEL
        pods.create(alone)
        queue.wait(lambda: held(queue, "alone")[0] == "gate", 30, "it is not held by its gate")
        assert f"{CORE} and {MEMORY}" in held(queue, "alone")[1]
    finally:
        queue.api.patch(path, {"spec": {"resourceGroups": [group]}})
    pods.wait_running("alone")
