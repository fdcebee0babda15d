"""The auditor's own decoders read what agent, kubelet and library write; a torn copy is passed over."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gpu_manager.adapters.store import FileStore
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import ALLOCATION, Assignment, encode_assignment
from gpu_manager.domain.resize.sizes import ResizeAnswer, encode_answer
from gpu_manager.domain.resources import Amount
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse, Mount
from tests.cluster import decoding
from vcuda.page.layout import uuid_bytes
from vcuda.page.limits import LIMITS_SIZE, CardLimits, Limits, build_limits, rewrite_limits

CARD = CardUuid("GPU-0a1b2c3d-0000-4000-8000-000000000001")
SIZE = 5 << 30


def test_an_allocation_annotation_is_read() -> None:
    text = encode_assignment(Assignment("n1", "uid", {"c": ((CARD, Amount(30, SIZE)),)}))
    assert decoding.annotation(text) == decoding.Written("n1", "uid", {"c": frozenset({(CARD, 30, SIZE)})})
    assert decoding.annotation(None) is None


def test_the_answer_to_a_resize_is_read_if_it_is_of_this_pod() -> None:
    text = encode_answer(ResizeAnswer("uid", "", {"c": Amount(50, SIZE)}, "no room"))
    assert decoding.answered(text, "uid") == {"c": (50, SIZE)}
    assert decoding.answered(text, "other") == {}
    assert decoding.answered(None, "uid") == {}


def test_the_newest_whole_state_of_the_ledger_is_read(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert decoding.ledger(tmp_path) is None
    for state in (b"one", b"two", b"three"):
        store.save(state)
        assert decoding.ledger(tmp_path) == state
    [newest] = [path for path in tmp_path.iterdir() if b"three" in path.read_bytes()]
    newest.write_bytes(newest.read_bytes().replace(b"three", b"thrxx"))
    assert decoding.ledger(tmp_path) == b"two"


def test_a_checkpoint_is_read_with_the_annotation_in_its_response() -> None:
    answer = ContainerAllocateResponse(
        envs={"A": "b" * 300},
        annotations={ALLOCATION: "words", "other": "x"},
        mounts=[Mount(container_path="/c", host_path="/h")],
    )
    row = {
        "PodUID": "uid",
        "ContainerName": "c",
        "ResourceName": "tencent.com/vcuda-core",
        "DeviceIDs": {"-1": ["a", "b"], "0": ["c"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    text = json.dumps({"Data": {"PodDeviceEntries": [row]}, "Checksum": 1}).encode()
    key = ("uid", "c", "tencent.com/vcuda-core")
    assert list(decoding.checkpoint(text)) == [(key, frozenset("abc"), "words")]


def test_the_newest_valid_copy_of_the_limits_is_read() -> None:
    def limits(cores: float) -> Limits:
        card = CardLimits(uuid=uuid_bytes(CARD), memory_limit=SIZE, core_limit=cores)
        return Limits(cards=(card,))

    image = bytearray(build_limits(limits(30)))
    newer = rewrite_limits(bytes(image), limits(60))
    image[newer.offset : newer.offset + len(newer.data)] = newer.data
    assert decoding.limits(bytes(image)) == {(CARD, 60, SIZE)}
    image[newer.offset + 200] ^= 1
    assert decoding.limits(bytes(image)) == {(CARD, 30, SIZE)}
    with pytest.raises(ValueError, match="neither copy"):
        decoding.limits(bytes(LIMITS_SIZE))
