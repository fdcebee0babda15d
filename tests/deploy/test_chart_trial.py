"""What ``helm test`` runs: a request that admission refuses, a look for room, a share that is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from admission.config import ClusterTerms
from admission.webhook.admission_review import parse_review
from admission.webhook.admit import validate
from gpu_manager.domain import contract
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.pod_request import judged_request
from tests.deploy.chart import CHART, SETS, agent_pod, helm, of_kind, the


def test_helms_test_asks_what_admission_refuses() -> None:
    scope: dict[str, Any] = {"__name__": "reach"}
    exec((CHART / "files" / "reach.py").read_text(), scope)
    verdict = validate(parse_review(json.dumps(scope["ILLEGAL"]).encode()), ClusterTerms())
    assert not verdict.allowed
    assert "multiple of 100" in verdict.message
    script, agents, admission = the("defaults", "Pod", "gpu-manager-test")["spec"]["containers"][0]["args"]
    compile(script, "reach", "exec")
    assert (agents, admission) == (
        "gpu-manager-metric.kube-system.svc",
        "gpu-quota-admission.kube-system.svc",
    )
    clustered = the("cluster", "Pod", "gpu-manager-test")["spec"]["containers"][0]["args"]
    assert clustered[3:] == [
        the("cluster", "Service", "gpu-quota-admission-extender")["metadata"]["name"] + ".kube-system.svc"
    ]


@pytest.mark.parametrize("name", SETS)
def test_helms_test_asks_for_a_share_that_the_rules_allow_and_the_scheduler_knows(name: str) -> None:
    obj = the(name, "Pod", "gpu-manager-test-share")
    pod, terms = parse_pod(obj), the(name, "ConfigMap", "gpu-manager-terms")["data"]
    unit = int(terms["VCUDA_MEMORY_UNIT"])
    (one,) = judged_request(pod, unit, int(terms["VCUDA_MINIMUM_CORES"])).containers
    (container,) = obj["spec"]["containers"]
    assert int(container["args"][1]) == one.request.memory == unit
    scheduler = [o["spec"] for o in of_kind(name, "Deployment")]
    given = [a for s in scheduler for a in s["template"]["spec"]["containers"][0]["args"]]
    wanted = pod.scheduler and f"--scheduler-name={pod.scheduler}"
    assert wanted in given or (not wanted and not [a for a in given if a.startswith("--scheduler-name")])


@pytest.mark.parametrize("name", SETS)
def test_helms_test_looks_for_room_before_it_waits_for_it_and_keeps_its_logs(name: str) -> None:
    """Pods that Helm 3 deletes after a success have no log any more when `--logs` asks for it."""
    tests = {o["metadata"]["name"].removeprefix("gpu-manager-test"): o for o in of_kind(name, "Pod")}
    notes = {part: o["metadata"]["annotations"] for part, o in tests.items()}
    assert sorted(notes, key=lambda part: int(notes[part].get("helm.sh/hook-weight", 0))) == [
        "",
        "-room",
        "-share",
    ]
    assert {n["helm.sh/hook-delete-policy"] for n in notes.values()} == {"before-hook-creation"}
    looks, takes = (tests[part]["spec"]["containers"][0] for part in ("-room", "-share"))
    compile(looks["args"][0], "room", "exec")
    assert looks["args"][2] == str(takes["resources"]["limits"][contract.CORE])
    assert looks["args"][3] == takes["args"][1]
    secret = [m["secret"]["secretName"] for m in agent_pod(name)["volumes"] if "secret" in m]
    assert [e["valueFrom"]["secretKeyRef"]["name"] for e in looks.get("env", [])] == secret


def test_helms_test_asks_for_a_whole_card_where_no_part_is_given() -> None:
    done = helm("template", "x", str(CHART), "-n", "kube-system", "--set=terms.minimumCores=100")
    (obj,) = (
        o for o in yaml.safe_load_all(done.stdout) if o and o["metadata"]["name"].endswith("-test-share")
    )
    (one,) = judged_request(parse_pod(obj), DEFAULT_UNIT, 100).containers
    assert (one.request.cards, obj["spec"]["containers"][0]["args"][1]) == (1, "0")
