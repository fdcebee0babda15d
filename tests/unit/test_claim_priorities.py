"""Priorities of ResourceClaims in the books of the cluster: the right to protected shares, who is beside whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from admission.cluster.claims import CLAIMS, CLASSES, AdmittedSums, slim_claim, slim_class
from admission.cluster.snapshot import ClusterState
from admission.quota.claims_quota import ClaimCreations
from gpu_manager.domain.cluster.claims import read_claim
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import parse_allocated_claim
from gpu_manager.domain.dra.claim import parse_claim_spec
from gpu_manager.domain.dra.demand import judged_terms
from gpu_manager.domain.dra.parameters import API_VERSION, KIND, read_config
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from sandbox.claims import allocated_config
from tests.fakes.extender import UNIT, World, node, pod
from tests.unit import test_cluster_claims as books
from tests.unit.test_admission_metrics import shown, watched
from tests.unit.test_claim_quota import CLASS, T4, V100, Record, Replica, Service, claim, part
from tests.unit.test_explained_claims import explained, waiting


def says(*requests: str, **said: object) -> dict[str, Any]:
    """An entry of ``config``: these parameters for the named requests, or for all."""
    told = {"apiVersion": API_VERSION, "kind": KIND, **said}
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": DRA_DRIVER, "parameters": told}}


def asking(name: str, *config: dict[str, Any], **exactly: Any) -> dict[str, Any]:
    """A claim that is to be created, with parameters."""
    made = claim(name, **(exactly or part(30)))
    made["spec"]["devices"]["config"] = list(config)
    return made


def held(made: World) -> dict[str, Amount]:
    return dict(made.cluster.snapshot().protected.get("ml", {}))


def allocated(name: str, *results: dict[str, Any], config: object = (), **more: Any) -> dict[str, Any]:
    made = books.claim(name, *results, **more)
    made["status"]["allocation"]["devices"]["config"] = config
    return made


PROTECTED = says(priority="protected")


def class_with(config: dict[str, Any]) -> dict[str, Any]:
    spec: Any = CLASS["spec"]
    return {**CLASS, "spec": {**spec, "config": [config]}}


OF_CLASS = class_with(PROTECTED)


# The right to protected shares.


def test_a_protected_claim_needs_the_right_also_where_nothing_else_is_limited() -> None:
    service = Service({"other": {"quota": {"T4": 1}}})
    assert service.create(asking("a", PROTECTED)) == (
        'ExceedsGPUQuota: namespace "team": protected shares of model "Tesla-T4" are not granted to it (none '
        'are): an operator grants them in its quota (ConfigMap kube-system/gpuquota), under "protected". A claim counts from its creation, at the '
        "most that it may take"
    )
    assert service.create(asking("b", says(priority="best-effort"))) == ""
    assert service.create(asking("c")) == ""


def test_the_right_is_used_up_by_pods_and_claims_together() -> None:
    service = Service({"team": {"protected": {"T4": 0.5}}}, node("n1", claimed=[0]), node("n2"))
    assert service.create(asking("a", PROTECTED)) == ""
    assert service.create(asking("b", PROTECTED)).startswith(
        'ExceedsGPUQuota: namespace "team": 0.5 cards of T4 protected, 0.3 used or being bound, 0.3 asked: 0.2 '
        "would still fit"
    )
    mine = pod("p", 30, 4, namespace="team", annotations={"tencent.com/vcuda-priority": "protected"})
    service.world.create(mine)
    assert "0.5 cards of T4 protected, 0.3 used" in str(service.world.filter(mine))
    assert service.create(asking("c", PROTECTED, **part(20))) == ""


def test_both_sides_of_the_quota_are_held_to_and_each_to_its_own_sum() -> None:
    service = Service({"team": {"quota": {"T4": 1}, "protected": {"T4": 0.3}}})
    assert service.create(asking("a", PROTECTED)) == ""
    assert service.create(asking("b", **part(60))) == ""
    text = service.create(asking("c", PROTECTED, **part(20)))
    assert "0.3 cards of T4 protected, 0.3 used or being bound, 0.2 asked: 0 would still fit" in text
    assert "1 card of T4, 0.9 used or being bound, 0.2 asked: 0.1 would still fit" in text


def test_every_model_that_a_protected_claim_may_be_given_has_to_be_granted() -> None:
    nodes = [node("n1", claimed=[0]), node("n2", claimed=[0], model=V100)]
    service = Service({"team": {"protected": {"T4": 1}}}, *nodes)
    assert 'protected shares of model "Tesla-V100" are not granted to it (T4)' in service.create(
        asking("a", PROTECTED)
    )
    assert service.create(claim("b", T4, **part(30))) == ""
    everywhere = Service({"team": {"protected": {"*": 0.3}}}, *nodes)
    assert everywhere.create(asking("a", PROTECTED)) == ""
    assert "0.3 cards of all models protected, 0.3 used" in everywhere.create(asking("b", PROTECTED))


def test_without_a_card_for_claims_nothing_is_granted_either() -> None:
    service = Service(None, node("n1"))
    assert "protected shares are not granted to it (none are)" in service.create(asking("a", PROTECTED))


def test_what_a_class_says_is_judged_and_the_claims_word_counts_over_it() -> None:
    service = Service(None)
    service.world.cluster.replace(CLASSES, [slim_class(OF_CLASS)])
    assert "are not granted" in service.create(asking("a"))
    assert service.create(asking("b", says(priority="normal"))) == ""
    assert service.create(asking("c", count=2)) == "", "whole cards have no priority"
    broken = class_with(says(priority="high"))
    service.world.cluster.apply(CLASSES, "MODIFIED", slim_class(broken))
    assert service.create(asking("d")) == "", "nothing of it is prepared"
    service.world.cluster.apply(CLASSES, "DELETED", slim_class(OF_CLASS))
    assert service.create(asking("e")) == ""
    service.world.cluster.apply(CLASSES, "ADDED", slim_class(OF_CLASS))
    service.world.cluster.replace(CLASSES, [])
    assert service.create(asking("f")) == ""


def test_one_protected_alternative_counts_at_the_most() -> None:
    service = Service({"team": {"protected": {"T4": 0.5}}})
    made = asking("a", says("gpu/small", priority="protected"))
    alternatives = [
        {"name": name, "deviceClassName": DRA_DRIVER, **part(cores)}
        for name, cores in (("large", 50), ("small", 20))
    ]
    made["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    assert service.create(made) == ""
    assert "0.5 used or being bound" in service.create(asking("b", PROTECTED, **part(1)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (says(priority="Protected"), 'priority is "Protected": use protected'),
        (says(preload="false"), 'preload is "false": use true or false, without quotes'),
        (says(coreLimit=20), "coreLimit is 20, below the 30 cores"),
        (says(limit=20), "which has coreLimit, priority and preload"),
    ],
)
def test_parameters_that_cannot_hold_are_refused_when_the_claim_is_created(
    config: dict[str, Any], text: str
) -> None:
    assert text in Service(None).create(asking("a", config))
    foreign = asking("b", config)
    foreign["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    assert Service(None).create(foreign) == ""


def test_a_priority_of_whole_cards_is_refused_by_request_or_alternative() -> None:
    service = Service({"team": {"protected": {"T4": 9}}})
    assert 'request "gpu" is given whole cards' in service.create(asking("a", PROTECTED, count=1))
    made = asking("b", PROTECTED)
    whole = {"name": "whole", "deviceClassName": DRA_DRIVER}
    made["spec"]["devices"]["requests"] = [
        {"name": "gpu", "firstAvailable": [{"name": "part", "deviceClassName": DRA_DRIVER, **part(5)}, whole]}
    ]
    assert 'request "gpu/whole" is given whole cards' in service.create(made)


def test_before_claims_are_known_a_protected_one_is_asked_for_again() -> None:
    service = Service(None)
    world = service.world
    early = ClaimCreations(ClusterState(UNIT), world.quota, world.clock, lambda: True, lambda: True)
    found = early.refuse(asking("a", PROTECTED), "team", dry_run=False)
    assert found is not None
    assert found.again
    assert early.refuse(asking("b"), "team", dry_run=False) is None


def test_a_new_leader_knows_which_part_may_be_protected() -> None:
    record = Record()
    quota = {"team": {"quota": {"T4": 2}, "protected": {"T4": 0.5}}}
    first, second = Replica(record, quota), Replica(record, quota)
    first.look()
    assert first.service.create(asking("a", PROTECTED)) == ""
    assert first.service.create(asking("b")) == ""
    second.look()
    assert "0.5 cards of T4 protected, 0.3 used" in second.service.create(asking("c", PROTECTED))
    assert second.world.cluster.snapshot().used["team"][T4].cores == 60
    sums = second.world.cluster.claims.admitted_sums()
    share = {T4: Amount(30, 4 * GIB)}
    assert sums == {
        PodUid("uid-a"): AdmittedSums("team", share, share),
        PodUid("uid-b"): AdmittedSums("team", share),
    }


# What is asked for is what is held.

ranks = st.fixed_dictionaries({}, optional={"priority": st.sampled_from([one.value for one in Priority])})
named = st.lists(st.sampled_from(["a", "b", "a/x", "a/y"]), max_size=3, unique=True)


def class_says(name: str, said: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    return [says(**said[name])] if name in said else []


@given(
    st.dictionaries(st.sampled_from(["one", "two"]), ranks),
    st.lists(st.tuples(named, ranks), max_size=4),
    st.lists(st.sampled_from(["one", "two"]), min_size=3, max_size=3),
    st.lists(st.sampled_from([{}, part(20)]), min_size=3, max_size=3),
    st.sampled_from(["x", "y"]),
)
def test_what_is_judged_at_creation_is_the_priority_that_the_allocation_has(
    said: dict[str, dict[str, str]],
    config: list[tuple[list[str], dict[str, str]]],
    classes: list[str],
    sizes: list[dict[str, Any]],
    picked: str,
) -> None:
    shapes = [{"deviceClassName": cls, **size} for cls, size in zip(classes, sizes, strict=True)]
    alternatives = [{"name": name, **one} for name, one in zip("xy", shapes, strict=False)]
    written = {
        "devices": {
            "requests": [{"name": "a", "firstAvailable": alternatives}, {"name": "b", "exactly": shapes[2]}],
            "config": [says(*requests, **told) for requests, told in config],
        }
    }
    spec = parse_claim_spec(written)
    class_config = {
        name: tuple(replace(one, of_class=True) for one in read_config(class_says(name, said)))
        for name in ("one", "two")
    }
    chosen = {f"a/{picked}": sizes["xy".index(picked)], "b": sizes[2]}
    results = [
        {**books.held("n1", n, 20 if size else 100), "request": name}
        for n, (name, size) in enumerate(chosen.items())
    ]
    allocation = allocated_config(written, chosen, lambda name: class_says(name, said))
    obj = allocated("c", *results, config=allocation)
    requests = {one.name: one for alternatives in spec.requests for one in alternatives if one.name in chosen}
    try:
        asked = {name: judged_terms(one, spec, class_config).priority for name, one in requests.items()}
    except RequestInvalid:
        with pytest.raises(RequestInvalid):
            parse_allocated_claim(obj, DEFAULT_UNIT)
        return
    prepared = parse_allocated_claim(obj, DEFAULT_UNIT)
    booked = read_claim(obj)
    assert booked is not None
    for name, priority in asked.items():
        base = name.partition("/")[0]
        assert prepared.terms_of(base).priority is priority
        assert [one.priority for one in booked.devices if one.request == base] == [priority]


# What is held.


def test_an_allocated_claim_holds_protected_shares_of_its_own_namespace() -> None:
    made = books.world()
    made.cluster.apply(
        CLAIMS,
        "ADDED",
        slim_claim(allocated("c", books.held("n1", 0), books.held("n1", 1, 20), config=[PROTECTED])),
    )
    assert held(made) == {T4: Amount(50, 8 * GIB)}
    ledger = made.cluster.snapshot().nodes["n1"].ledger
    assert [one.priority for one in ledger.claims] == [Priority.PROTECTED]
    assert ledger.prioritised
    made.cluster.apply(CLAIMS, "MODIFIED", slim_claim(allocated("c", books.held("n1", 0))))
    assert held(made) == {}


@pytest.mark.parametrize(
    ("config", "priority"),
    [
        ([says("gpu", priority="best-effort")], Priority.BEST_EFFORT),
        ([says("other", priority="best-effort")], Priority.NORMAL),
        ([{**PROTECTED, "source": "FromClass"}], Priority.PROTECTED),
        ([{**PROTECTED, "source": "FromClass"}, says(priority="normal")], Priority.NORMAL),
        ([says(priority="high")], Priority.NORMAL),  # nothing of it is prepared
        ("config", Priority.NORMAL),
    ],
)
def test_the_books_read_an_allocation_as_the_agent_does(config: object, priority: Priority) -> None:
    obj = allocated("c", books.held("n1", 0), config=config)
    for seen in (read_claim(obj), read_claim(slim_claim(obj))):
        assert seen is not None
        assert [one.priority for one in seen.devices] == [priority]


def test_a_claim_whose_requests_differ_is_a_neighbour_of_both_kinds() -> None:
    made = books.world()
    config = [says("a", priority="protected"), says("b", priority="best-effort")]
    parts = [{**books.held("n1", 0), "request": name} for name in "ab"]
    made.cluster.apply(CLAIMS, "ADDED", slim_claim(allocated("c", *parts, config=config)))
    made.cluster.apply(
        CLAIMS, "ADDED", slim_claim(allocated("d", books.held("n1", 0, 10), config=[PROTECTED]))
    )
    line = explained(made, replace_claim(waiting("p"), "d")).line
    assert line.endswith(
        "Priority protected, but not from 1 protected tenant beside it: best-effort tenants alone wait"
    )


def replace_claim(obj: dict[str, Any], name: str) -> dict[str, Any]:
    obj["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name}]
    return obj


def test_explain_says_what_a_claims_priority_is_worth() -> None:
    made = books.world()
    for name, priority in (("a", "protected"), ("b", "best-effort")):
        obj = allocated(name, books.held("n1", 0, 30), config=[says(priority=priority)])
        made.cluster.apply(CLAIMS, "ADDED", slim_claim(obj))
    asked = replace_claim(waiting("p"), "a")
    assert "claim a holds 30 cores, 4 GiB of card 0 on n1. Priority protected" in explained(made, asked).line


def test_explain_of_a_pod_that_waits_knows_the_priority_of_its_claim_and_of_those_beside_it() -> None:
    made = books.world(node("n1", 1, claimed=[0]))
    made.cluster.apply(CLAIMS, "ADDED", slim_claim(allocated("h", books.held("n1", 0), config=[PROTECTED])))
    for name, config in (("b", [says(priority="best-effort")]), ("n", [])):
        obj = books.claim(name, asks=part(50))
        obj["spec"]["devices"]["config"] = config
        made.cluster.apply(CLAIMS, "ADDED", slim_claim(obj))
    waits = explained(made, replace_claim(waiting("p"), "b"))
    assert waits.asks == "claim b, request gpu: 50 cores, 4 GiB of one card, best-effort"
    assert "on n1 it would get 50 cores, 4 GiB of card 0. Priority best-effort" in waits.line
    normal = explained(made, replace_claim(waiting("p"), "n"))
    assert normal.asks == "claim n, request gpu: 50 cores, 4 GiB of one card"
    assert normal.line.endswith("Priority normal: 1 protected tenant beside it has no protection from it")


def test_protected_pods_by_claims_are_counted_and_those_that_nothing_protects() -> None:
    made = books.world()
    two = allocated("a", books.held("n1", 0, 30), config=[PROTECTED], pods=("x", "y"))
    made.cluster.apply(CLAIMS, "ADDED", slim_claim(two))
    made.cluster.apply(CLAIMS, "ADDED", slim_claim(allocated("n", books.held("n1", 0, 10))))
    registry = CollectorRegistry()
    watched(registry, made)
    assert shown(registry, "protected_pods", namespace="ml") == 2
    assert shown(registry, "unprotected_pods", namespace="ml") == 2


def test_parameters_of_a_claim_are_not_judged_for_what_only_looks_at_cards() -> None:
    service = Service(None)
    assert service.create(asking("a", says(priority="protected", coreLimit=1), adminAccess=True)) == ""
