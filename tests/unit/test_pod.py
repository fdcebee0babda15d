"""Reading a pod from what anybody may have written."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, Pod, parse_pod

FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "uid": "u-1",
        "namespace": "ml",
        "name": "train",
        "annotations": {"tencent.com/placement": "spread"},
        "labels": {"app": "train"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "creationTimestamp": "2025-12-31T00:00:00Z",
        "ownerReferences": [{"name": "rs"}, {"name": "job", "controller": True}],
    },
    "spec": {
        "nodeName": "n1",
        "priority": 1000,
        "schedulerName": "vcuda",
        "initContainers": [
            {"name": "prep", "resources": {"limits": {CORE: "10", MEMORY: "1"}}},
            {"name": "proxy", "restartPolicy": "Always"},
        ],
        "containers": [
            {
                "name": "train",
                "securityContext": {"privileged": True},
                "resources": {
                    "limits": {"cpu": "1", CORE: "3e1", MEMORY: 20},
                    "requests": {CORE: " 30 ", MEMORY: None},
                },
            }
        ],
    },
    "status": {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {"name": "train", "containerID": "containerd://abc", "state": {"running": {"startedAt": "x"}}}
        ],
    },
}


def test_a_container_whose_start_has_no_time_runs_too() -> None:
    status = {"containerStatuses": [{"name": "train", "state": {"running": {}}}]}
    train = parse_pod(FULL | {"status": status}).container("train")
    assert train is not None
    assert train.running


def test_a_whole_pod_is_read_in_the_kubelets_order() -> None:
    pod = parse_pod(FULL)
    assert [(c.name, c.kind) for c in pod.containers] == [
        ("prep", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("train", ContainerKind.APP),
    ]
    train = pod.container("train")
    assert train is not None
    assert (train.core, train.memory_units) == (30, 20)
    assert (train.core_request, train.memory_units_request) == (30, None)
    assert (train.privileged, train.running, train.runtime_id) == (True, True, "abc")
    assert (train.wants(CORE), train.wants(MEMORY)) == (30, 20)
    assert (pod.key, pod.uid, pod.node, pod.phase) == ("ml/train", "u-1", "n1", "Running")
    assert (pod.deleting, pod.started, pod.controlled, pod.priority) == (True, True, True, 1000)
    assert (pod.scheduler, pod.created) == ("vcuda", "2025-12-31T00:00:00Z")
    assert (pod.annotations, pod.labels) == ({"tencent.com/placement": "spread"}, {"app": "train"})
    assert pod.asks
    assert not pod.terminal


def test_a_pod_with_nothing_in_it_asks_for_nothing() -> None:
    pod = parse_pod({})
    assert pod == Pod(uid=pod.uid, namespace="default", name="", containers=())
    assert not pod.asks
    assert pod.container("train") is None


def test_a_generated_name_stands_for_the_one_to_come() -> None:
    assert parse_pod({"metadata": {"generateName": "train-"}}).name == "train-"


@pytest.mark.parametrize(("core", "wanted"), [(None, 0), ("0", 0), ("-5", 0), ("1500m", 0), ("30", 30)])
def test_a_container_wants_only_whole_ids(core: str | None, wanted: int) -> None:
    pod = parse_pod({"spec": {"containers": [{"name": "a", "resources": {"limits": {CORE: core}}}]}})
    assert pod.containers[0].wants(CORE) == wanted


def test_every_unreadable_quantity_is_named_with_its_container() -> None:
    containers = [
        {"name": f"c{i}", "resources": {"limits": {CORE: "thirty"}, "requests": {MEMORY: [1]}}}
        for i in range(6)
    ]
    with pytest.raises(RequestInvalid) as refusal:
        parse_pod({"spec": {"containers": containers}})
    text = str(refusal.value)
    assert 'container "c0": tencent.com/vcuda-core in limits: "thirty" is not a Kubernetes quantity' in text
    assert 'container "c3": tencent.com/vcuda-memory in requests: a list is not' in text
    assert text.endswith("; and 4 more")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(80, '80, not a text, write it in quotes: "80"'), (True, 'true, not a text, write it in quotes: "true"'),
     (["a"], "a list, not a text"), ("\ud800", '"\\ud800", not a text')],
)  # fmt: skip
def test_an_annotation_that_is_no_text_is_refused_with_the_cure(value: object, shown: str) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        parse_pod({"metadata": {"annotations": {"tencent.com/vcuda-core-limit": value}}})
    assert str(refusal.value) == f"annotation tencent.com/vcuda-core-limit is {shown}"


@pytest.mark.parametrize(
    "obj",
    [
        None,
        5,
        "pod",
        [],
        {"metadata": []},
        {"metadata": {"name": 5}},
        {"metadata": {"uid": b"u"}},
        {"metadata": {"labels": {5: "x"}}},
        {"metadata": {"annotations": "x"}},
        {"metadata": {"ownerReferences": {"controller": True}}},
        {"metadata": {"ownerReferences": ["x"]}},
        {"spec": "x"},
        {"spec": {"containers": {"name": "a"}}},
        {"spec": {"containers": ["a"]}},
        {"spec": {"containers": [{"name": "\udcff"}]}},
        {"spec": {"containers": [{"name": "a", "resources": []}]}},
        {"spec": {"containers": [{"name": "a", "resources": {"limits": [CORE]}}]}},
        {"spec": {"containers": [{"name": "a", "securityContext": True}]}},
        {"spec": {"priority": "high"}},
        {"spec": {"priority": 1e999}},
        {"spec": {"priority": 1 << 40}},
        {"status": {"containerStatuses": [{"name": ["a"]}]}},
        {"status": {"containerStatuses": 3}},
    ],
)
def test_what_has_not_the_shape_of_a_pod_is_refused(obj: object) -> None:
    with pytest.raises(RequestInvalid):
        parse_pod(obj)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute, graphics"}], True),
        ([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}], True),
        ([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility,video"}], False),
        ([{"name": "NVIDIA_DRIVER_CAPABILITIES", "valueFrom": {}}], False),
        ([{"name": "OTHER", "value": "graphics"}], False),
        (["graphics"], False),
        ("graphics", False),
        (None, False),
    ],
)
def test_graphics_are_asked_for_in_nvidia_s_own_words(env: object, wanted: bool) -> None:
    pod = parse_pod({"spec": {"containers": [{"name": "a"}, {"name": "b", "env": env}]}})
    assert pod.graphics is wanted
    assert [container.graphics for container in pod.containers] == [False, wanted]


def test_anything_but_a_plain_no_counts_as_privileged() -> None:
    for value, privileged in ((True, True), (False, False), (None, False), ("true", True), (1, True)):
        pod = parse_pod({"spec": {"containers": [{"name": "a", "securityContext": {"privileged": value}}]}})
        assert pod.containers[0].privileged is privileged


KEYS = st.sampled_from(
    ["metadata", "spec", "status", "name", "uid", "annotations", "labels", "containers", "initContainers", "resources",
     "limits", "requests", CORE, MEMORY, "securityContext", "privileged", "priority", "ownerReferences",
     "containerStatuses", "state", "running", "containerID", "restartPolicy"]
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@given(st.dictionaries(KEYS, JUNK, max_size=4) | JUNK)
def test_no_junk_escapes_as_another_error(obj: Any) -> None:
    try:
        pod = parse_pod(obj)
    except RequestInvalid as error:
        text = str(error)
    else:
        text = pod.name
        assert all(c.core is None or isinstance(c.core, Fraction) for c in pod.containers)
    text.encode()


@pytest.mark.parametrize("place", ["metadata", "spec", "status"])
def test_a_hundred_thousand_levels_are_refused_like_any_list(place: str) -> None:
    with pytest.raises(RequestInvalid, match="is a list, not a map"):
        parse_pod({place: nested(100_000)})
    with pytest.raises(RequestInvalid, match="a list is not a Kubernetes quantity"):
        parse_pod({"spec": {"containers": [{"name": "a", "resources": {"limits": {CORE: nested(100_000)}}}]}})


def test_a_count_of_whole_cards_that_is_no_number_is_the_api_servers_to_refuse() -> None:
    limits = {CORE: "30", MEMORY: "8", "nvidia.com/gpu": "some"}
    made = parse_pod(
        {
            "metadata": {"name": "a", "namespace": "default", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        }
    )
    assert made.containers[0].gpus is None
