"""Pages that an operator follows step by step: what they name exists, and each place names the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpu_manager.cli.run import OLD_FLAGS
from gpu_manager.domain import contract

ROOT = Path(__file__).parents[2]
UPGRADE = ROOT / "docs" / "upgrade.md"
CHART = ROOT / "deploy" / "helm" / "gpu-manager"
LEFT_OVER = {
    contract.INVENTORY,
    contract.CORDON,
    contract.FORGET,
    "tencent.com/gpu-model",
    "gaia.tencent.com/gpu-model",
    f"{contract.ADMISSION_NAME}-certs",
    contract.ADMISSION_NAME,
    contract.CLAIM_RECORD,
    "/var/lib/gpu-manager",
    "/run/gpu-manager",
    "/var/run/cdi",
    "gpu-manager",
}


def uninstall(page: Path) -> str:
    """The part of the page about what an uninstall leaves."""
    return page.read_text().partition("`helm uninstall")[2].partition("\n## ")[0].partition("\n### ")[0]


@pytest.mark.parametrize("page", [UPGRADE, CHART / "README.md"], ids=lambda page: page.parent.name)
def test_every_list_of_what_an_uninstall_leaves_is_whole(page: Path) -> None:
    text = uninstall(page)
    assert [name for name in sorted(LEFT_OVER) if not re.search(rf"{re.escape(name)}(?![a-z])", text)] == []


def test_a_runbook_names_the_charts_value_beside_each_flag() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = (ROOT / "docs" / "runbooks.md").read_text()
    flags = re.findall(
        r"`--([a-z-]+)`( \(chart: `([a-zA-Z.]+)`\))?", text.replace("`--root-dir`", "the kubelet's")
    )
    assert len(flags) >= 5
    for flag, _, value in flags:
        assert value, f"--{flag} stands without the chart's value"
        there = values
        for part in value.split("."):
            assert part in there, value
            there = there[part]


def test_the_predecessors_flags_are_passed_over() -> None:
    theirs = {"driver", "volume-config", "container-runtime", "cgroup-driver", "query-port", "wait-timeout"}
    assert theirs <= OLD_FLAGS.keys()
