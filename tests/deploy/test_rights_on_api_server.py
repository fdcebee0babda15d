"""What the chart's accounts may write with their own tokens, on a real API server, where one is built."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.deploy import rights
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, SETS
from tests.deploy.rights import FORBIDDEN, OWN, PAST, Accounts, Write
from tests.fakes.sandbox import short_directory

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
