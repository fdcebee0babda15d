"""What the pages on Argo CD and Flux give to copy fits the chart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, ROOT, SETS, helm, of_kind

BESIDE = ROOT / "docs" / "beside"
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def copied(page: str) -> list[Any]:
    """The YAML blocks of a page."""
    text = (BESIDE / page).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"(?ms)^```yaml\n(.*?)^```$", text)]


@pytest.mark.parametrize("kind", KINDS)
def test_flux_ignores_the_authority_of_each_webhook(kind: str) -> None:
    [block] = copied("flux.md")
    [rule] = [one for one in block["driftDetection"]["ignore"] if one["target"]["kind"] == kind]
    most = max(len(one["webhooks"]) for name in SETS for one in of_kind(name, kind))
    assert rule["paths"] == [f"/webhooks/{number}/clientConfig/caBundle" for number in range(most)]


def test_argo_cds_application_has_values_that_the_chart_takes(tmp_path: Path) -> None:
    [application] = copied("argocd.md")
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(application["spec"]["source"]["helm"]["valuesObject"]))
    rendered = helm("template", "gpu-manager", str(CHART), "--namespace=kube-system", "-f", str(values))
    assert rendered.returncode == 0, rendered.stderr
    objects = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    images = {
        container["image"]
        for one in objects
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert {"REGISTRY/gpu-manager:0.0.0", "registry.k8s.io/kube-scheduler:v1.36.3"} <= images
    ignored = {one["kind"] for one in application["spec"]["ignoreDifferences"]}
    assert ignored == set(KINDS)
