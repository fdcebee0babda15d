"""Which grants a container uses its cards by: its own, or those of the claims that its pod names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import LIMITS_PATH, USAGE_PATH, WHOLE_CARD
from gpu_manager.domain.enforcement.evasion import CONTEXT_BYTES
from gpu_manager.domain.injection import MountPoint
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.services.enforcement.container_starts import (
    LOOKS,
    PERIOD_SECONDS,
    DriverMemoryLimits,
    InjectionCheck,
)
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import ContainerGrants
from tests.fakes.claims import claim_grant
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeCards, FakeClock, FakePods, FakeProcesses, FakeTenants, cards
from tests.fakes.state import state_of

STATES = cards(2)
WHOLE = claim_grant("whole", STATES[0], cores=100)
BIG, SMALL = (
    claim_grant("two", state, request=name) for name, state in zip(("big", "small"), STATES, strict=True)
)


def pod(*uses: dict[str, str], **status: Any) -> Pod:
    return parse_pod(
        {
            "metadata": {"name": "train-0", "namespace": "ml", "uid": "uid-train-0"},
            "spec": {
                "containers": [{"name": "c", "resources": {"claims": list(uses)}}],
                "resourceClaims": [
                    {"name": "mine", "resourceClaimName": "two"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                    {"name": "waits", "resourceClaimTemplateName": "t"},
                ],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "c", "containerID": "containerd://id", "state": {"running": {}}}
                ],
                "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "whole"}],
                **status,
            },
        }
    )


def keys(shown: Pod) -> tuple[tuple[str, str], ...]:
    local = {"ml/train-0": (KnownPod(shown),)}
    grants = {grant.key: grant for grant in (WHOLE, BIG, SMALL)}
    return ContainerGrants().of(local, grants)["uid-train-0", "id"]


def test_a_container_has_what_the_request_that_it_names_was_given() -> None:
    assert keys(pod({"name": "mine", "request": "small"})) == (SMALL.key,)
    assert keys(pod({"name": "mine"})) == (BIG.key, SMALL.key)
    assert keys(pod({"name": "made", "request": "gpu"})) == (WHOLE.key,)


def test_a_container_has_what_the_scheduler_claimed_for_its_extended_resource() -> None:
    made = {
        "resourceClaimName": "whole",
        "requestMappings": [
            {"containerName": "other", "resourceName": WHOLE_CARD, "requestName": "container-1-request-0"},
            {"containerName": "c", "resourceName": WHOLE_CARD, "requestName": "gpu"},
        ],
    }
    assert keys(pod(extendedResourceClaimStatus=made)) == (WHOLE.key,)
    assert keys(pod(extendedResourceClaimStatus={**made, "resourceClaimName": ""})) == (("uid-train-0", "c"),)


def test_a_container_without_a_claim_that_is_booked_has_its_own_name() -> None:
    own = (("uid-train-0", "c"),)
    assert keys(pod()) == own
    assert keys(pod({"name": "waits"})) == own
    assert keys(pod({"name": "unknown"})) == own


def test_a_new_claim_and_a_new_pod_are_seen() -> None:
    found, local = ContainerGrants(), {"ml/train-0": (KnownPod(pod({"name": "made"})),)}
    place = "uid-train-0", "id"
    assert found.of(local, {})[place] == (("uid-train-0", "c"),)
    grants = {WHOLE.key: WHOLE}
    assert found.of(local, grants)[place] == (WHOLE.key,)
    assert found.of({}, grants) == {}


class Node:
    """A process of a claim's container, as the driver lists it."""

    def __init__(self, shown: Pod, card: int) -> None:
        self.pods, self.cards, self.clock = FakePods(), FakeCards(STATES), FakeClock()
        self.pods.bind(shown)
        self.processes = FakeProcesses(containers={7: (shown.uid, "id")})
        self.cards.processes = [ProcessUse(STATES[card].card.uuid, 7, memory=1 << 30, utilisation=50.0)]
        self.state = state_of(STATES, WHOLE, BIG, SMALL)
        metrics = service_metrics()
        self.sampler = UsageSampler(
            self.state, self.cards, self.pods, FakeTenants(), self.processes, self.clock, metrics
        )


def test_a_process_is_counted_for_the_claim_that_gave_its_card() -> None:
    node = Node(pod({"name": "mine"}), card=1)
    sample = node.sampler.sample()
    assert list(sample.processes) == [(SMALL.key, STATES[1].card.uuid)]


class Setter:
    """Holds every limit that it is given."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], int] = {}

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str:
        self.limits[container_id, card] = limit
        return "dmem"

    def let_go(self, container_id: str, card: CardUuid) -> None:
        del self.limits[container_id, card]


def test_the_drivers_own_limit_holds_the_containers_of_a_claim_too() -> None:
    node, setter = Node(pod({"name": "mine", "request": "small"}), card=1), Setter()
    limits = DriverMemoryLimits(node.state, node.pods, setter, node.clock, service_metrics())
    limits.look()
    assert setter.limits == {("id", STATES[1].card.uuid): 4 * GIB + CONTEXT_BYTES}
    node.pods.forget("ml/train-0")
    limits.look()
    assert setter.limits == {}


class Mounts:
    """What the container of the claim has mounted."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def mounts(
        self, containers: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], list[list[MountPoint]]]:
        pages = [
            MountPoint(LIMITS_PATH, f"/{self.directory}/limits"),
            MountPoint(USAGE_PATH, f"/{self.directory}/usage"),
        ]
        return {one: [pages] for one in containers}


@pytest.mark.parametrize(("directory", "found"), [("two-small", []), ("two-big", ["c"])])
def test_a_container_of_a_claim_that_mounts_other_pages_is_named(directory: str, found: list[str]) -> None:
    node = Node(pod({"name": "mine", "request": "small"}), card=1)
    check = InjectionCheck(node.state, node.pods, Mounts(directory), node.clock, "cdi", driver=False)
    for _ in range(LOOKS):
        check.look()
        node.clock.pass_(PERIOD_SECONDS)
    assert [one.container for one in check.found] == found


def test_a_whole_card_of_a_claim_shows_what_its_processes_use() -> None:
    sample = Node(pod({"name": "made"}), card=0).sampler.sample()
    [use] = [one for one in sample.shares if one.key == WHOLE.key]
    assert (use.memory, use.core) == (1 << 30, 0.5)
