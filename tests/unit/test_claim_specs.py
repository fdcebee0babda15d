"""The CDI spec of what a claim holds: one device a card, mounts and environment once."""

from __future__ import annotations

import json

from gpu_manager.adapters.driver_files.cdi import claim_device_names, encode_claim
from gpu_manager.domain.injection import DeviceNode, Injection, Mount, RuntimeHook

NAME = "c" * 32


def injected(*nodes: str) -> Injection:
    return Injection(
        env={"VCUDA_CARDS": "a,b"},
        mounts=(Mount("/etc/vcuda/limits", "/pages/limits"),),
        devices=tuple(DeviceNode(node, node, "rw") for node in nodes),
        hooks=(RuntimeHook("startContainer", "/hook"),),
    )


def test_the_first_device_has_all_but_the_other_cards_nodes() -> None:
    injection = injected("/dev/nvidia3", "/dev/nvidia5", "/dev/nvidiactl")
    spec = json.loads(encode_claim(NAME, injection, shares=2))
    assert claim_device_names(NAME, injection, 2) == (
        f"tencent.com/vcuda=a-{NAME}",
        f"tencent.com/vcuda=a-{NAME}-1",
    )
    first, second = spec["devices"]
    assert [node["path"] for node in first["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidia3",
        "/dev/nvidiactl",
    ]
    assert first["containerEdits"]["env"] == ["VCUDA_CARDS=a,b"]
    assert len(first["containerEdits"]["mounts"]) == len(first["containerEdits"]["hooks"]) == 1
    assert second == {
        "name": f"a-{NAME}-1",
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidia5", "hostPath": "/dev/nvidia5", "permissions": "rw"}]
        },
    }


def test_simulated_cards_without_nodes_are_one_device() -> None:
    """A device without edits is none, for a runtime."""
    assert claim_device_names(NAME, injected(), 2) == (f"tencent.com/vcuda=a-{NAME}",)
    assert len(json.loads(encode_claim(NAME, injected(), shares=2))["devices"]) == 1
