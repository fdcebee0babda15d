"""Every alert of the chart on a real Prometheus over running programs: it fires, and it resolves."""

from __future__ import annotations

import pytest
import yaml

from bench import alerts
from tests.fakes.prometheus import needs_prometheus
from tests.fakes.sandbox import short_directory


@needs_prometheus
@pytest.mark.timeout(900)
def test_every_alert_fires_after_its_fault_and_resolves_after_the_cure() -> None:
    groups = yaml.safe_load(alerts.RULES.read_text())["groups"]
    there = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    with short_directory() as directory:
        assert alerts.provoke(directory).resolved.keys() == there


def test_for_and_windows_are_shortened_by_one_factor_and_thresholds_are_not() -> None:
    rules = """
groups:
- name: a
  rules:
  - {record: x, expr: y}
  - {alert: A, expr: "increase(n_total[10m]) > 600", for: 1h30m}
"""
    (group,) = yaml.safe_load(alerts.shortened(rules))["groups"]
    assert group["rules"] == [{"alert": "A", "expr": "increase(n_total[5000ms]) > 600", "for": "45000ms"}]
    with pytest.raises(ValueError, match="soon"):
        alerts.shortened(rules.replace("1h30m", "soon"))
