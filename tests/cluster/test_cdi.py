"""Injection by CDI: the spec that the agent writes, as kubelet and containerd take it.

The node has cgroup v1 or v2 as its machine has; tests/cluster/test_cgroup_v2.py tries v2 without a kubelet.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from gpu_manager.adapters.driver_files import cdi
from gpu_manager.domain.contract import EVENT_NOT_INJECTED, LIBRARY_DIR, LIMITS_PATH
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from tests.cluster import auditor, cdi_off, foreign_plugin, processes, product
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.test_kubelet import offered

GIVEN = Injection(
    mounts=(
        Mount("/etc/cdi-test/hosts", "/etc/hosts"),
        Mount("/etc/cdi-test/scratch", "/run/cdi-test", read_only=False),
    ),
    devices=(DeviceNode("/dev/cdi-test", "/dev/zero", "rw"),),
)


@pytest.fixture
def specs(cluster: Cluster) -> cdi.Specs:
    """Those of the node, in the tmpfs that a reboot empties."""
    cluster.inside("mkdir", "-p", "/run/cdi-test", check=True)
    return cdi.Specs(cluster.root("/run/cdi"))


@pytest.fixture
def given(cluster: Cluster, specs: cdi.Specs) -> Iterator[str]:
    """An allocation whose spec lies on the node, and a plugin that names its device to the kubelet.

    A foreign plugin answers, so that device nodes are tried as well: simulated cards have none.
    """
    name = secrets.token_hex(16)
    specs.put(name, cdi.encode(name, GIVEN))
    cluster.run("foreign", foreign_plugin.command(cdi.device_name(name)))
    cluster.wait(lambda: offered(cluster) == foreign_plugin.COUNT, 30, "the foreign plugin is not registered")
    yield name
    cluster.kill("foreign")
    specs.keep(specs.names() - {name})
    cluster.wait(lambda: offered(cluster) == 0, 30, "the foreign plugin is still offered")


@pytest.mark.case(39)
def test_the_runtime_gives_what_the_spec_says(
    cluster: Cluster, pods: Pods, specs: cdi.Specs, given: str
) -> None:
    asks = container("c")
    asks["resources"]["limits"][foreign_plugin.RESOURCE] = "1"
    pods.run(pod("given", asks))
    assert "localhost" in pods.execute("given", "cat", "/etc/cdi-test/hosts")
    assert pods.execute("given", "sh", "-c", "head -c 3 /dev/cdi-test | wc -c").strip() == "3"
    pods.execute("given", "touch", "/etc/cdi-test/scratch/written")
    with pytest.raises(RuntimeError, match="Read-only"):
        pods.execute("given", "sh", "-c", "echo no >> /etc/cdi-test/hosts")
    assert given in specs.names()


@pytest.mark.case(39)
def test_a_pod_whose_spec_is_gone_does_not_start_and_says_so(
    cluster: Cluster, pods: Pods, specs: cdi.Specs, given: str
) -> None:
    """Without it the container would run without what holds it to its share."""
    specs.keep(specs.names() - {given})
    asks = container("c")
    asks["resources"]["limits"][foreign_plugin.RESOURCE] = "1"
    pods.create(pod("bare", asks))
    cluster.wait(
        lambda: any("unresolvable CDI devices" in text for text in pods.events("bare")), 30, "nobody says why"
    )
    assert pods.phase("bare") == "Pending"


# --- through the agent's own Allocate ---------------------------------------------------------------


@pytest.fixture(scope="module")
def by_cdi(cluster: Cluster) -> Iterator[None]:
    """The agent injects by CDI; simulated cards are mounted by its specs."""
    product.install(cluster, admission=True, **{"cards.injection": "cdi"})
    yield
    cdi_off.back_to_simulated(cluster)


def is_granted(cluster: Cluster, pods: Pods, name: str) -> str:
    """The pod's directory of control pages, once the container is seen to run with them."""
    auditor.settled(cluster)
    pods.execute(name, "sh", "-c", f"test -s {LIMITS_PATH}")
    assert "libvcuda.so" in pods.execute(name, "sh", "-c", f"echo {LIBRARY_DIR}/*")
    lines = pods.execute(name, "cat", "/proc/self/mountinfo").splitlines()
    (root,) = (line.split()[3] for line in lines if line.split()[4] == LIMITS_PATH)
    return str(root).split("/")[-2]


def restarts(status: list[dict[str, int]]) -> int:
    return sum(one["restartCount"] for one in status)


def ends_and_starts_again(cluster: Cluster, pods: Pods, name: str) -> None:
    before = restarts(pods.get(name)["status"]["containerStatuses"])
    for pid in product.processes_of(pods.get(name)):
        processes.end(pid)
    cluster.wait(
        lambda: (
            restarts(pods.get(name)["status"]["containerStatuses"]) > before
            and "running" in pods.get(name)["status"]["containerStatuses"][0]["state"]
        ),
        90,
        "the container does not start again",
    )


@pytest.mark.case(39)
@pytest.mark.usefixtures("by_cdi")
def test_the_agents_own_allocation_comes_by_its_spec_and_nothing_else(
    cluster: Cluster, pods: Pods, specs: cdi.Specs
) -> None:
    pods.run(pod("own", container("c", 30, 8)))
    directory = is_granted(cluster, pods, "own")
    assert directory in specs.names()
    pods.delete("own")
    cluster.wait(lambda: directory not in specs.names(), 300, "the spec outlives its pod")


@pytest.mark.case(39)
@pytest.mark.usefixtures("by_cdi")
def test_a_container_starts_again_though_its_spec_and_record_were_lost(
    cluster: Cluster, pods: Pods, specs: cdi.Specs
) -> None:
    pods.run(pod("again", container("c", 30, 8), restartPolicy="Always"))
    directory = is_granted(cluster, pods, "again")
    (cluster.scratch / "agent/tenants" / directory / "injection.json").unlink()
    specs.keep(specs.names() - {directory})
    cluster.wait(lambda: directory in specs.names(), 10, "the spec is not made again from the grant")
    ends_and_starts_again(cluster, pods, "again")
    assert is_granted(cluster, pods, "again") == directory


def unready(cluster: Cluster) -> str:
    """Why the agent is not ready, in its own words; empty while it is."""
    try:
        product.ask(cluster, "/readyz")
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.case(39)
@pytest.mark.usefixtures("by_cdi")
def test_a_directory_of_specs_that_the_node_removed_is_there_again(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("kept", container("c", 30, 8), restartPolicy="Always"))
    directory = is_granted(cluster, pods, "kept")
    cluster.inside("rm", "-rf", "/run/cdi", check=True)
    cluster.wait(lambda: "/cdi was removed on the node" in unready(cluster), 10, "the agent says it is ready")
    path = cluster.root("/run/cdi")
    cluster.wait(
        lambda: path.is_dir() and directory in cdi.Specs(path).names(), 90, "the specs are not there again"
    )
    cluster.wait(lambda: product.agent_ready(cluster), 60, "the agent is not ready again")
    ends_and_starts_again(cluster, pods, "kept")
    assert is_granted(cluster, pods, "kept") == directory


@pytest.mark.case(39)
@pytest.mark.usefixtures("by_cdi")
def test_where_the_runtime_reads_no_specs_the_bare_container_is_named(cluster: Cluster, pods: Pods) -> None:
    """The agent was told CDI, and containerd has it off: containers run without a card and without a limit."""
    with cdi_off.switched_off(cluster):
        pods.run(pod("bare", container("c", 30, 8)))
        cluster.wait(
            lambda: any(EVENT_NOT_INJECTED in said for said in pods.events("bare")), 10, "nobody names it"
        )
        series = 'vcuda_container_not_injected{container="c",namespace="default",pod="bare"} 1.0'
        assert series in product.ask(cluster, "/metric")
        with pytest.raises(RuntimeError, match="not-injected"):  # it found something: exit code 1
            cluster.kubectl(
                *("-n", product.NAMESPACE, "exec", "ds/gpu-manager-daemonset", "-c", "gpu-manager"),
                *("--", "gpu-manager", "doctor"),
            )
