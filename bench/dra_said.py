"""What people are told of claims: shapes that Kubernetes would change in silence, and why a pod waits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.explain.claims import ClaimingPods
from bench.rows import Row
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resources import GIB
from tests.agreement.claim_cases import ILLEGAL, LEGAL, claim, template
from tests.deploy.chart import HELM, the
from tests.fakes.cel import Policy
from tests.fakes.claims import result
from tests.fakes.extender import UNIT, node
from tests.unit.test_cluster_claims import claim as stored_claim
from tests.unit.test_cluster_claims import device, part

_KINDS = {"vcuda-claims": claim, "vcuda-claim-templates": template}
_NODES, _MANY_NODES = 200, 1000
_CARDS = 8
_PODS = {False: 20, True: 100}
_LONGEST_SECONDS = 10.0


def rows(*, full: bool) -> Iterator[Row]:
    """Shapes judged wrong, and the slowest explanation."""
    yield _shapes(full=full)
    yield _explained("claim_explained_s", _NODES, full=full)
    yield _explained("claim_explained_1000_s", _MANY_NODES, full=full)


def _shapes(*, full: bool) -> Row:
    name, bar = "claim_shapes_wrong", "= 0"
    if not HELM.exists():
        return Row(name, None, "shapes", bar, full=full, note="helm is not there: make tools")
    wrong = 0
    for policy_name, made in _KINDS.items():
        policy = Policy(the("claims", "ValidatingAdmissionPolicy", policy_name)["spec"])

        def refusals(spec: dict[str, Any], policy: Policy = policy, made: Any = made) -> list[str]:
            found = policy.refusals({"operation": "CREATE", "object": made(spec, "c")})
            return [text for _, text in found]

        wrong += sum(bool(refusals(spec)) for spec in LEGAL.values())
        for spec, says in ILLEGAL.values():
            told = refusals(spec)
            wrong += len(told) != 1 or re.search(says, told[0]) is None
    note = (
        f"{len(ILLEGAL)} illegal shapes refused in one sentence with the nearest legal value, {len(LEGAL)} "
        "legal ones taken, as claims and as templates, by the chart's policies read as CEL; the same table "
        "on kube-apiserver 1.36.3 in tests/deploy"
    )
    return Row(name, wrong, "shapes", bar, full=full, note=note)


class _Voice:
    """Where Events go: when each pod's came."""

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.changed = threading.Condition()

    def event(self, pod: Pod, _reason: str, _message: str, *, warning: bool = True) -> None:
        with self.changed:
            self.came[pod.name] = time.monotonic()
            self.changed.notify_all()

    def wait_for(self, name: str) -> float | None:
        with self.changed:
            self.changed.wait_for(lambda: name in self.came, _LONGEST_SECONDS)
            return self.came.get(name)


def _explained(name: str, nodes: int, *, full: bool) -> Row:
    """From the watch's event that kube-scheduler found no node until the Event is handed to its writer."""
    voice, ended = _Voice(), threading.Event()
    pods = ClaimingPods(_cluster(nodes), voice, SystemClock(), 1)
    teller = threading.Thread(target=pods.run, args=(ended,), daemon=True)
    teller.start()
    took = []
    try:
        for number in range(_PODS[full]):
            began = time.monotonic()
            pods.look(_pod(number), gone=False, tells=True)
            came = voice.wait_for(f"p{number}")
            took.append(_LONGEST_SECONDS if came is None else came - began)
    finally:
        ended.set()
        teller.join()
    took.sort()
    note = (
        f"the worst of {len(took)} pods one after the other (median {took[len(took) // 2]:.2f}) in a cluster "
        f"of {nodes} nodes of {_CARDS} cards that claims fill; 0.3 s of it it waits whether the refusal "
        "stands; of many at once ten a second are told"
    )
    return Row(name, round(took[-1], 2), "s", "≤ 1", full=full, note=note)


def _cluster(nodes: int) -> ClusterState:
    cluster = ClusterState(UNIT)
    cluster.replace(NODES, [node(f"n{n}", _CARDS, claimed=range(_CARDS)) for n in range(nodes)])
    cluster.replace(PODS, [])
    selector = {"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}
    shown = {"metadata": {"name": DRA_DRIVER}, "spec": {"selectors": [selector]}}
    cluster.replace(CLASSES, [slim_class(shown)])
    claims = [
        stored_claim(
            f"c{n}-{index}",
            result(device(f"n{n}", index, _CARDS), 40 + index, 4 * GIB, pool=f"n{n}"),
        )
        for n in range(nodes)
        for index in range(_CARDS)
    ]
    claims += [stored_claim(f"w{number}", asks=part(70, "4Gi")) for number in range(_PODS[True])]
    cluster.replace(CLAIMS, [slim_claim(one) for one in claims])
    cluster.snapshot()  # the books are there long before a pod waits; changes are followed node by node
    return cluster


def _pod(number: int) -> dict[str, Any]:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": f"p{number}", "namespace": "ml", "uid": f"uid-{number}"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": f"w{number}"}],
            "containers": [{"name": "c"}],
        },
        "status": {"phase": "Pending", "conditions": [unscheduled]},
    }
