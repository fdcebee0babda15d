"""The scheduler stand-in asks and obeys an extender as kube-scheduler does: the cases of tests/agreement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.api import ADMIN_TOKEN, StandInApi
from sandbox.extender import ExtenderClient as StandInsExtender
from sandbox.scheduler import SCHEDULER as NAME
from sandbox.scheduler import Scheduler
from tests.agreement.extender import MANAGED, Extender, Scheduling
from tests.agreement.scheduler_cases import SCHEDULER
from tests.agreement.world import Case, World


@pytest.fixture(scope="module")
def scheduling() -> Iterator[Scheduling]:
    extender = Extender()
    extender.start()
    with StandInApi() as api:
        scheduler = Scheduler(api, StandInsExtender(extender.port, frozenset({MANAGED})))
        scheduler.start()
        world = World(api.url, {"": {"Authorization": f"Bearer {ADMIN_TOKEN}"}})
        world.begin()
        yield Scheduling(world, extender, NAME)
        scheduler.stop()
    extender.stop()


@pytest.mark.parametrize("case", SCHEDULER, ids=lambda case: case.name)
def test_the_scheduler_stand_in(scheduling: Scheduling, case: Case) -> None:
    scheduling.begin(case.name)
    try:
        assert case.run(scheduling) == case.expected, case.proves
    finally:
        scheduling.world.clear()
