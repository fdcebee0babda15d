"""A namespace that its quota makes best-effort: what the webhook writes into its pods, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from admission.webhook.admit import CreateTimeChecks, mutate
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT as UNIT
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import World, node
from tests.fakes.extender import pod as made_pod
from tests.fakes.reviews import ask, container, patched, review
from tests.fakes.reviews import pod as new_pod

BEST_EFFORT = CreateTimeChecks(best_effort=lambda _: True)


def written(core: str, checks: CreateTimeChecks = BEST_EFFORT, **more: Any) -> str | None:
    """The priority of a new pod as ``/mutate`` leaves it."""
    before = new_pod(container("main", core=core, **({"memory": "4"} if int(core) < 100 else {})), **more)
    response = ask(lambda r, terms: mutate(r, terms, checks), review(before))
    after = patched(before, response)
    again = ask(lambda r, terms: mutate(r, terms, checks), review(after))
    assert patched(after, again) == after, "the API server may ask twice"
    return after.get("metadata", {}).get("annotations", {}).get(PRIORITY)


@pytest.mark.parametrize("more", [{}, {"annotations": {"mine": "kept"}}])
def test_a_fraction_is_written_best_effort(more: dict[str, Any]) -> None:
    assert written("30", **more) == "best-effort"
    assert written("30", CreateTimeChecks(), **more) is None


def test_whole_cards_have_no_priority_and_what_is_written_stays() -> None:
    assert written("100") is None
    assert written("30", annotations={PRIORITY: "normal"}) == "normal"


@pytest.mark.parametrize(
    ("annotations", "refused"),
    [({}, False), ({PRIORITY: "best-effort"}, False), ({PRIORITY: "normal"}, True)],
)
def test_another_priority_is_refused(annotations: dict[str, str], refused: bool) -> None:
    world = World([node("n1")], quota={"a": {"priority": "best-effort"}})
    checks = create_time_checks(world.cluster, world.quota, world.judge, world.clock)
    assert checks.best_effort("a")
    assert not checks.best_effort("b")
    pod = parse_pod(made_pod("p", 30, 4, namespace="a", annotations=annotations))
    reasons = checks.refuse(pod, judged_request(pod, UNIT))
    assert bool(reasons) is refused
    if refused:
        assert "leave it out" in reasons[0]
