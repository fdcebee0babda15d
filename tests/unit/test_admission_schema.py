"""The service called by its own OpenAPI document, with what the document allows and what it does not: no 5xx."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode

from admission.app import manifest_file
from admission.config import AdmissionSettings, ClusterTerms
from admission.console.agents_usage import AgentsUsage
from admission.console.history import ConsoleHistory
from admission.console.routes import console_routes
from admission.explain.caller_gate import CallerGate
from admission.explain.explain_api import ExplainSources, explain_routes
from admission.extender.fragmentation_score import LeastFragmentation
from admission.serving.metrics import AdmissionMetrics
from admission.serving.webhook_app import WebhookParts, build_app
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.runtime.inbound import AccessCheck, Reviews
from tests.fakes.extender import World, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_agents_usage import Agents

PATHS = 22  # of the document: a new one is called by itself, and this number says so


class Everyone(Reviews):
    """Whoever shows a token may see everything."""

    def who(self, token: str) -> dict[str, Any]:
        return {"username": "someone"}

    def may(self, user: Any, right: Any, namespace: str) -> bool:
        return True


def service() -> Any:
    world = World(
        [node("n1"), node("n2", inventory=False)],
        [pod("x", 80, 4, on="n1")],
        quota={"default": {"quota": {"T4": 1}}},
    )
    world.create(pod("late", 100, None))

    def fetch(namespace: str, name: str) -> dict[str, Any] | None:
        return pod(name[:63] or "x", namespace=namespace[:63] or "x") if len(name) % 2 else None

    clock = FakeClock()
    knowledge = ExplainSources(
        world.cluster, world.quota, world.judge, LeastFragmentation(world.cluster), ClusterTerms(), fetch
    )
    gate = CallerGate(AccessCheck(Everyone(), clock))
    agents = AgentsUsage(Agents(), clock)
    history = ConsoleHistory(agents, lambda _node: (), clock)
    doors = WebhookParts(
        AdmissionMetrics("1"),
        "1",
        lambda: {"certificate": True},
        lambda: False,
        create_time_checks(world.cluster, world.quota, world.judge, clock),
        (
            explain_routes(knowledge, gate),
            console_routes(
                knowledge, gate, agents, history, manifest_file, lambda *_: ((), False), lambda: 0.0, clock
            ),
        ),
        ensure=lambda _namespace, name, _spec: "it cannot" if name < "vcuda-8" else "",
    )
    return build_app(AdmissionSettings(), doors)


schema = schemathesis.openapi.from_asgi("/openapi.json", service())
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
bounded = settings(
    max_examples=int(os.environ.get("SCHEMA_EXAMPLES", "40")),
    suppress_health_check=list(HealthCheck),
)


@schema.parametrize()
@bounded
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client that schemathesis calls ASGI with
def test_whatever_the_document_leads_to_is_no_fault_of_ours(case: schemathesis.Case) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}):
        answer = case.call(headers=headers)
        assert answer.status_code < 500, (case.method, case.formatted_path, answer.status_code, answer.text)


def test_every_path_is_called() -> None:
    assert len(list(schema.get_all_operations())) == PATHS
