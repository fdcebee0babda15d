"""What operators are shown is what the books hold, for pods of every shape, as they come and go."""

from __future__ import annotations

from tests.cluster import auditor, views
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod, sidecar


def test_every_view_shows_what_the_ledger_holds(cluster: Cluster, pods: Pods) -> None:
    pods.run(
        pod("pair", container("a", 40, 32), container("b", 20, 8)),
        pod("staged", container("c", 30, 10), init=[container("i", 50, 20, args=("true",))]),
        pod("flanked", container("c", 30, 10), init=[sidecar("s", 10, 4)]),
        pod("elastic", container("c", 20, 10), annotations={"tencent.com/vcuda-core-limit": "60"}),
        pod("whole", container("c", 200)),
    )
    auditor.settled(cluster)
    views.agreed(cluster)
    assert len(views.booked(cluster, views.running(cluster))) == 9, "eight containers, one with two cards"
    pods.delete("pair", "whole")
    views.agreed(cluster)
