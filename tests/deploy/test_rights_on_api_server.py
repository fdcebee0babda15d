"""What the chart's accounts may write with their own tokens, on a real API server, where one is built."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.tasks import KubeEvictions
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.contract import CORE, EVENT_EVICTED, EVENT_WITHOUT_DEVICES, MEMORY
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.services.evictor import Evictor
from tests.deploy import rights
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, SETS
from tests.deploy.rights import FORBIDDEN, OWN, PAST, Accounts, Write
from tests.fakes.sandbox import short_directory, until

pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        running = Server(directory, request.param)
        try:
            running.start()
            said = running.run(
                HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["terms"]
            )
            assert "STATUS: deployed" in said, said
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def accounts(server: Server) -> Accounts:
    made = Accounts(server)
    made.settle()
    return made


@pytest.mark.parametrize("write", PAST, ids=lambda w: f"{w.account}: {w.what}")
def test_no_account_writes_past_its_own_names(accounts: Accounts, write: Write) -> None:
    code, text = accounts.write(write)
    assert code == FORBIDDEN, f"{code} {text}"


@pytest.mark.parametrize("write", OWN, ids=lambda w: f"{w.account}: {w.what}")
def test_every_account_writes_what_it_needs(accounts: Accounts, write: Write) -> None:
    code, text = accounts.write(write)
    assert code in (200, 201), f"{code} {text}"


def test_an_agent_s_mark_ends_a_pod_by_the_evictor_under_all_policies(
    server: Server, accounts: Accounts
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    share = {"name": "c", "image": "i", "resources": {"limits": {CORE: "30", MEMORY: "4"}}}
    pods = rights.PODS.format("team-a")
    meta, spec = {"ownerReferences": [owner]}, {"containers": [share]}
    pod = parse_pod(server.make(pods, "Pod", "stranded", metadata=meta, spec=spec))
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "stranded"}, "target": target}
    assert server.ask("POST", f"{pods}/stranded/binding", binding)[0] == 201
    agent = Kube(
        connect(kubeconfig=accounts.kubeconfig("agent")), "n1", clock=SystemClock(), mark_evictions=True
    )
    evictions = KubeEvictions(connect(kubeconfig=accounts.kubeconfig("evictor")), SystemClock(), "evictor-x")
    evictor = Evictor(evictions, SystemClock(), per_minute=10, node_per_minute=3)
    agent.start()
    evictions.start()
    try:
        agent.pods.event(pod, EVENT_WITHOUT_DEVICES, "the kubelet has lost its record", warning=True)
        agent.pods.evict(pod, "the kubelet has lost its record")
        until(evictions.marked)
        evictor.look()
        assert "deletionTimestamp" in json.loads(server.ask("GET", f"{pods}/stranded")[1])["metadata"]
        events = f"/api/v1/namespaces/team-a/events?fieldSelector=involvedObject.uid={pod.uid}"

        def told() -> set[str]:
            return {one["reason"] for one in json.loads(server.ask("GET", events)[1])["items"]}

        until(lambda: told() == {EVENT_WITHOUT_DEVICES, EVENT_EVICTED})
    finally:
        agent.close()
        evictions.close()


def test_the_certificate_survives_an_upgrade_a_rollback_and_one_that_the_service_made_itself(
    server: Server,
) -> None:
    path = f"{rights.SYSTEM}/secrets/gpu-quota-admission-certs"
    kept = {"data": {"tls.crt": "eA=="}}
    assert server.ask("PATCH", path, kept, kind=rights.MERGE)[0] == 200
    release = ("gpu-manager", str(CHART), "-n", "kube-system")
    assert "STATUS: deployed" in server.run(HELM, "upgrade", *release, *SETS["defaults"])
    assert json.loads(server.ask("GET", path)[1])["data"] == kept["data"]
    assert "Rollback was a success" in server.run(HELM, "rollback", "gpu-manager", "1", "-n", "kube-system")
    assert json.loads(server.ask("GET", path)[1])["data"] == kept["data"]
    assert server.ask("DELETE", path)[0] == 200
    server.make(f"{rights.SYSTEM}/secrets", "Secret", "gpu-quota-admission-certs", **kept)
    assert "STATUS: deployed" in server.run(HELM, "upgrade", *release, *SETS["defaults"])
    assert json.loads(server.ask("GET", path)[1])["data"] == kept["data"]
