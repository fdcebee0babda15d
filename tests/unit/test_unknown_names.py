"""A name that is misspelt, or another system's, is named together with the one that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, FOREIGN_RESOURCES, MEMORY, POD_ANNOTATIONS, PREDICATE_INDEX
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.legal_values import warn_pod
from gpu_manager.domain.rules.rulebook import Rule
from gpu_manager.domain.rules.unknown_names import uncounted


def warned(limits: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, str]:
    obj = {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    names = (Rule.RESOURCE_UNKNOWN, Rule.ANNOTATION_UNKNOWN)
    return {v.field: v.message for v in warn_pod(parse_pod(obj)) if v.rule in names}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("tencent.com/vcuda-cores", CORE),
        ("tencent.com/vcuda_core", CORE),
        ("tencent.com/vcuda-mem", MEMORY),
        ("tencent.com/vcuda-memroy", MEMORY),
        ("tencent.com/cuda-core", CORE),
    ],
)
def test_a_misspelt_resource_is_named_with_the_one_that_was_meant(written: str, meant: str) -> None:
    assert warned({written: 30})[written].endswith(f"is no resource of this system: did you mean {meant}?")


def test_what_is_like_no_name_is_named_without_a_guess() -> None:
    assert warned({"tencent.com/rdma": 1})["tencent.com/rdma"].endswith("is no resource of this system")


@pytest.mark.parametrize("name", FOREIGN_RESOURCES)
def test_what_other_systems_share_cards_by_is_named(name: str) -> None:
    assert "but another's: ask for tencent.com/vcuda-core" in warned({name: 1})[name]


def test_annotations_are_looked_at_too() -> None:
    found = warned({}, {"tencent.com/vcuda-core-limits": "80", "tencent.com/x": "1", "example.com/gpu": "1"})
    assert found["tencent.com/vcuda-core-limits"].endswith("did you mean tencent.com/vcuda-core-limit?")
    assert set(found) == {"tencent.com/vcuda-core-limits", "tencent.com/x"}


def test_known_names_and_others_resources_are_in_order() -> None:
    known = {**dict.fromkeys(POD_ANNOTATIONS, "1"), f"{PREDICATE_INDEX}0": "1"}
    assert not warned({CORE: 30, MEMORY: 4, "nvidia.com/gpu": 1, "cpu": 1, "example.com/x": 1}, known)


def test_thousands_of_names_do_not_make_thousands_of_warnings() -> None:
    many = {f"tencent.com/n{i}": 1 for i in range(5000)}
    assert len(warned(many, dict.fromkeys(many, "1"))) <= 16
    assert not warned({"tencent.com/" + "x" * 400: 1}, {"tencent.com/" + "x" * 400: "1"})


def test_a_bound_of_a_system_that_does_not_know_cards_is_named() -> None:
    pool = {"kind": "NodePool", "spec": {"limits": {"cpu": "100", CORE: 800}}}
    (one,) = uncounted(pool)
    assert (one.rule, one.field) == (Rule.RESOURCE_UNCOUNTED, CORE)
    assert "Karpenter" in one.message
    policies = [
        {"containerName": "a", "maxAllowed": {CORE: 50}},
        {"containerName": "b", "minAllowed": {MEMORY: 4}, "maxAllowed": {"cpu": "1"}},
    ]
    scaler = {"kind": "VerticalPodAutoscaler", "spec": {"resourcePolicy": {"containerPolicies": policies}}}
    assert [one.field for one in uncounted(scaler)] == [CORE, MEMORY]
    assert list(uncounted({**pool, "kind": "Deployment"})) == []


def test_amounts_of_a_whole_pod_are_refused_with_the_cure() -> None:
    obj = {
        "metadata": {"name": "p"},
        "spec": {"resources": {"limits": {MEMORY: 4}}, "containers": [{"name": "c"}]},
    }
    with pytest.raises(RequestInvalid, match="no whole pod asks for"):
        parse_pod(obj)
