"""Hostile pods, nodes and claims at an API server, before the product starts and after: all else is heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.objects_texts import made
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.adapters.kube.kube import Kube
from gpu_manager.adapters.kube.reading import list_nodes, read_claims, read_cluster
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.agreement.api_reads import FIELDS, PARAMETERS
from tests.agreement.world import World
from tests.fakes.admission import NODES, Process, cluster, create, known
from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

FORMS = max(len(FIELDS), len(PARAMETERS))
OWN = "node-0"


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with cluster() as made_api:
        yield made_api


def post_hostile(api: StandInApi, first: int) -> None:
    world = World(api.url, {"": {"Authorization": f"Bearer {ADMIN_TOKEN}"}})
    for number in range(first, first + FORMS):
        for kind in ("node", "claim", "hostile"):
            one = made(kind, number)
            world.ask("POST", one.place, one.write(one.obj["metadata"])).ok()


def test_the_service_hears_of_all_others(api: StandInApi) -> None:
    post_hostile(api, 0)
    with Process(f"--api-url={api.url}", "--leader-mode=alone", "--claims") as service:
        for number, first in enumerate((FORMS, 2 * FORMS)):
            post_hostile(api, first)
            honest = create(api, f"honest-{number}", core=60)
            until(known(service, f"honest-{number}"))
            assert service.placed(honest, NODES) in NODES
            api.delete("nodes", f"node-{first}")
        figures = service.figures()
        assert [
            value for (name, _), value in figures.items() if "unreadable_objects_total" in name and value
        ] == []
        assert figures["vcuda_admission_nodes", ()] == len(NODES) + 3 * FORMS - 2


def test_the_agent_of_a_hostile_node_and_people_hear_of_all_others(api: StandInApi) -> None:
    post_hostile(api, 0)
    connection = connect(url=api.url, token=ADMIN_TOKEN)
    kube = Kube(connection, OWN, clock=SystemClock(), pause=Pause(0.01, 0.05))
    kube.start()
    try:
        assert kube.pods.wait(PATIENCE)
        assert kube.node.wait(PATIENCE)
        post_hostile(api, FORMS)
        api.patch("nodes", OWN, {"metadata": {"annotations": {"tencent.com/vcuda-cordon": "GPU-1"}}})
        until(lambda: kube.node.cordoned() == {"GPU-1"})
        assert (kube.pods.error, kube.node.error, sum(kube.unreadable.values())) == (None, None, 0)
        found = read_cluster(connection)
        assert len(found.nodes) == len(NODES) + 2 * FORMS
        assert read_claims(connection, list_nodes(connection)) == ([], "")
    finally:
        kube.close()
        connection.close()
