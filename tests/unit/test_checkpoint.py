"""Reading the kubelet's checkpoint: every layout, ours only, nothing in part."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.kubelet.checkpoint import parse_checkpoint
from gpu_manager.domain.contract import ALLOCATION, CORE, MEMORY
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse, DeviceSpec
from gpu_manager.ports.records import CheckpointEntry

OURS = frozenset({CORE, MEMORY})


def response(**annotations: str) -> str:
    message = ContainerAllocateResponse(envs={"A": "b"}, annotations=annotations)
    return base64.b64encode(message.SerializeToString()).decode()


def nodes_of(*paths: str, **annotations: str) -> frozenset[int]:
    """The numbers of the device nodes in a response."""
    message = ContainerAllocateResponse(annotations=annotations)
    message.devices.extend(DeviceSpec(container_path=p, host_path=f"/run/driver{p}") for p in paths)
    kept = base64.b64encode(message.SerializeToString()).decode()
    (entry,) = parse_checkpoint(text(row(["a"], AllocResp=kept)), OURS)
    return entry.nodes


def row(ids: object, *, resource: str = CORE, pod: object = "uid", **more: object) -> dict[str, object]:
    return {"PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": ids, **more}


def text(*rows: object, data: bool = True) -> bytes:
    inner = {"PodDeviceEntries": list(rows), "RegisteredDevices": {CORE: ["a"]}}
    return json.dumps({"Data": inner, "Checksum": 1} if data else inner).encode()


@pytest.mark.parametrize(
    "content",
    [
        text(row({"-1": ["a"], "0": ["b", "c"], "1": ["c"]})),
        text(row(["a", "b", "c"])),
        text(row(["a", "b", "c"]), data=False),
    ],
    ids=["NUMA map (1.20 on)", "flat list", "flat list without Data (up to 1.10)"],
)
def test_every_layout_the_kubelet_ever_wrote_reads_the_same(content):
    assert parse_checkpoint(content, OURS) == (CheckpointEntry("uid", "main", CORE, frozenset("abc")),)


def test_our_annotation_is_taken_out_of_the_response_the_kubelet_keeps():
    value = '{"v":1}'
    with_ours = row(["a"], AllocResp=response(**{ALLOCATION: value, "other": "x"}))
    without = row(["b"], resource=MEMORY, AllocResp=response(other="x"))
    assert [e.annotation for e in parse_checkpoint(text(with_ours, without), OURS)] == [value, None]


def test_the_numbers_of_cards_are_those_of_the_nodes_that_are_nodes_of():
    control = (
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/fuse",
        "/dev/nvidia" + "9" * 12,
    )
    assert nodes_of("/dev/nvidia4", "/dev/nvidia11", *control) == {4, 11}
    by_uuid = {"tencent.com/vcuda-device": "/dev/nvidia4,/dev/nvidia0"}
    assert nodes_of(**by_uuid) == set(), "NVIDIA's runtime gives them by UUID"
    assert nodes_of(**by_uuid, **{"cdi.k8s.io/vcuda": "tencent.com/vcuda=a-0"}) == {0, 4}
    assert nodes_of() == set()


@pytest.mark.parametrize("broken", ["%%%", "AAAA", base64.b64encode(b"\xff\xff\xff").decode(), 7, None, "é"])
def test_a_response_that_cannot_be_read_costs_the_annotation_and_not_the_ids(broken):
    (entry,) = parse_checkpoint(text(row(["a"], AllocResp=broken)), OURS)
    assert entry.ids == {"a"}
    assert entry.annotation is None


@pytest.mark.parametrize(
    "foreign", [row(17, resource="x.io/rdma"), {"ResourceName": None}, {"ResourceName": []}, 3, None, {}]
)
def test_what_is_not_ours_is_never_looked_into(foreign):
    assert [e.pod for e in parse_checkpoint(text(foreign, row(["a"])), OURS)] == ["uid"]


def test_a_checkpoint_without_entries_is_empty_and_not_unreadable():
    assert (
        parse_checkpoint(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3}', OURS)
        == ()
    )
    assert parse_checkpoint(text(), OURS) == ()


def test_an_entry_without_ids_is_an_entry():
    assert parse_checkpoint(text(row({"0": None}), row(None)), OURS)[0].ids == frozenset()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'{"Data":[]}',
        b'{"Data":{}}',
        b'{"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":{}}}',
        b'{"Data":{"PodDeviceEntries":7}}',
        b"\xff\xfe",
        b"[" * 100_000,
        text(row(["a"]))[:-9],
        text(row(["a"], pod=None)),
        text(row(["a"], pod="")),
        text(row([1])),
        text(row("abc")),
        text(row({"0": "abc"})),
    ],
)
def test_a_torn_file_or_an_entry_of_ours_without_owner_or_ids_is_unreadable_as_a_whole(content):
    with pytest.raises(ValueError, match=r".+"):
        parse_checkpoint(content, OURS)


names = st.text(min_size=1, max_size=8)


@given(
    st.lists(
        st.tuples(
            names,
            names,
            st.sampled_from([CORE, MEMORY, "x.io/rdma"]),
            st.lists(st.tuples(names, st.integers(-1, 3))),
        ),
        max_size=6,
    )
)
def test_whatever_the_kubelet_writes_of_ours_is_read_back(entries):
    rows = []
    for pod, container, resource, placed in entries:
        groups: dict[str, list[str]] = {}
        for one, node in placed:
            groups.setdefault(str(node), []).append(one)
        rows.append(
            {
                "PodUID": pod,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": groups,
                "AllocResp": "",
            }
        )
    expected = [(p, c, r, frozenset(i for i, _ in placed)) for p, c, r, placed in entries if r in OURS]
    assert [(e.pod, e.container, e.resource, e.ids) for e in parse_checkpoint(text(*rows), OURS)] == expected


@given(st.binary(max_size=200))
def test_any_bytes_give_entries_or_a_value_error(content):
    with contextlib.suppress(ValueError):
        assert all(entry.resource in OURS for entry in parse_checkpoint(content, OURS))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["Data", "PodDeviceEntries", "PodUID", "ContainerName", "ResourceName", "DeviceIDs", "0"]
            ),
            inner | st.just(CORE),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_gives_entries_or_a_value_error(value):
    with contextlib.suppress(ValueError):
        assert all(entry.resource in OURS for entry in parse_checkpoint(json.dumps(value).encode(), OURS))
