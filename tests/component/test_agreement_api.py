"""The API stand-in does what a real API server does: the cases of tests/agreement, on the stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.api import ADMIN_TOKEN, StandInApi, User
from tests.agreement.api_reads import READS
from tests.agreement.api_writes import WRITES
from tests.agreement.world import NOBODY, Case, World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    api = StandInApi(tokens={NOBODY: User(NOBODY)}, authorize=lambda user, _access: user.name != NOBODY)
    with api:
        tokens = {"": ADMIN_TOKEN, NOBODY: NOBODY}
        headers = {user: {"Authorization": f"Bearer {token}"} for user, token in tokens.items()}
        made = World(api.url, headers, forget=api.compact)
        made.begin()
        yield made


@pytest.mark.parametrize("case", [*WRITES, *READS], ids=lambda case: case.name)
def test_the_api_stand_in(world: World, case: Case) -> None:
    try:
        assert case.run(world) == case.expected, case.proves
    finally:
        world.clear()
