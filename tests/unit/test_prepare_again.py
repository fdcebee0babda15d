"""A pod whose claims could not be prepared is tried again within seconds, and nobody else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_manager.domain.contract import PREPARE_AGAIN
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.services.claims.upkeep import FIRST_SECONDS, LONGEST_SECONDS, TRIES, PrepareAgain
from tests.fakes.claims import FakeClaims, claim_object, result
from tests.fakes.ports import FakeClock, FakePods


class Node:
    """A node whose kubelet has taken the driver once; ``tried`` counts how often each pod was annotated."""

    def __init__(self) -> None:
        self.registrations, self.prepared = 1, set[tuple[str, str]]()
        self.claims, self.pods, self.clock = FakeClaims(), FakePods(), FakeClock()
        self.again = PrepareAgain(
            lambda: self.registrations,
            lambda *claim: claim in self.prepared,
            self.claims,
            self.pods,
            self.clock,
        )
        self.again.look()

    def bind(self, name: str, *claims: str, ours: bool = True, **status: Any) -> Pod:
        """A pod that uses these claims, in a container of its own each."""
        for claim in claims:
            if ours:
                self.claims.add(claim_object(claim, result("gpu-00000000")))
        pod = parse_pod(
            {
                "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"},
                "spec": {
                    "nodeName": "n1",
                    "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                    "containers": [
                        {"name": f"c-{claim}", "resources": {"claims": [{"name": claim}]}} for claim in claims
                    ],
                },
                "status": {"phase": "Pending", **status},
            }
        )
        self.pods.bind(pod)
        return pod

    def tried(self, seconds: float) -> dict[str, int]:
        """Pod → how often, while so much time goes by."""
        counts: dict[str, int] = {}
        for _ in range(int(seconds)):
            self.clock.pass_(1)
            self.pods.annotations.clear()
            self.again.look()
            for uid, written in self.pods.annotations.items():
                assert written == {PREPARE_AGAIN: str(int(self.clock.now() * 1000))}
                counts[uid.removeprefix("uid-")] = counts.get(uid.removeprefix("uid-"), 0) + 1
        return counts


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_that_waits_is_tried_after_some_seconds_and_then_less_often(node: Node) -> None:
    node.bind("waits", "a")
    assert node.tried(1) == {}
    assert node.tried(FIRST_SECONDS) == {"waits": 1}
    assert node.tried(60) == {"waits": 4}  # 3, 6, 12, 24 s after one another
    assert node.tried(20 * LONGEST_SECONDS) == {"waits": TRIES - 5}


def test_a_pod_that_waited_before_the_driver_was_registered_is_tried_at_once(node: Node) -> None:
    node.registrations = 0
    node.bind("waits", "a")
    assert node.tried(30) == {}
    node.registrations = 1
    assert node.tried(1) == {}, "it is the registration that it has acted upon"
    node.registrations = 2
    assert node.tried(1) == {"waits": 1}


def test_who_has_what_it_needs_is_left_alone(node: Node) -> None:
    running = [{"name": "c-a", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
    node.bind("runs", "a", phase="Running", containerStatuses=running)
    node.bind("ended", "b", phase="Failed")
    node.bind("plain")
    node.bind("ready", "c")
    node.prepared.add(("ml", "c"))
    node.bind("gone", "d")
    node.pods.forget("ml/gone")
    assert node.tried(30) == {}


def test_claims_of_other_drivers_are_theirs(node: Node) -> None:
    node.bind("other", "nic", ours=False)
    node.bind("both", "gpu")
    assert node.tried(30).keys() == {"both"}


def test_a_pod_is_tried_once_the_api_server_answers_again(node: Node) -> None:
    node.bind("waits", "a")
    node.claims.away = True
    assert node.tried(30) == {}
    node.claims.away = False
    assert node.tried(1) == {"waits": 1}


def test_a_prepared_claim_ends_it(node: Node) -> None:
    node.bind("waits", "a", "b")
    node.prepared.add(("ml", "a"))
    assert node.tried(10) == {"waits": 2}
    node.prepared.add(("ml", "b"))
    assert node.tried(60) == {}
