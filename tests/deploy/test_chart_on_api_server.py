"""The chart on a real API server, where one is built: every render taken, every policy compiled and obeyed.

``make cluster CMD=build`` builds kube-apiserver below build/cluster; every version found there is asked.
A fresh clone has none, and ten minutes of Go are more than a commit's check should take: there these are skipped.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from gpu_manager.domain import contract
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, KUBECTL, MANIFESTS, SETS
from tests.fakes.sandbox import short_directory

BARE = ("--set=monitoring.serviceMonitor=false",)  # no Prometheus operator has brought its kinds
FOREIGN = {
    "monitored",
    "cluster",
    "own-namespace",
    "labelled",
}  # need others' kinds, another namespace or selector
AGENT = (
    "--as=system:serviceaccount:kube-system:gpu-manager",
    "--as-user-extra=authentication.kubernetes.io/node-name=n1",
)
pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        server = Server(directory, request.param)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def test_every_way_of_installing_is_taken_one_after_the_other_and_rolled_back(server: Server) -> None:
    release = ("gpu-manager", str(CHART), "-n", "kube-system")
    for name, values in SETS.items():
        if name not in FOREIGN:
            kept = "--history-max=0"  # all revisions, the first too
            said = server.run(HELM, "upgrade", "--install", kept, *release, *values, *BARE)
            assert "STATUS: deployed" in said, f"{name}: {said}"
    assert "Rollback was a success" in server.run(HELM, "rollback", "gpu-manager", "1", "-n", "kube-system")
    assert "uninstalled" in server.run(HELM, "uninstall", "gpu-manager", "-n", "kube-system")
    left = server.run(
        KUBECTL, "get", "clusterrole,validatingadmissionpolicy,mutatingwebhookconfiguration", "-o", "name"
    )
    assert not [line for line in left.splitlines() if "gpu" in line or "vcuda" in line]


SEES = (
    ("list", "nodes"),
    ("list", "pods", "-A"),
    ("get", "services/https:gpu-quota-admission:443", "--subresource=proxy", "-n", "kube-system"),
    ("create", "services/https:gpu-quota-admission:443", "--subresource=proxy", "-n", "kube-system"),
    ("get", "pods/gpu-manager-daemonset-x", "--subresource=proxy", "-n", "kube-system"),
    ("get", "configmap/gpuquota", "-n", "kube-system"),
)
NOT_FOR_PEOPLE = (
    ("get", "services/https:kubernetes-dashboard:443", "--subresource=proxy", "-n", "kube-system"),
    ("get", "services/https:gpu-quota-admission:443", "--subresource=proxy", "-n", "default"),
    ("get", "pods/x", "--subresource=proxy", "-n", "default"),
    ("create", "pods/x", "--subresource=exec", "-n", "kube-system"),
    ("get", "configmap/extension-apiserver-authentication", "-n", "kube-system"),
    ("get", "secrets", "-n", "kube-system"),
    ("delete", "pods"),
)


def test_people_who_are_bound_to_the_role_see_and_change_nothing_and_the_api_server_reaches_the_agents(
    server: Server,
) -> None:
    said = server.run(HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["viewed"])
    assert "STATUS: deployed" in said, said
    try:
        who = ("--as=ann", "--as-group=gpu-users")

        def may(*what: str) -> bool:
            done = server.run(KUBECTL, "auth", "can-i", *what, *who)
            assert done.strip() == "yes" or done.startswith("FAILED"), done
            return done.strip() == "yes"

        assert [what for what in SEES if not may(*what)] == []
        assert [what for what in NOT_FOR_PEOPLE if may(*what)] == []
        slices = server.run(KUBECTL, "get", "endpointslice", "kubernetes", "-o", "json")
        (address,) = [a for e in json.loads(slices)["endpoints"] for a in e["addresses"]]
        policy = server.run(KUBECTL, "-n", "kube-system", "get", "networkpolicy", "gpu-manager", "-o", "json")
        blocks = [
            p["ipBlock"]["cidr"] for p in json.loads(policy)["spec"]["ingress"][0]["from"] if "ipBlock" in p
        ]
        assert blocks == [f"{address}/32"]
    finally:
        server.run(HELM, "uninstall", "gpu-manager", "-n", "kube-system")


def test_the_manifests_hold_and_while_no_webhook_answers_other_pods_come(server: Server) -> None:
    fraction = {contract.CORE: "30", contract.MEMORY: "20"}
    assert "FAILED" not in server.run(KUBECTL, "apply", "-k", str(MANIFESTS))
    try:
        for name in ("n1", "n2"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            assert "created" in server.run(KUBECTL, "create", "-f", "-", given=json.dumps(node))
        server.run(KUBECTL, "create", "serviceaccount", "default")
        # Nobody serves the webhook here.
        assert "created" in server.pod("plain", {"cpu": "1"})
        assert "mutate.gpu-quota-admission.tencent.com" in server.pod("card", fraction)
        hooks = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
        assert "deleted" in server.run(KUBECTL, "delete", hooks, "gpu-quota-admission")
        _policies_hold(server, fraction)
    finally:
        server.run(KUBECTL, "delete", "-k", str(MANIFESTS), "--ignore-not-found")


def _policies_hold(server: Server, fraction: dict[str, str]) -> None:
    tick = threading.Event()
    for _ in range(50):  # the API server takes new policies in within a second or so
        if "multiple of 100" in server.pod("far", {**fraction, contract.CORE: "150"}):
            break
        server.run(KUBECTL, "delete", "pod", "far", "--force", "--ignore-not-found")
        tick.wait(0.2)
    else:
        raise AssertionError("150 cores were never refused")
    assert "without tencent.com/vcuda-memory" in server.pod("lone", {contract.CORE: "30"})
    assert "use binpack or spread" in server.pod("where", fraction, **{contract.PLACEMENT: "random"})
    assert "FAILED" in server.pod("forged", fraction, **{contract.ALLOCATION: "{}"})
    assert "created" in server.pod("a", fraction, "n1")
    assert "created" in server.pod("b", fraction, "n2")
    assert "use best-effort or normal or protected" in server.pod(
        "odd", fraction, **{contract.PRIORITY: "high"}
    )
    whole = server.pod("whole", {contract.CORE: "200"}, **{contract.PRIORITY: "protected"})
    assert 'container "c" asks for whole cards, which have no other tenant' in whole
    _priorities_are_fixed(server, fraction)
    written = f"{contract.ASSIGNED}=true"
    assert "may change it" in server.run(KUBECTL, "annotate", "pod", "a", written)
    assert "annotated" in server.run(KUBECTL, "annotate", "pod", "a", written, *AGENT)
    assert "may not change a pod of another node" in server.run(
        KUBECTL, "annotate", "pod", "b", written, *AGENT
    )
    assert "may not change x" in server.run(KUBECTL, "annotate", "pod", "a", "x=y", *AGENT)
    assert "names no node" in server.run(
        KUBECTL, "annotate", "pod", "a", f"{contract.ASSIGNED}=no", "--overwrite", AGENT[0]
    )
    published = f"{contract.INVENTORY}=x"
    assert "annotated" in server.run(KUBECTL, "annotate", "node", "n1", published, *AGENT)
    assert "may not change another node" in server.run(KUBECTL, "annotate", "node", "n2", published, *AGENT)
    opened = '{"spec":{"unschedulable":true}}'
    assert "may not change specifications" in server.run(KUBECTL, "patch", "node", "n1", "-p", opened, *AGENT)


def _priorities_are_fixed(server: Server, fraction: dict[str, str]) -> None:
    """Also by way of the status and of a Binding, whose annotations become the pod's."""
    assert "created" in server.pod("low", fraction, **{contract.PRIORITY: "best-effort"})
    asked = ("annotate", "pod", "low", "--overwrite", f"{contract.PRIORITY}=protected")
    fixed = 'is "protected": it is fixed when the pod is created: leave it as it was, "best-effort"'
    assert fixed in server.run(KUBECTL, *asked)
    assert "is removed: it is fixed" in server.run(KUBECTL, "annotate", "pod", "low", f"{contract.PRIORITY}-")
    patch = json.dumps({"metadata": {"annotations": {contract.PRIORITY: "protected"}}})
    assert fixed in server.run(KUBECTL, "patch", "pod", "low", "--subresource=status", "-p", patch)
    assert "annotated" in server.run(KUBECTL, "annotate", "pod", "low", "x=y")
    assert "created" in server.pod("unbound", fraction)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "unbound", "annotations": {contract.PRIORITY: "protected"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    path = "/api/v1/namespaces/default/pods/unbound/binding"
    said = server.run(KUBECTL, "create", "--raw", path, "-f", "-", given=json.dumps(binding))
    assert "it is fixed when the pod is created: leave it out" in said
