"""The chart of a release, as Helm takes it: addresses that the publisher gave, and none otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.deploy import chart
from tools.release import source

URL = "https://downloads.example.org/gpu-manager/v7.8.9"
IMAGE = "registry.example.org/team/gpu-manager"


def helm(*arguments: str) -> str:
    done = chart.helm(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed chart of a release that is published."""
    place = tmp_path_factory.mktemp("release")
    source.export("7.8.9", place / "source", source.Published(URL, IMAGE, "security@example.org"))
    helm("package", str((place / "source" / source.CHART).parent), "--destination", str(place))
    return place / "gpu-manager-7.8.9.tgz"


def test_helm_finds_nothing_to_mend(archive: Path) -> None:
    assert "[WARNING]" not in helm("lint", "--strict", str(archive))


def test_the_chart_names_where_it_is_at_home(archive: Path) -> None:
    shown = yaml.safe_load(helm("show", "chart", str(archive)))
    assert (shown["home"], shown["icon"]) == (URL, f"{URL}/icon.svg")
    assert shown["sources"] == [f"{URL}/gpu_manager-7.8.9.tar.gz"]
    assert shown["annotations"]["artifacthub.io/license"] == "Apache-2.0"


def test_pods_take_the_published_image_and_alerts_the_published_runbooks(archive: Path) -> None:
    rendered = helm("template", str(archive), "--namespace", "kube-system", "--set", "monitoring.rules=true")
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("DaemonSet", "Deployment")]
    ours = {c["image"] for pod in pods for c in pod["containers"] if "kube-scheduler" not in c["image"]}
    assert ours == {f"{IMAGE}:7.8.9"}
    [rules] = [o for o in objects if o["kind"] == "PrometheusRule"]
    alerts = [r for group in rules["spec"]["groups"] for r in group["rules"] if "alert" in r]
    assert len(alerts) > 10
    assert all(r["annotations"]["runbook_url"].startswith(f"{URL}/runbooks.md#") for r in alerts)
