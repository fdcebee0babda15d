"""The table of docs/mig.md: each refusal is said in these words, each feature has its test."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.nvml.cards import DIVIDED
from gpu_manager.domain.card import CardState
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.mig import MigInstance, still_held
from gpu_manager.domain.placement.explain import closed_because
from gpu_manager.domain.rules.legal_values import check_pod
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.services.cards.health import VANISHED_INSTANCE
from tests.fakes.feature_tables import feature_rows, is_a_test, sentences_of
from tests.fakes.written import container, pod_of
from tests.unit.test_dra_docs import in_mig_mode
from tests.unit.test_mig import NODE, PARENT, SLICE, asks
from tests.unit.test_mig_instances import turned_off

PAGE: Final = (Path(__file__).parents[2] / "docs/mig.md").read_text(encoding="utf-8")


def refused(core: int, *more: object, **annotations: str) -> str:
    return "; ".join(fault.message for fault in check_pod(pod_of(container("c", core, *more), **annotations)))


def of_an_instance(**terms: object) -> str:
    cores = terms.pop("cores", 30)
    return closed_because(CardState(NODE[2]), asks(int(str(cores)), **terms))


def without_nodes() -> str:
    with pytest.raises(NodeUnready) as told:
        DeviceNodes(HostFiles(), "/", proc=Path("/nonexistent")).capabilities(0, MigInstance(PARENT, 7, 0))
    return str(told.value)


def lent() -> str:
    gpus = {"name": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    with pytest.raises(RequestInvalid) as told:
        bound_request(pod_of(gpus, gpu_model="1g.18gb").with_lent_cards())
    assert bound_request(pod_of(gpus, gpu_model="1g.18gb,H200").with_lent_cards()).containers
    return str(told.value)


SAID: Final = {
    "several instances in a container": lambda: (
        refused(200, gpu_model="1g.18gb") + of_an_instance(cores=200, models=("1g.18gb", "H200"))
    ),
    "[parts of several cards](several-cards.md)": lambda: refused(
        60, 40, gpu_model="1g.18gb", vcuda_cards="2"
    ),
    "a pod that names no instance": of_an_instance,
    "a pod that names a model without the profile": lambda: of_an_instance(models=("H200",)),
    "`nvidia.com/gpu` as a second name of whole cards": lent,
    "ResourceClaims (DRA)": in_mig_mode,
    "a UUID that is none": lambda: refused(30, 4, gpu_uuid=f"MIG-{PARENT}"),
    "compute instances that divide a GPU instance (`1c.3g.20gb`)": lambda: DIVIDED,
    "an instance whose device nodes are missing": without_nodes,
    "turned off while pods hold instances": turned_off,
    "a layout or mode that changes under pods": lambda: (
        VANISHED_INSTANCE + still_held(PARENT, None, [(SLICE, MigInstance(PARENT, 7, 0))])
    ),
}
"""Feature → what is said."""

TESTED: Final = {
    "elastic ceiling": "test_a_priority_and_a_ceiling_hold_inside_each_instance",
    "priority": "test_a_priority_and_a_ceiling_hold_inside_each_instance",
    "[resize](resize.md)": "test_a_share_of_an_instance_is_resized_within_the_instance",
    "quota": "test_quota_counts_an_instance_under_its_own_model",
    "graphics (`+gfx` profiles)": "test_an_instance_with_graphics_has_its_cards_drm_nodes_for_who_draws",
    "preemption, `explain`, `simulate`, `defrag`, `graph`, `top`": "test_eviction_makes_room_in_an_instance",
    "pods with several containers": "test_two_containers_have_an_instance_each_and_one_container_never_two",
    "an admission service one release older": "test_an_older_service_gives_no_instance_to_anybody",
    "a rollback to an older agent": "test_a_list_of_cards_with_instances_is_readable_by_an_older_agent",
}
"""Feature → the test that it works so."""


def test_every_feature_of_the_table_is_known_here() -> None:
    assert set(feature_rows(PAGE)) == SAID.keys() | TESTED.keys()


@pytest.mark.parametrize("feature", SAID)
def test_a_refusal_is_said_as_the_table_says_it(feature: str) -> None:
    sentences = sentences_of(feature_rows(PAGE)[feature])
    message = SAID[feature]()
    assert sentences
    assert [text for text in sentences if text not in message] == []


@pytest.mark.parametrize("feature", TESTED)
def test_what_works_has_its_test(feature: str) -> None:
    assert is_a_test(TESTED[feature])
