"""What users may wish by annotation: judged, read, and kept from those who may not write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import ALLOCATION
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.rules.legal_values import (
    Rule,
    ceiling_of,
    check_guarded,
    check_pod,
    guarded_keys,
    models_of,
    placement_of,
    preload_of,
    uuids_of,
)
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PlacementPolicy
from tests.fakes.written import container, pod_of

GPU = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"


@pytest.mark.parametrize(
    ("key", "text", "rule", "nearest"),
    [
        ("vcuda_core_limit", "80", None, ()),
        ("vcuda_core_limit", "30", None, ()),
        ("vcuda_core_limit", "100", None, ()),
        ("vcuda_core_limit", "29", "ceiling-out-of-range", (30,)),
        ("vcuda_core_limit", "150", "ceiling-out-of-range", (100,)),
        ("vcuda_core_limit", "-5", "ceiling-out-of-range", (30,)),
        ("vcuda_core_limit", "80%", "ceiling-not-integer", (80,)),
        ("vcuda_core_limit", " 80", "ceiling-not-integer", (80,)),
        ("vcuda_core_limit", "80.5", "ceiling-not-integer", (80,)),
        ("vcuda_core_limit", "most", "ceiling-not-integer", (30,)),
        ("vcuda_core_limit", "", "ceiling-not-integer", (30,)),
        ("vcuda_core_limit", "9" * 5000, "ceiling-not-integer", (100,)),
        ("vcuda_core_limit", "\uff18\uff10", "ceiling-not-integer", (30,)),
        ("placement", "binpack", None, ()),
        ("placement", "spread", None, ()),
        ("placement", "topology", None, ()),
        ("placement", "Spread ", "placement-unknown", ("spread",)),
        ("placement", "random", "placement-unknown", ("binpack", "spread", "topology")),
        ("placement", "", "placement-unknown", ("binpack", "spread", "topology")),
        ("vcuda_preload", "true", None, ()),
        ("vcuda_preload", "false", None, ()),
        ("vcuda_preload", "False", "preload-not-boolean", ("false",)),
        ("vcuda_preload", "no", "preload-not-boolean", ("true", "false")),
        ("vcuda_priority", "protected", None, ()),
        ("vcuda_priority", "normal", None, ()),
        ("vcuda_priority", "best-effort", None, ()),
        ("vcuda_priority", "best_effort", "priority-unknown", ("best-effort",)),
        ("vcuda_priority", " Best  Effort ", "priority-unknown", ("best-effort",)),
        ("vcuda_priority", "PROTECTED", "priority-unknown", ("protected",)),
        ("vcuda_priority", "high", "priority-unknown", ("protected", "normal", "best-effort")),
        ("vcuda_priority", "", "priority-unknown", ("protected", "normal", "best-effort")),
        ("gpu_model", "V100", None, ()),
        ("gpu_model", "NVIDIA GeForce RTX 4090, Tesla V100-SXM2-32GB,A100", None, ()),
        ("gpu_model", "", "models-malformed", ()),
        ("gpu_model", "V100,", "models-malformed", ()),
        ("gpu_model", "--", "models-malformed", ()),
        ("gpu_model", "V100\x1b[31m", "models-malformed", ()),
        ("gpu_model", ",".join(["T4"] * 65), "models-malformed", ()),
        ("gpu_uuid", GPU, None, ()),
        ("gpu_uuid", f"{GPU}, {GPU}", None, ()),
        ("gpu_uuid", GPU.upper(), "uuids-malformed", (GPU,)),
        ("gpu_uuid", GPU.removeprefix("GPU-"), "uuids-malformed", (GPU,)),
        ("gpu_uuid", f"MIG-{GPU}", "uuids-malformed", ()),
        ("gpu_uuid", "", "uuids-malformed", ()),
        ("gpu_uuid", ",".join([GPU] * 65), "uuids-malformed", ()),
    ],
)  # fmt: skip
def test_an_annotation_is_judged(key: str, text: str, rule: str | None, nearest: tuple[object, ...]) -> None:
    asking = pod_of(container("a", 30, 1), container("b", 20, 1), **{key: text})
    found = check_pod(asking)
    assert [v.rule.id for v in found] == ([rule] if rule else [])
    assert [v.nearest for v in found] == ([nearest] if rule else [])
    assert all(v.message.startswith("annotation tencent.com/") and v.message.isprintable() for v in found)
    assert check_pod(pod_of(container("plain"), **{key: text})) == ()  # not our pod, not our business


def test_wishes_are_read() -> None:
    pod = pod_of(
        container("a", 30, 1),
        vcuda_core_limit="80",
        placement="spread",
        gpu_model="V100, Tesla T4",
        gpu_uuid=GPU,
        vcuda_preload="false",
    )
    assert (ceiling_of(pod), placement_of(pod), preload_of(pod)) == (80, PlacementPolicy.SPREAD, False)
    assert (models_of(pod), uuids_of(pod)) == (("V100", "Tesla T4"), {GPU})
    request = judged_request(pod)
    assert (request.ceiling, request.placement, request.models, request.uuids) == (
        80, PlacementPolicy.SPREAD, ("V100", "Tesla T4"), {GPU},
    )  # fmt: skip


def test_no_wish_is_the_default() -> None:
    pod = pod_of(container("a", 30, 1))
    assert (ceiling_of(pod), placement_of(pod), preload_of(pod)) == (None, PlacementPolicy.BINPACK, True)
    assert (models_of(pod), uuids_of(pod)) == ((), frozenset())


@given(st.text())
def test_a_wish_written_after_the_judgement_is_read_or_none(text: str) -> None:
    keys = "vcuda_core_limit", "placement", "gpu_model", "gpu_uuid", "vcuda_preload", "vcuda_priority"
    wishes = dict.fromkeys(keys, text)
    pod = Pod(uid=pod_of().uid, namespace="n", name="p", containers=(),
              annotations={f"tencent.com/{k.replace('_', '-')}": v for k, v in wishes.items()})  # fmt: skip
    ceiling = ceiling_of(pod)
    assert ceiling is None or 1 <= ceiling <= 100
    assert placement_of(pod) in PlacementPolicy
    assert preload_of(pod) is (text != "false")
    assert all(models_of(pod))
    assert all(uuids_of(pod))


@pytest.mark.parametrize(
    ("text", "ceiling"), [("500", 100), ("0", None), ("-3", None), ("+80", 80), ("080", 80)]
)
def test_a_ceiling_means_what_it_meant_to_the_predecessor(text: str, ceiling: int | None) -> None:
    assert ceiling_of(pod_of(container("a", 30, 1), vcuda_core_limit=text)) == ceiling


def test_the_keys_that_say_who_holds_what_are_guarded() -> None:
    keys = {ALLOCATION: "{}", "tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-gpu-idx-": "",
            "tencent.com/predicate-node": "n", "tencent.com/predicate-time": "1", "tencent.com/gpu-assigned": "true"}  # fmt: skip
    free = {"tencent.com/placement": "spread", "tencent.com/vcuda-core-limit": "80", "x": ""}
    assert guarded_keys({**keys, **free}) == tuple(keys)
    assert guarded_keys(free) == ()
    found = check_guarded({**free, ALLOCATION: "{}"})
    assert [(v.rule, v.field) for v in found] == [(Rule.ANNOTATION_GUARDED, ALLOCATION)]
    assert (
        found[0].message
        == f"annotation {ALLOCATION} is written by the scheduler and the agent alone: remove it"
    )


@pytest.mark.parametrize(
    ("text", "expected"), [(None, 0), ("80", 80), ("30", 30), ("29", None), ("101", None), ("fast", None)]
)
def test_a_ceiling_in_force_gives_way_to_a_legal_one_or_to_none_written(
    text: str | None, expected: int | None
) -> None:
    written = {} if text is None else {"vcuda_core_limit": text}
    assert legal_ceiling_of(pod_of(container("c", 30, 4), **written)) == expected
