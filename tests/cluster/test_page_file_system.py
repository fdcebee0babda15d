"""Each container's pages on a file system of their own, which the agent mounts through the real kubelet and runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpu_manager.domain.contract import USAGE_PATH
from tests.cluster import auditor, product, views
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.test_resize import resize

PAGES = "/run/gpu-manager"
GAUGE = "vcuda_pages_on_node_file_system"


@pytest.fixture(scope="module")
def mounting(bare: Cluster, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with agents that may mount, as on nodes with cards."""
    product.install(bare, admission=True, **{"agent.privileged": "true"})
    yield bare
    product.install(bare, admission=True)


def mounted(cluster: Cluster) -> set[str]:
    """File systems below the pages' directory, as the node has them; those of pods that ended stay for a while."""
    lines = cluster.inside("cat", "/proc/mounts").stdout.splitlines()
    return {line.split()[1] for line in lines if line.split()[1].startswith(f"{PAGES}/")}


@dataclass(frozen=True, slots=True)
class Size:
    """KiB and inodes of the file system that holds a container's usage page, by its own ``df``."""

    kib: int
    inodes: int


def size(pods: Pods, name: str) -> Size:
    def of(flag: str) -> int:
        return int(pods.execute(name, "busybox", "df", flag, USAGE_PATH).splitlines()[-1].split()[1])

    return Size(of("-k"), of("-i"))


def test_a_new_container_sees_its_pages_on_a_file_system_of_its_own(mounting: Cluster, pods: Pods) -> None:
    before = mounted(mounting)
    pods.run(pod("one", container("a", 30, 10), container("b", 20, 10)), pod("whole", container("c", 100)))
    auditor.settled(mounting)
    assert size(pods, "one") == Size(512, 32)
    assert len(mounted(mounting) - before) == 2
    assert views.total(mounting, GAUGE) == 0


def test_a_container_that_fills_its_own_hinders_nobody(mounting: Cluster, pods: Pods) -> None:
    pods.run(pod("greedy", container("c", 30, 10)))
    free = "df -k /run | tail -1 | awk '{print $4}'"
    before = int(mounting.inside("sh", "-c", free).stdout)
    fill = f"busybox dd if=/dev/zero of={USAGE_PATH} bs=1024 seek=320 count=4096 conv=notrunc 2>&1; true"
    assert "No space left on device" in pods.execute("greedy", "sh", "-c", fill)
    assert before - int(mounting.inside("sh", "-c", free).stdout) < 1024
    pods.run(pod("next", container("c", 30, 10)))
    auditor.settled(mounting)


@pytest.mark.parametrize("end", ["killed", "replaced"])
def test_the_agents_end_keeps_pages_and_limits(mounting: Cluster, pods: Pods, end: str) -> None:
    before = mounted(mounting)
    pods.run(pod("kept", container("c", 30, 10), restartPolicy="Always"))
    auditor.settled(mounting)
    [held], [own] = auditor.containers(mounting), mounted(mounting) - before
    page = auditor.page_file(auditor.process_of(held))
    if end == "killed":
        product.kill(mounting, product.AGENT)
        mounting.wait(lambda: not product.agent_ready(mounting), 20, "the agent's end is not noticed")
    else:
        mounting.kubectl("-n", product.NAMESPACE, "rollout", "restart", "daemonset/gpu-manager-daemonset")
        mounting.wait(lambda: product.newest(mounting), 90, "no other agent")
    mounting.wait(lambda: product.agent_ready(mounting), 90, "the agent does not come back")
    assert own in mounted(mounting)
    assert auditor.page_file(auditor.process_of(held)) == page
    resize(mounting, "kept --cores 40")
    assert auditor.size_in_force(held)[0] == 40
    before = mounted(mounting)
    pods.run(pod("next", container("c", 30, 10)))
    assert len(mounted(mounting) - before) == 1


def test_a_container_that_ended_leaves_no_mount(mounting: Cluster, pods: Pods) -> None:
    pods.run(pod("gone", container("c", 30, 10)))
    assert mounted(mounting)
    pods.clear()
    auditor.settled(mounting, 120, leaks=True)
    mounting.wait(lambda: not mounted(mounting), 60, "a file system stays mounted")


def test_pages_stay_when_agents_may_no_longer_mount(mounting: Cluster, pods: Pods) -> None:
    """And they go with their container."""
    before = mounted(mounting)
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(mounting)
    [held], [own] = auditor.containers(mounting), mounted(mounting) - before
    page = auditor.page_file(auditor.process_of(held))
    try:
        product.install(mounting, admission=True)
        assert auditor.page_file(auditor.process_of(held)) == page
        pods.run(pod("next", container("c", 30, 10)))
        auditor.settled(mounting)
        assert mounted(mounting) - before == {own}
    finally:
        product.install(mounting, admission=True, **{"agent.privileged": "true"})
