"""Injection by CDI: the spec that the agent writes, as kubelet and containerd take it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from gpu_manager.adapters.driver_files import cdi
from gpu_manager.domain.injection import DeviceNode, Injection, Mount
from tests.cluster import foreign_plugin
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

    Simulated cards are mounted whatever the runtime can do, so it is a foreign plugin that answers.
    """
    name = secrets.token_hex(16)
    specs.put(name, cdi.encode(name, GIVEN))
    cluster.run("foreign", foreign_plugin.command(cdi.device_name(name)))
    cluster.wait(lambda: offered(cluster) == foreign_plugin.COUNT, 30, "the foreign plugin is not registered")
    yield name
    cluster.kill("foreign")
    specs.keep(())
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
    assert specs.names() == {given}


@pytest.mark.case(39)
def test_a_pod_whose_spec_is_gone_does_not_start_and_says_so(
    cluster: Cluster, pods: Pods, specs: cdi.Specs, given: str
) -> None:
    """Without it the container would run without what holds it to its share."""
    specs.keep(())
    asks = container("c")
    asks["resources"]["limits"][foreign_plugin.RESOURCE] = "1"
    pods.create(pod("bare", asks))
    cluster.wait(
        lambda: any("unresolvable CDI devices" in text for text in pods.events("bare")), 30, "nobody says why"
    )
    assert pods.phase("bare") == "Pending"
