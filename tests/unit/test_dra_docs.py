"""The table of docs/internals/dra-cases.md: what claims do not go with is said in these words."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from admission.cluster.claims import CLAIMS, CLASSES, slim_claim, slim_class
from gpu_manager.cli.kubectl.defrag import CLAIMS_UNPLANNED
from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.contract import DRA_DRIVER, INVENTORY, Inventory, encode_inventory
from gpu_manager.domain.dra.parameters import API_VERSION, KIND, read_config, terms_of
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.rules.legal_values import warn_pod
from gpu_manager.domain.topology import Link, Topology
from tests.fakes.extender import UNIT, World, node, pod, uuid
from tests.fakes.feature_tables import feature_rows, sentences_of
from tests.fakes.written import container, pod_of
from tests.unit import test_claim_priorities, test_claim_quota, test_pod_claims, test_resize_docs
from tests.unit.test_cluster_claims import CLASS, claim, part
from tests.unit.test_explained_claims import explained, held, waiting, world

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/internals/dra-cases.md").read_text(encoding="utf-8")


def waits_behind_another() -> str:
    made = world(claim("a", held("n1", 0, 60)), claim("w", asks=part(50, "4Gi")), nodes=[CLAIMED])
    return explained(made, waiting("w", priority=1000)).nodes[0].line


def over_the_quota() -> str:
    service = test_claim_quota.Service({"team": {"quota": {"T4": 1}}})
    assert service.create(test_claim_quota.claim("a", **test_claim_quota.part(60))) == ""
    return service.create(test_claim_quota.claim("b", **test_claim_quota.part(50)))


def below_its_cores() -> str:
    told = {"apiVersion": API_VERSION, "kind": KIND, "coreLimit": 20}
    entry = {"source": "FromClaim", "requests": ["gpu"], "opaque": {"driver": DRA_DRIVER, "parameters": told}}
    with pytest.raises(RequestInvalid) as refused:
        terms_of(read_config([entry]), "gpu", 30)
    return str(refused.value)


def with_a_priority() -> str:
    (warning,) = warn_pod(pod_of(container("c"), vcuda_priority="protected"))
    made = test_claim_priorities.asking("a", test_claim_priorities.PROTECTED, count=1)
    whole = test_claim_quota.Service(None).create(made)
    asked = test_claim_priorities.asking("a", test_claim_priorities.PROTECTED)
    return "\n".join((warning.message, whole, test_claim_quota.Service(None).create(asked)))


def in_mig_mode() -> str:
    obj = node("n1", 1, claimed=[0])
    state = CardState(Card(0, uuid("n1", 0), "A100", 16 * GIB, mig=True), held=DRA_DRIVER)
    inventory = Inventory(UNIT, (state,), Topology.uniform(1, Link.parse("PHB")))
    obj["metadata"]["annotations"][INVENTORY] = encode_inventory(inventory)
    made = World([obj])
    made.cluster.replace(CLASSES, [slim_class(CLASS)])
    made.cluster.replace(CLAIMS, [slim_claim(claim("w"))])
    return explained(made, waiting("w")).nodes[0].line


def twice_in_one() -> str:
    two = test_pod_claims.template("two", a=test_pod_claims.OURS, b=test_pod_claims.OURS)
    asked = test_pod_claims.pod({"g": "two"}, train=[("g", "a"), ("g", "b")])
    return test_pod_claims.judged(asked, two).message


def by_extended_resources() -> str:
    made = World([CLAIMED])
    asked = pod("p", 30, 4)
    made.create(asked)
    return str(made.filter(asked))


CLAIMED: Final = node("n1", 1, claimed=[0])
SAID: Final = {
    "preemption": waits_behind_another,
    "quota": over_the_quota,
    "ceiling": below_its_cores,
    "priority inside the card": with_a_priority,
    "resize": lambda: test_resize_docs.refused(test_resize_docs.by_claim()),
    "MIG": in_mig_mode,
    "`defrag`": lambda: CLAIMS_UNPLANNED,
    "two parts in one container": twice_in_one,
    "extended resources on such a node": by_extended_resources,
}
"""Feature → what is said."""

ABSENT: Final = {"gangs"}
"""What neither front has, so that nothing is said of it."""


@pytest.mark.parametrize("feature", SAID)
def test_each_refusal_of_the_table_is_said(feature: str) -> None:
    quoted = sentences_of(feature_rows(PAGE)[feature])
    assert quoted
    text = SAID[feature]()
    for sentence in quoted:
        assert sentence in text


def test_every_feature_of_the_table_has_its_words() -> None:
    assert set(feature_rows(PAGE)) == {*SAID, *ABSENT}
