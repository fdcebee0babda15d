"""A real API server, where one is built, does what the table of tests/agreement says of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agreement.api_reads import READS
from tests.agreement.api_writes import WRITES
from tests.agreement.world import NOBODY, Case, World
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.fakes.sandbox import short_directory

BY_CONTROLLERS = {"eviction"}  # of disruption budgets: no controller runs here
CASES = [case for case in (*WRITES, *READS) if case.name not in BY_CONTROLLERS]
pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with short_directory() as directory:
        server = Server(directory, request.param)
        try:
            server.start()
            admin = {"Authorization": "Bearer admin"}
            headers = {"": admin, NOBODY: {**admin, "Impersonate-User": NOBODY}}
            authority = directory / "certs" / "apiserver.crt"
            made = World(f"https://127.0.0.1:{server.port}", headers, authority, server.forget)
            made.begin()
            yield made
        finally:
            server.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_api_server(world: World, case: Case) -> None:
    try:
        assert case.run(world) == case.expected, case.proves
    finally:
        world.clear()
