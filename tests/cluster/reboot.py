"""A node that reboots, as far as a machine that goes on running can."""

from __future__ import annotations

from typing import Final

from tests.cluster import auditor, layout, processes, product
from tests.cluster.cluster import Cluster


def reboot(cluster: Cluster) -> None:
    """Runtime, kubelet and agent stop, every container is killed, /run is wiped, all start.

    Returns once node, agent and admission are back.
    """
    before = product.containers(cluster)
    try:
        halt(cluster)
    finally:
        cluster.start("containerd")
        cluster.start("kubelet")
    cluster.wait(cluster.node_ready, 90, "the node is not ready")
    cluster.wait(lambda: not before & product.containers(cluster), 90, "what ran before is still said to run")
    cluster.wait(lambda: product.agent_ready(cluster), 120, "the agent does not come back")
    cluster.wait(lambda: product.admission_ready(cluster), 120, "admission does not come back")


def halt(cluster: Cluster) -> None:
    """Runtime and kubelet stop, every container is killed, /run is wiped."""
    cluster.kill("kubelet")
    cluster.kill("containerd")
    for path in auditor.hierarchy().glob(f"{layout.CGROUP}/**/cgroup.procs"):
        for pid in processes.members(path):
            processes.end(pid)
    cluster.inside("sh", "-c", WIPE, check=True)


# What outlives its container is the runtime's shim; a reboot ends it too. Then what is mounted below /run, all files
# there, and control groups, of which a kubelet that starts asks the runtime one by one.
WIPE: Final = """
for p in /proc/[0-9]*; do
  case "$(cat $p/comm 2>/dev/null)" in containerd-shim*) kill -9 ${p#/proc/};; esac
done
awk '$2 ~ "^/run/" {print $2}' /proc/mounts | sort -r | while read m; do umount -l "$m"; done
rm -rf /run/*
mkdir -p /run/netns /run/lock
for d in /sys/fs/cgroup/vcuda-cluster/kubepods /sys/fs/cgroup/*/vcuda-cluster/kubepods; do
  test ! -d "$d" || find "$d" -depth -type d -exec rmdir {} ";" || true
done
"""
