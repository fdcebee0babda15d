"""``kubectl vcuda migrate``: the configuration of NVIDIA's device plugin says how many pods share a card."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.cli.kubectl.main import run
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationTerms
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB

SHARING = """apiVersion: v1
kind: ConfigMap
metadata: {name: plugin}
data:
  any: |-
    version: v1
    sharing:
      %s:
        renameByDefault: %s
        resources:
        - {name: %s, replicas: %s}
"""
TURN = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i, resources: {limits: {%s: 1}}}]}
"""


@pytest.mark.parametrize(
    ("sharing", "asked", "says", "limits"),
    [
        (("timeSlicing", "true", "gpu", 4), "nvidia.com/gpu.shared", "1 of 4 turns", (25, 39)),
        (("timeSlicing", "false", "nvidia.com/gpu", "'10'"), "nvidia.com/gpu", "1 of 10 turns", (10, 15)),
        (
            ("timeSlicing", "true", "nvidia.com/gpu", 4),
            "nvidia.com/gpu",
            "taken for whole cards",
            (100, None),
        ),
        (("mps", "false", "nvidia.com/gpu", 2), "nvidia.com/gpu", "1 of 2 clients: 50 cores", (50, 78)),
        (
            ("timeSlicing", "false", "nvidia.com/gpu", 1),
            "nvidia.com/gpu",
            "taken for whole cards",
            (100, None),
        ),
        (
            ("timeSlicing", "false", "nvidia.com/gpu", "many"),
            "nvidia.com/gpu",
            "taken for whole",
            (100, None),
        ),
    ],
)
def test_the_plugins_configuration_says_how_many_share_a_card(
    sharing: tuple[object, ...],
    asked: str,
    says: str,
    limits: tuple[int, int | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.yaml").write_text(SHARING % sharing)
    (tmp_path / "pod.yaml").write_text(TURN % asked)
    run(
        [
            "migrate",
            str(tmp_path / "pod.yaml"),
            str(tmp_path / "config.yaml"),
            "--card-memory",
            "40Gi",
            "-o",
            "yaml",
        ]
    )
    out, err = capsys.readouterr()
    assert says in err
    new = next(m.pod for m in read_manifests(out.encode()) if m.pod)
    [held] = parse_pod(new).containers
    assert (held.core, held.memory_units or None) == limits


def test_what_becomes_of_a_configuration_of_the_plugin_is_said() -> None:
    for card, memory in (
        (None, "give --card-memory"),
        (of_memory(40 * GIB), "tencent.com/vcuda-memory: 39 ("),
    ):
        terms = MigrationTerms(card=card)
        [found] = migrate(
            "f", (SHARING % ("timeSlicing", "false", "nvidia.com/gpu", 4)).encode(), terms
        ).findings
        assert found.kind is FindingKind.LEFT
        assert found.text.startswith("nvidia.com/gpu at data.any: 4 users of a card, each of which becomes")
        assert memory in found.text
        assert "take it out" in found.text
    values = b"config: {map: {default: {sharing: {mps: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}}}}"
    [found] = migrate("f", values, MigrationTerms()).findings
    assert "2 users of each: such cards are left to NVIDIA's plugin" in found.text


def test_configurations_that_differ_leave_the_pod_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (4, 8):
        (tmp_path / f"{count}.yaml").write_text(SHARING % ("timeSlicing", "false", "nvidia.com/gpu", count))
    (tmp_path / "pod.yaml").write_text(TURN % "nvidia.com/gpu")
    assert run(["migrate", str(tmp_path)]) == 1
    assert "several numbers of users in several configurations" in capsys.readouterr().out
