"""Gangs: the in-tree ones of Kubernetes 1.36, those of the coscheduling plugin, and pods that bear Kueue's labels
alone, which their scheduler binds one by one. The six cases that HAMi's users reported, and twenty gangs that come at
once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import pytest

from tests.cluster import auditor, layout, nodes, product
from tests.cluster.cluster import Cluster
from tests.cluster.controllers.programs import COSCHEDULING
from tests.cluster.parts import minor
from tests.cluster.pods import PATH, Pods, container, pod
from tests.cluster.test_held import held

GATES: Final = "--feature-gates=GenericWorkload=true,GangScheduling=true"
IN_TREE: Final = "scheduling.k8s.io/v1alpha2"
GATED: Final = {  # the controller manager lets a PodGroup go that has no pod
    "kube-apiserver": [GATES, f"--runtime-config={IN_TREE}=true"],
    "kube-controller-manager": [GATES],
}
PLUGIN: Final = "scheduling.x-k8s.io/v1alpha1"  # coscheduling's
_PROFILE: Final = "scheduler.sidecar.profile"
_REPOSITORY, _, _TAG = COSCHEDULING.image.partition(":")
COSCHEDULED: Final = {  # docs/beside/coscheduling.md
    "scheduler.sidecar.repository": _REPOSITORY,
    "scheduler.sidecar.tag": _TAG,
    f"{_PROFILE}.plugins.multiPoint.enabled[0].name": "Coscheduling",
    f"{_PROFILE}.plugins.queueSort.enabled[0].name": "Coscheduling",
    f"{_PROFILE}.plugins.queueSort.disabled[0].name": "*",
    f"{_PROFILE}.pluginConfig[0].name": "Coscheduling",
    f"{_PROFILE}.pluginConfig[0].args.permitWaitingTimeSeconds": "60",
    "admission.gangs.podGroups[0]": PLUGIN,
}
# System → what its PodGroup says of its size.
SPECS: Final[Mapping[str, Callable[[int], dict[str, Any]]]] = {
    IN_TREE: lambda size: {"schedulingPolicy": {"gang": {"minCount": size}}},
    PLUGIN: lambda size: {"minMember": size},
}
KUEUE: Final = "kueue.x-k8s.io"
ENDS: Final = ("/bin/sh", "-c", "sleep 2")
SIZES: Final = range(2, 9)
PARTIAL_SECONDS: Final = 30.0  # bench.gangs
GANG: Final = "cluster-test/gang"
WAITS_SECONDS: Final = 15.0  # for what must not happen


@contextmanager
def in_tree(cluster: Cluster) -> Iterator[None]:
    """API server, controller manager and the scheduler beside admission with the gates of 1.36."""
    argv = layout.commands(cluster.parts, cluster.pki, cluster.scratch, "")
    for part, more in GATED.items():
        _serve(cluster, part, [*argv[part], *more])
    try:
        gates = {"scheduler.sidecar.extraArgs[0]": GATES.replace(",", "\\,")}
        product.install(cluster, admission=True, **gates, **{"admission.gangs.podGroups[0]": IN_TREE})
        yield
    finally:
        product.install(cluster, admission=True)
        for part in GATED:
            _serve(cluster, part, list(argv[part]))


@contextmanager
def coscheduling(cluster: Cluster) -> Iterator[None]:
    """Its CustomResourceDefinition, and its scheduler beside admission."""
    COSCHEDULING.load(cluster)
    definition = str(COSCHEDULING.source / "manifests/coscheduling/crd.yaml")
    cluster.kubectl("apply", "-f", definition)
    try:
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", definition)
        product.install(cluster, admission=True, **COSCHEDULED)
        yield
    finally:
        product.install(cluster, admission=True)
        cluster.kubectl("delete", "-f", definition)


def _serve(cluster: Cluster, part: str, argv: list[str]) -> None:
    cluster.kill(part)
    cluster.run(part, argv)
    cluster.wait(lambda: cluster.api.get("/readyz", text=True) == "ok", 90, "the API server is not ready")


SYSTEMS: Final = {IN_TREE: in_tree, PLUGIN: coscheduling, KUEUE: lambda _: nullcontext()}


@pytest.fixture(scope="module", params=SYSTEMS)
def system(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """What marks the gangs, and reads the marks; nothing of it afterwards."""
    if request.param == IN_TREE and minor() != 36:
        pytest.skip(f"{IN_TREE} is of Kubernetes 1.36 alone")
    with SYSTEMS[request.param](cluster):
        yield request.param


class Gangs:
    """Makes members, and PodGroups where the system has them; all gone afterwards."""

    def __init__(self, cluster: Cluster, pods: Pods, system: str) -> None:
        self._cluster, self._pods, self._system = cluster, pods, system
        self._groups: list[str] = []

    def bring(self, name: str, size: int, *members: dict[str, Any]) -> list[str]:
        """Members of a gang of ``size``; the names of these."""
        if self._system in SPECS and name not in self._groups:
            self._groups.append(name)
            group = {"apiVersion": self._system, "kind": "PodGroup", "metadata": {"name": name}}
            self._cluster.api.post(self._path, {**group, "spec": SPECS[self._system](size)})
        for one in members:
            labels = one["metadata"].setdefault("labels", {})
            labels[GANG] = name
            if self._system == IN_TREE:
                one["spec"]["schedulingGroup"] = {"podGroupName": name}
            elif self._system == PLUGIN:
                labels["scheduling.x-k8s.io/pod-group"] = name
            else:
                labels[f"{KUEUE}/pod-group-name"] = name
                one["metadata"]["annotations"][f"{KUEUE}/pod-group-total-count"] = str(size)
        return self._pods.create(*members)

    @property
    def _path(self) -> str:
        return f"/apis/{self._system}/namespaces/default/podgroups"

    def bound(self) -> dict[str, list[bool]]:
        """Gang → whether each of its members that are there has a node."""
        found: dict[str, list[bool]] = {}
        for one in self._cluster.api.get(PATH, labelSelector=GANG)["items"]:
            found.setdefault(one["metadata"]["labels"][GANG], []).append("nodeName" in one["spec"])
        return found

    def waits(self, name: str) -> None:
        """None of it is bound for a while."""
        ends = time.monotonic() + WAITS_SECONDS
        while time.monotonic() < ends:
            assert not any(self.bound()[name])
            time.sleep(0.5)

    def complete(self, name: str, size: int, seconds: float = 90) -> None:
        """Wait until each of so many members has a node."""
        self._cluster.wait(
            lambda: self.bound().get(name) == [True] * size, seconds, f"{name} does not run whole"
        )

    def clear(self) -> None:
        """The PodGroups go."""
        for name in self._groups:
            self._cluster.api.delete(f"{self._path}/{name}")


@pytest.fixture
def made(cluster: Cluster, pods: Pods, system: str) -> Iterator[Gangs]:
    """Gangs, and a second node, whose pods are bound and never run."""
    nodes.add(cluster, "n2")
    found = Gangs(cluster, pods, system)
    yield found
    nodes.remove(cluster, "n2")
    pods.clear()
    found.clear()


def members(count: int, cores: int = 100, name: str = "a", **more: Any) -> list[dict[str, Any]]:
    """Pods of one shape."""
    return [pod(f"{name}-{at}", container("c", cores), **more) for at in range(count)]


def here(*made: dict[str, Any]) -> list[dict[str, Any]]:
    """The same on the node that has a kubelet."""
    for one in made:
        one["spec"]["nodeSelector"] = {"kubernetes.io/hostname": layout.NODE}
    return list(made)


def test_two_members_that_fill_a_node_each_run(made: Gangs) -> None:
    made.bring("a", 2, *members(2, 800))
    made.complete("a", 2)


def test_two_members_on_one_node_run(cluster: Cluster, pods: Pods, made: Gangs) -> None:
    """HAMi's lock of the node let one bind, and the other waited five minutes."""
    names = made.bring("a", 2, *here(*members(2)))
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)


def test_two_of_four_members_wait_for_the_others(cluster: Cluster, made: Gangs) -> None:
    made.bring("a", 4, *members(2))
    made.waits("a")
    cluster.wait(lambda: held(cluster, "a-0")[0] == "gang", 30, "nobody says that its gang holds it")


def test_a_member_that_comes_late_completes_its_gang(made: Gangs) -> None:
    made.bring("a", 4, *members(3))
    made.waits("a")
    made.bring("a", 4, pod("a-late", container("c", 100)))
    made.complete("a", 4)


def test_a_gang_over_two_nodes_runs(made: Gangs) -> None:
    made.bring("a", 6, *members(6, 200))
    made.complete("a", 6)


def test_gangs_that_come_at_once_for_one_node_run_one_after_the_other(cluster: Cluster, made: Gangs) -> None:
    """On HAMi a part of each ran, for up to five minutes times the number of gangs."""
    sizes = dict.fromkeys((f"g{at}" for at in range(6)), 4)
    assert _all_run(cluster, made, sizes, cores=200) <= PARTIAL_SECONDS


def test_twenty_gangs_that_come_at_once_run_and_none_in_part(cluster: Cluster, made: Gangs) -> None:
    dice = random.Random(40)
    assert (
        _all_run(cluster, made, {f"g{at}": dice.choice(SIZES) for at in range(20)}, cores=100)
        <= PARTIAL_SECONDS
    )


def _all_run(cluster: Cluster, made: Gangs, sizes: dict[str, int], cores: int) -> float:
    """Bring them all, until each has run to its end; the longest time for which one was bound in part."""
    for name, size in sizes.items():
        ending = [pod(f"{name}-{at}", container("c", cores, args=ENDS)) for at in range(size)]
        made.bring(name, size, *here(*ending))
    since: dict[str, float] = {}
    longest = 0.0

    def done() -> bool:
        nonlocal longest
        bound, now = made.bound(), time.monotonic()
        for name, size in sizes.items():
            if 0 < sum(bound[name]) < size:
                longest = max(longest, now - since.setdefault(name, now))
            else:
                since.pop(name, None)
        return all(bound[name] == [True] * size for name, size in sizes.items())

    cluster.wait(done, 300, "gangs wait for ever")
    auditor.settled(cluster)
    return longest
