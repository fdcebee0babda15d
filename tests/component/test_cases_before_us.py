"""Pods that were admitted before the node's cards could be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from tests.component.test_cases_persistence import pass_, running, uid
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock


def before_us(tmp_path: Path, *objects: dict[str, Any], evict: bool = True) -> NodeRig:
    """A node that ran these pods before our resources existed on it."""
    rig = NodeRig(tmp_path, clock=FakeClock(), evict=evict)
    rig.kubelet.start()
    for obj in objects:
        assert rig.kubelet.admit(obj).admitted
        rig.kubelet.start_container(uid(obj), "c")
        rig.pods.bind(parse_pod(rig.kubelet.pod(uid(obj))))
    rig.start_agent()
    return rig


@pytest.mark.parametrize("evict", [True, False])
def test_pods_admitted_before_the_resource_existed_are_named_once_and_evicted_where_controlled(
    tmp_path: Path, evict: bool
) -> None:
    bare, owned = pod("bare", container("c", 30, 4)), pod("owned", container("c", 30, 4), controlled=True)
    rig = before_us(tmp_path, bare, owned, evict=evict)
    try:
        with pytest.raises(NodeUnready, match="no devices found allocated"):
            rig.kubelet.start_container(uid(owned), "c")
        good = running(rig, pod("good", container("c", 30, 4)))
        rig.pods.bind(parse_pod(rig.kubelet.pod(uid(good))))
        pass_(rig, SETTLE_SECONDS + 5)
        rig.stranded.look()
        assert [e for e in rig.pods.events if e[1] == "VcudaStranded"] == [], "once is not proof"
        for _ in range(3):
            pass_(rig, 30)
            rig.stranded.look()
        named = {key: text for key, reason, text in rig.pods.events if reason == "VcudaStranded"}
        assert len([e for e in rig.pods.events if e[1] == "VcudaStranded"]) == 2
        assert set(named) == {"default/bare", "default/owned"}
        assert "delete the pod" in named["default/bare"]
        assert rig.pods.evicted == ([PodUid(uid(owned))] if evict else [])
        assert ("evicted" in named["default/owned"]) is evict
        assert counts(rig.metrics.pods_without_devices) == {"": 2}
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_a_pod_without_proof_of_having_nothing_is_not_stranded(tmp_path: Path) -> None:
    """Not admitted yet, going away, a static pod's copy, or a checkpoint that cannot be read."""
    early, leaving, static, unread = (pod(n, container("c", 30, 4)) for n in ("a", "b", "s", "u"))
    static["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    rig = before_us(tmp_path, leaving, static)
    try:
        rig.kubelet.begin_delete(uid(leaving))
        rig.pods.bind(parse_pod(rig.kubelet.pod(uid(leaving))))
        rig.pods.bind(parse_pod(early))
        pass_(rig, SETTLE_SECONDS + 5)
        for _ in range(3):
            pass_(rig, 30)
            rig.stranded.look()
        assert rig.pods.events == []
        rig.kubelet.checkpoint_path.unlink()
        rig.pods.bind(
            parse_pod({**unread, "status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}})
        )
        for _ in range(3):
            rig.stranded.look()
        assert rig.pods.events == []
    finally:
        rig.stop_agent()
        rig.kubelet.stop()
