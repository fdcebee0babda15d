"""Limits hold inside the container: libvcuda on the stand-in driver, in real namespaces."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.cluster import auditor
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod, run_client

GIB = 1024  # MiB


def test_memory_ends_at_the_share_to_the_byte(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("small", container("c", 30, 20)))
    for way in ("alloc", "async", "vmm"):
        said = run_client(pods, "small", "alloc-to-limit", "--way", way)
        assert allocated(said) == 5 * GIB, said


def test_containers_on_one_card_have_their_own_limits(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("pair", container("a", 40, 32), container("b", 20, 8)))
    auditor.settled(cluster)
    assert allocated(run_client(pods, "pair", "alloc-to-limit", container="a")) == 8 * GIB
    assert allocated(run_client(pods, "pair", "alloc-to-limit", container="b")) == 2 * GIB


def test_the_container_sees_its_share_as_the_card(cluster: Cluster, pods: Pods) -> None:
    """What nvidia-smi would read: one card, of 5 GiB, with the share's UUID."""
    pods.run(pod("seen", container("c", 30, 20)))
    said = run_client(pods, "seen", "info")
    assert ", 1 card\n" in said, said
    assert "5120MiB" in said, said
    assert "40960MiB" not in said, said


def test_a_whole_card_is_shown_whole(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("whole", container("c", 200)))
    said = run_client(pods, "whole", "info")
    assert "2 cards" in said, said
    assert "40960MiB" in said, said


def test_cores_are_held_to_the_share(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("busy", container("c", 30, 20)))
    said = run_client(pods, "busy", "spin", "--us", "2000", "--seconds", "6")
    [share] = re.findall(r" share (\S+)", said)
    assert 0.24 <= float(share) <= 0.32, said  # two cores do all of a cluster's work beside it


@pytest.mark.case(41, 44)
def test_a_restarted_container_keeps_its_card_and_begins_anew(cluster: Cluster, pods: Pods) -> None:
    """Cases 41 and 44: PreStartContainer at each start, ids and card as they were."""
    pods.run(pod("again", container("c", 30, 20), restartPolicy="Always"))
    auditor.settled(cluster)
    before = auditor.ledger_of(cluster)
    held = next(iter(auditor.containers(cluster)))
    os.kill(auditor.process_of(held), signal.SIGTERM)
    cluster.wait(
        lambda: pods.get("again")["status"]["containerStatuses"][0]["restartCount"] == 1, 30, "no restart"
    )
    pods.wait_running("again")
    auditor.settled(cluster)
    assert auditor.ledger_of(cluster) == before
    assert next(iter(auditor.containers(cluster))).container_id != held.container_id
    assert allocated(run_client(pods, "again", "alloc-to-limit")) == 5 * GIB


def test_a_killed_tenant_gives_its_memory_back(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("killed", container("c", 30, 20)))
    hold = "vcuda-client alloc-to-limit --hold 60 >/tmp/held 2>&1 </dev/null & echo $! > /tmp/pid"
    pods.execute("killed", "sh", "-c", hold)  # it would wait for a descriptor of its own left open
    cluster.wait(lambda: "held_mib" in pods.execute("killed", "cat", "/tmp/held"), 20, "nothing held")
    assert allocated(run_client(pods, "killed", "alloc-to-limit")) == 0
    pods.execute("killed", "sh", "-c", "kill -9 $(cat /tmp/pid)")
    cluster.wait(
        lambda: allocated(run_client(pods, "killed", "alloc-to-limit")) == 5 * GIB, 20, "memory is not back"
    )


def allocated(said: str) -> int:
    """MiB that the client had when it was refused; the card's contexts count too."""
    [found] = re.findall(r"held_mib (\d+) error 2", said)
    return int(found)
