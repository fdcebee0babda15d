"""Which Evictions and Events the accounts of agent and evictor may write, judged as the API server would: by CEL.

The whole table of :mod:`tests.deploy.rights` runs where a real API server is built.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpu_manager.domain import contract
from gpu_manager.domain.contract import EVENT_EVADER, EVENT_EVICTED
from tests.deploy.chart import CHART, helm, the
from tests.fakes.cel import Policy

OF_AGENTS = [
    text for name, text in vars(contract).items() if name.startswith("EVENT_") and text.startswith("Vcuda")
]

AGENT, EVICTOR = (f"system:serviceaccount:kube-system:gpu-manager{end}" for end in ("", "-evictor"))
NODE_CLAIM = "authentication.kubernetes.io/node-name"
BY_UID = {"preconditions": {"uid": "u"}}


def policy(name: str) -> Policy:
    return judge(the("defaults", "ValidatingAdmissionPolicy", name))


def judge(obj: dict[str, Any]) -> Policy:
    return Policy({"variables": [], **obj["spec"]})


def refused(by: Policy, user: str, resource: str, obj: dict[str, Any], namespace: str = "team") -> bool:
    request = {
        "operation": "CREATE",
        "userInfo": {"username": user, "extra": {NODE_CLAIM: ["n1"]}},
        "resource": {"resource": resource},
        **({"subResource": "eviction"} if resource == "pods" else {}),
        "namespace": namespace,
        "object": obj,
    }
    assert by.matches(request)
    return bool(by.refusals(request))


@pytest.mark.parametrize(
    ("options", "namespace", "is_refused"),
    [
        (BY_UID, "team", False),
        (BY_UID, "kube-system", True),
        ({**BY_UID, "gracePeriodSeconds": 0}, "team", True),
        ({"preconditions": {}}, "team", True),
        ({}, "team", True),
    ],
)
def test_an_eviction_is_of_one_certain_pod_outside_the_system(
    options: dict[str, Any], namespace: str, is_refused: bool
) -> None:
    alone = helm("template", "x", str(CHART), "-n", "kube-system", "--set=admission.enabled=false").stdout
    (agents,) = (
        o
        for o in yaml.safe_load_all(alone)
        if o and o["kind"].endswith("AdmissionPolicy") and "evictions" in str(o)
    )
    eviction = {"metadata": {"name": "p"}, "deleteOptions": options}
    assert refused(policy("vcuda-evictions"), EVICTOR, "pods", eviction, namespace) == is_refused
    assert refused(judge(agents), AGENT, "pods", eviction, namespace) == is_refused, "where it has the right"


def event(
    component: str, reason: str, kind: str = "Pod", name: str = "p", host: str = "n1"
) -> dict[str, Any]:
    return {
        "source": {"component": component, "host": host},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
    }


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        (event("gpu-manager-evictor", EVENT_EVICTED), False),
        (event("gpu-manager-evictor", EVENT_EVADER), True),
        (event("gpu-manager", EVENT_EVICTED), True),
        (event("gpu-manager-evictor", EVENT_EVICTED, "Node"), True),
        ({"reason": EVENT_EVICTED}, True),
    ],
)
def test_the_evictor_tells_of_evictions_alone(given: dict[str, Any], is_refused: bool) -> None:
    assert refused(policy("vcuda-evictor-events"), EVICTOR, "events", given) == is_refused


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        *((event("gpu-manager", reason), False) for reason in OF_AGENTS),
        (event("gpu-manager", EVENT_EVADER, "Node", "n1"), False),
        (event("gpu-manager", EVENT_EVADER, "Node", "n2"), True),
        (event("gpu-manager", EVENT_EVADER, "ConfigMap", "n1"), True),
        (event("gpu-manager", "Killing"), True),
        (event("gpu-manager", EVENT_EVADER, host="n2"), True),
        (event("kubelet", EVENT_EVADER), True),
    ],
)
def test_an_agent_tells_of_pods_and_its_own_node_for_our_reasons_alone(
    given: dict[str, Any], is_refused: bool
) -> None:
    assert refused(policy("vcuda-agent-events"), AGENT, "events", given) == is_refused
