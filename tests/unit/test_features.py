"""Each feature's stage is written in one table, and flags, chart, docs and ``/version`` agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from admission.__main__ import command as admission
from gpu_manager.cli.run import command as agent
from gpu_manager.domain.features import FEATURES, Feature, FeatureStage, stages
from gpu_manager.runtime.arguments import Command

ROOT = Path(__file__).parents[2]
VALUES = (ROOT / "deploy/helm/gpu-manager/values.yaml").read_text(encoding="utf-8")
BY_NAME = [pytest.param(feature, id=feature.name) for feature in FEATURES]
MARK = re.compile(r"# -- \((alpha|beta)\) ")


def marked_values() -> dict[str, str]:
    """Path of a chart value → the stage in the comment above it."""
    found, path, mark = {}, [], ""
    for line in VALUES.splitlines():
        if told := MARK.search(line):
            mark = told[1]
        if key := re.match(r"( *)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if mark:
                found[".".join(path)] = mark
            mark = ""
    return found


@pytest.mark.parametrize("feature", BY_NAME)
def test_a_feature_names_a_page_and_values_that_there_are(feature: Feature) -> None:
    assert (ROOT / "docs" / feature.page).is_file()
    values = yaml.safe_load(VALUES)
    for name in feature.values:
        at = values
        for word in name.split("."):
            assert word in at, name
            at = at[word]


@pytest.mark.parametrize("feature", BY_NAME)
def test_what_is_not_stable_says_what_would_raise_it(feature: Feature) -> None:
    assert bool(feature.next) == (feature.stage is not FeatureStage.STABLE)


def test_the_charts_values_say_the_stage() -> None:
    unstable = [feature for feature in FEATURES if feature.stage is not FeatureStage.STABLE]
    assert marked_values() == {name: one.stage.value for one in unstable for name in one.values}


def test_the_helps_of_flags_say_the_stage() -> None:
    options = [one for function in (agent, admission) for one in Command("x", function).parameters]
    featured = [one for one in options if one.feature]
    assert len(featured) >= 15
    for one in options:
        mark = one.feature.mark if one.feature else ""
        assert (re.match(r"\((alpha|beta)\) ", one.help) or [""])[0].strip() == mark, one.names


def test_version_has_every_feature_once() -> None:
    assert len(stages()) == len(FEATURES)
    assert set(stages().values()) == {"alpha", "beta", "stable"}
