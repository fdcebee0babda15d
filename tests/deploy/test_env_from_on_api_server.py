"""envFrom, which may show a container every card, on a real API server, where one is built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY, VISIBLE_ENV
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import until
from tests.unit.test_shown_cards import injecting

pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/team/pods"
FROM = [{"configMapRef": {"name": "settings"}}]


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        running = Server(directory, request.param)
        try:
            running.start()
            said = running.run(HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system")
            assert "STATUS: deployed" in said, said
            for node in (injecting("n1", "cdi", pool="cdi"), injecting("n2", "nvidia", pool="nvidia")):
                assert running.ask("POST", NODES, node)[0] == 201
            running.make("/api/v1/namespaces", "Namespace", "team")
            running.serve_admission("--leader-mode=lease")
            # Once it has seen the nodes and the API server has taken the policies in.
            until(lambda: "envFrom may bring" in create(running, "seen", dry=True)[1], every=0.5)
            yield running
        finally:
            running.stop()


def create(server: Server, name: str, *, dry: bool = False, **spec: Any) -> tuple[int, str]:
    limits = {CORE: "30", MEMORY: "4"}
    container = {"name": "c", "image": "i", "resources": {"limits": limits}, "envFrom": FROM}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }
    return server.ask("POST", PODS + ("?dryRun=All" if dry else ""), pod)


def test_where_a_node_shows_cards_by_a_variable_it_is_refused(server: Server) -> None:
    code, text = create(server, "anywhere")
    assert (code, "as on node" in text) == (422, True), text
    code, text = create(server, "there", nodeSelector={"pool": "nvidia"})
    assert code == 422, text


def test_elsewhere_it_is_stored_with_an_explicit_void(server: Server) -> None:
    code, text = create(server, "hidden", nodeSelector={"pool": "cdi"})
    assert code == 201, text
    (container,) = json.loads(text)["spec"]["containers"]
    assert container["env"] == [{"name": VISIBLE_ENV, "value": "void"}]
    assert container["envFrom"] == FROM


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ({"env": [{"name": VISIBLE_ENV, "value": "all"}]}, "env NVIDIA_VISIBLE_DEVICES is"),
        ({"envFrom": FROM}, "envFrom may bring"),
        ({"envFrom": FROM, "env": [{"name": VISIBLE_ENV, "value": "void"}]}, ""),
    ],
)
def test_an_ephemeral_container_is_shown_no_card(server: Server, added: dict[str, Any], says: str) -> None:
    name = f"debugged-{len(says)}"
    code, text = create(server, name, nodeSelector={"pool": "cdi"})
    assert code == 201, text
    debug = {"name": "debug", "image": "i", "targetContainerName": "c", **added}
    code, text = server.ask(
        "PATCH",
        f"{PODS}/{name}/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [debug]}},
        kind="application/strategic-merge-patch+json",
    )
    assert (code == 200) is (not says), text
    assert says in text
