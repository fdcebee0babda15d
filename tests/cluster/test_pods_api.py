"""The kubelet's Pods API: association by it alone while no API server answers, and without it once it has gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_manager.domain.contract import PODS_API_SOCKET
from tests.cluster import auditor, layout, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import minor
from tests.cluster.pods import Pods, container, pod

pytestmark = pytest.mark.skipif(
    minor() < 37, reason="the Pods API is on from Kubernetes 1.37 on: KUBERNETES=1.37"
)
SHAPES = ((30, 10), (30, 20), (60, 10), (10, 4), (30, 10), (20, 40), (30, 20), (10, 4))  # cores, units


@pytest.fixture(scope="module")
def without_port(cluster: Cluster) -> Iterator[Cluster]:
    """The agent is told no port of the kubelet: its Pods API and the API server's watch are left."""
    product.install(cluster, admission=True, **{"agent.kubeletPodsURL": ""})
    yield cluster
    product.install(cluster, admission=True)


@contextmanager
def no_api_server(cluster: Cluster) -> Iterator[None]:
    """The agent's pod has no way to the API server until the block ends."""
    agent = product.agent_pod(cluster)
    assert agent is not None
    enter = ("nsenter", f"--target={product.processes_of(agent)[0]}", "--net", "ip", "route")
    ways = (layout.ADDRESS, layout.SERVICE)
    for way in ways:
        subprocess.run([*enter, "add", "blackhole", way], check=True)
    try:
        yield
    finally:
        for way in ways:
            subprocess.run([*enter, "del", "blackhole", way], check=True)


def shuffled(pods: Pods, name: str) -> list[str]:
    """Pods of many shapes, bound by the scheduler in its own order; some have two containers."""
    made = []
    for at, (cores, units) in enumerate(SHAPES):
        app, beside = container("a", cores, units), container("b", units, cores)
        made += pods.create(pod(f"{name}-{at}", app, beside) if at % 3 == 0 else pod(f"{name}-{at}", app))
    return made


def test_association_holds_by_the_pods_api_alone(without_port: Cluster, pods: Pods) -> None:
    pods.run(pod("before", container("a", 10, 4)))
    auditor.settled(without_port)
    with no_api_server(without_port):
        for name in shuffled(pods, "alone"):
            pods.wait_running(name)
        auditor.settled(without_port)
        assert not list(auditor.overcommitted(without_port, auditor.Books.of(without_port)))
        assert not [line for line in product.told(without_port) if line["event"] == "pods_api_away"]
    without_port.wait(lambda: product.agent_ready(without_port), 60, "the agent does not come back")
    auditor.settled(without_port)


def test_without_the_pods_api_association_holds_by_the_api_server(without_port: Cluster, pods: Pods) -> None:
    """Its socket goes away under a running agent, as with a kubelet that is set back to an earlier version."""
    socket = Path(without_port.root(f"/var/lib/kubelet/{PODS_API_SOCKET}"))
    aside = socket.with_name("aside")
    socket.rename(aside)
    try:
        for name in shuffled(pods, "gone"):
            pods.wait_running(name)
        auditor.settled(without_port)
    finally:
        aside.rename(socket)
    for name in shuffled(pods, "back")[:4]:
        pods.wait_running(name)
    auditor.settled(without_port)


def test_a_restarted_kubelet_is_asked_by_its_new_socket(without_port: Cluster, pods: Pods) -> None:
    pods.run(pod("kept", container("a", 30, 10)))
    without_port.restart("kubelet")
    without_port.wait(lambda: product.agent_ready(without_port), 60, "the agent does not come back")
    pods.run(pod("first", container("a", 10, 4)))  # by now the scheduler knows that the agent serves again
    with no_api_server(without_port):
        for name in shuffled(pods, "after"):
            pods.wait_running(name)
        auditor.settled(without_port)
