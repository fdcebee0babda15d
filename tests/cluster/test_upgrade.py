"""Another image under running containers: another agent, another admission, another libvcuda."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.domain.contract import LIBRARY_DIR
from tests.cluster import auditor, images, product
from tests.cluster.churn import Churn
from tests.cluster.cluster import Cluster
from tests.cluster.parts import PRODUCT
from tests.cluster.periods import chosen
from tests.cluster.pods import Pods, container, pod, run_client
from tests.cluster.test_kills import ended
from tests.cluster.test_limits import GIB, allocated
from tests.cluster.test_resize import offered, resize
from tests.cluster.watcher import Watcher

TAG = "next"


@pytest.fixture
def next_image(cluster: Cluster) -> Iterator[str]:
    """The product's image with another libvcuda, on the node; in the end the product is as it was.

    First the pods of earlier tests are given back: their libraries lie on the node as long.
    """
    cluster.wait(lambda: len(sets(cluster)) == 1, chosen().given_back_seconds, "an earlier library stays")
    archive = images.with_other_library(PRODUCT, cluster.scratch / "images", TAG)
    cluster.load(archive)
    yield TAG
    product.install(cluster, admission=True)


def library(one: auditor.Held) -> str:
    """The hash of the library that the container's process finds at its path."""
    path = f"/proc/{auditor.process_of(one)}/root{LIBRARY_DIR}/libvcuda.so"
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def sets(cluster: Cluster) -> set[str]:
    """Sets of libraries that lie on the node."""
    return {path.name for path in (cluster.scratch / "agent/lib").iterdir()}


def test_running_containers_keep_library_and_limits_over_an_upgrade_of_both(
    cluster: Cluster, pods: Pods, next_image: str
) -> None:
    """One that is started again too: the kubelet replays the answer of its admission, with the old library."""
    pods.run(*(pod(name, container("c", 30, 20), restartPolicy="Always") for name in ("kept", "again")))
    auditor.settled(cluster)
    held, before = by_pod(cluster), auditor.ledger_of(cluster)
    old, old_sets = library(held["kept"]), sets(cluster)
    pods.execute("kept", "sh", "-c", "vcuda-client alloc-to-limit --hold 300 >/tmp/held 2>&1 </dev/null &")
    cluster.wait(lambda: "held_mib 5120" in pods.execute("kept", "cat", "/tmp/held"), 20, "nothing held")

    product.install(cluster, admission=True, **{"image.tag": next_image})
    assert auditor.ledger_of(cluster) == before
    os.kill(auditor.process_of(held["again"]), signal.SIGTERM)
    cluster.wait(
        lambda: pods.get("again")["status"]["containerStatuses"][0]["restartCount"] == 1, 30, "no restart"
    )
    pods.wait_running("again")
    pods.run(pod("next", container("c", 30, 20)))
    auditor.settled(cluster)

    now = by_pod(cluster)
    assert now["kept"].container_id == held["kept"].container_id, "it was started anew"
    assert library(now["kept"]) == library(now["again"]) == old
    assert library(now["next"]) != old
    assert allocated(run_client(pods, "kept", "alloc-to-limit")) == 0, "its limit counts what it holds"
    for name in ("again", "next"):
        assert allocated(run_client(pods, name, "alloc-to-limit")) == 5 * GIB

    assert old_sets < sets(cluster), "the old library goes only with its last container"
    pods.delete("kept", "again")
    given_back = chosen().given_back_seconds
    cluster.wait(lambda: not old_sets & sets(cluster), given_back, "the old library stays")
    assert allocated(run_client(pods, "next", "alloc-to-limit")) == 5 * GIB


def test_resized_pods_keep_their_size_over_an_upgrade_and_back_under_load(
    cluster: Cluster, pods: Pods, next_image: str
) -> None:
    """The books are compared each second; no pod that comes meanwhile fails, and the growth stays off the offer."""
    pods.run(*(pod(name, container("c", 30, 20)) for name in ("more", "less")))
    for words in ("more --cores 50 --memory 8Gi", "less --cores 25 --memory 4Gi"):
        resize(cluster, words)
    auditor.settled(cluster)
    before = auditor.ledger_of(cluster)
    with Watcher(cluster) as watcher:
        with Churn(cluster, pods) as churn:
            for tag in ({"image.tag": next_image}, {}):
                churn.more(4)
                product.install(cluster, admission=True, **tag)
                churn.more(4, 90)
        failed = churn.failed + [why for name in churn.alive if (why := ended(pods, name))]
    assert watcher.looks.found == []
    assert watcher.looks.containers > 0
    assert failed == []
    auditor.settled(cluster)
    after = auditor.ledger_of(cluster)
    assert {key: after[key] for key in before} == before
    offered(cluster, 20 - 5, 12 - 4)
    assert "30 cores, 5 GiB" in resize(cluster, "more --reset")


def by_pod(cluster: Cluster) -> dict[str, auditor.Held]:
    """Containers by their pods' names."""
    return {one.pod: one for one in auditor.containers(cluster)}
