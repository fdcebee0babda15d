"""A LimitRange's max becomes everybody's default: said of the LimitRange, and of the pods that one has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from admission.webhook.admit import validate
from gpu_manager.cli.main import run
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.legal_values import warn_limit_range, warn_limited
from tests.fakes.reviews import ask, container, pod, review

NOTE = "kubernetes.io/limit-ranger"


def limit_range(**limit: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "cap", "namespace": "a"},
        "spec": {"limits": [{"type": "Container", **limit}]},
    }


@pytest.mark.parametrize(
    ("limit", "fields"),
    [
        ({"max": {CORE: "50", MEMORY: "32"}}, [CORE, MEMORY]),
        ({"default": {CORE: "50"}, "max": {CORE: "50"}}, [CORE]),
        ({"defaultRequest": {MEMORY: 4}}, [MEMORY]),
        ({"max": {"cpu": "1"}}, []),
        ({"type": "Pod", "max": {CORE: "50"}}, []),
        ({"max": 3}, []),
    ],
)
def test_whatever_gives_containers_a_share_that_they_do_not_ask_for_is_named(
    limit: dict[str, Any], fields: list[str]
) -> None:
    assert [one.field for one in warn_limit_range(limit_range(**limit))] == fields


def test_check_warns_of_it_and_finds_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cap.json"
    file.write_text(json.dumps(limit_range(max={CORE: "50"})))
    assert run(["check", str(file)]) == 0
    said = capsys.readouterr().out
    assert f'warning: {CORE} is "50" in a LimitRange that makes its default of max: every container' in said
    assert "[limit-range]" in said


def test_a_pod_that_one_has_changed_is_told_which_container_did_not_ask() -> None:
    filled = (
        f"LimitRanger plugin set: cpu, {CORE} request for container proxy; {CORE} limit for container proxy"
    )
    made = pod(container("app", "50", "40"), container("proxy", "50"), annotations={NOTE: filled})
    answer = ask(validate, review(made))
    assert not answer["allowed"], "the share of the neighbour lacks memory"
    (said,) = [one for one in answer["warnings"] if "LimitRange" in one]
    assert said.startswith(f'container "proxy": {CORE} was filled in by a LimitRange of the namespace')


@pytest.mark.parametrize(
    "note", ["", "x", f"x: {CORE}", f"x: {CORE} limit for pod p", "x: cpu limit for container c"]
)
def test_a_note_that_names_nothing_of_ours_says_nothing(note: str) -> None:
    made = pod(container("c", "30", "20"), annotations={NOTE: note})
    assert list(warn_limited(parse_pod(made))) == []
