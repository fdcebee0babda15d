"""The chart's alerts and recording rules by promtool: each alert fires when it should, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.prometheus import needs_prometheus, promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "helm" / "gpu-manager" / "files" / "rules.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}

C = 'namespace="a",pod="p",container="c",uuid="u",card="0"'
U = 'node="n",uuid="u",card="0"'
P = 'namespace="a",pod="p",uid="1"'
N = 'namespace="a",node="n"'
# Alert: series that make it fire, series that do not.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "VcudaCardUnhealthy": (
        {f"vcuda_card_healthy{{{U}}}": "0x30", f"vcuda_card_missing{{{U}}}": "0x30"},
        {f"vcuda_card_healthy{{{U}}}": "1x30", f"vcuda_card_missing{{{U}}}": "0x30"},
    ),
    "VcudaCardMissing": (
        {f"vcuda_card_missing{{{U}}}": "1x30", f"vcuda_card_healthy{{{U}}}": "0x30"},
        {f"vcuda_card_missing{{{U}}}": "0x30", f"vcuda_card_healthy{{{U}}}": "1x30"},
    ),
    "VcudaMemoryOutside": (
        {f"vcuda_card_memory_outside_bytes{{{U}}}": "13000000000x30"},
        {f"vcuda_card_memory_outside_bytes{{{U}}}": "200000000x30"},
    ),
    "VcudaCardXid": (
        {'vcuda_card_xid_errors_total{closes="true"}': "0x20 1x10"},
        {
            'vcuda_card_xid_errors_total{closes="true"}': "3x30",
            'vcuda_card_xid_errors_total{closes="false"}': "0x20 1x10",
        },
    ),
    "VcudaProgramXids": (
        {'vcuda_card_xid_errors_total{closes="false"}': "0+2x30"},
        {'vcuda_card_xid_errors_total{closes="false"}': "0x20 9x10"},
    ),
    "VcudaAgentDown": (
        {'up{job="kube-system/gpu-manager"}': "0x30"},
        {'up{job="kube-system/gpu-manager"}': "1x30"},
    ),
    "VcudaPluginNotRegistered": (
        {'vcuda_registrations_total{resource="r"}': "0x30"},
        {
            'vcuda_registrations_total{resource="r"}': "1x30",
            'kube_node_status_allocatable{resource="tencent_com_vcuda_core"}': "800x30",
            'kube_node_status_allocatable{resource="cpu"}': "0x30",
            # A node that gives its cards by claims alone has none of these, and should not.
            'kube_node_status_allocatable{node="d",resource="tencent_com_vcuda_core"}': "0x30",
            'vcuda_card_front{node="d",uuid="u",front="dra"}': "1x30",
        },
    ),
    "VcudaClaimsRefused": (
        {'vcuda_claims_total{node="n",result="refused",reason="no-room"}': "0+1x30"},
        {
            # Refused three times, and deleted.
            'vcuda_claims_total{node="n",result="refused",reason="invalid"}': "0x14 3x16",
            'vcuda_claims_total{node="n",result="prepared"}': "0+1x30",
        },
    ),
    "VcudaClaimLingering": (
        {'vcuda_lingering_claims{node="n"}': "1x30"},
        {'vcuda_lingering_claims{node="n"}': "2x8 0x2 1x8 0x10"},
    ),
    "VcudaSliceNotPublished": (
        {'vcuda_slice_unpublished{node="n"}': "1x30"},
        {'vcuda_slice_unpublished{node="n"}': "0x23 1 0x6"},
    ),
    "VcudaAllocationFailures": (
        {'vcuda_allocations_total{result="refused"}': "0+1x30"},
        {
            'vcuda_allocations_total{result="refused"}': "4x30",
            'vcuda_allocations_total{result="granted"}': "0+1x30",
        },
    ),
    "VcudaIdsLeaked": (
        {"vcuda_unidentified_allocations": "1x30"},
        {"vcuda_unidentified_allocations": "1x10 0x20"},
    ),
    "VcudaMemoryNearLimit": (
        {
            f"vcuda_container_memory_used_bytes{{{C}}}": "96x30",
            f"vcuda_container_memory_limit_bytes{{{C}}}": "100x30",
        },
        {
            f"vcuda_container_memory_used_bytes{{{C}}}": "90x30",
            f"vcuda_container_memory_limit_bytes{{{C}}}": "100x30",
        },
    ),
    "VcudaContainerNotInjected": (
        {f"vcuda_container_not_injected{{{P}}}": "1x30"},
        {f"vcuda_container_not_injected{{{P}}}": "0x30"},
    ),
    "VcudaEvictionWaits": (
        {f"vcuda_pod_marked_for_eviction{{{P}}}": "1x30"},
        {f"vcuda_pod_marked_for_eviction{{{P}}}": "1x10 _x20"},
    ),
    "VcudaEvader": ({"vcuda_evaders": "1x30"}, {"vcuda_evaders": "0x30"}),
    "VcudaEvasionDetectionBlind": (
        {'vcuda_evasion_detection_blind{lacks="host-pid"}': "1x30"},
        {'vcuda_evasion_detection_blind{lacks="host-pid"}': "0x30"},
    ),
    "VcudaSamplesStale": ({"vcuda_sample_age_seconds": "31x30"}, {"vcuda_sample_age_seconds": "1x30"}),
    "VcudaAdmissionDown": ({"up": "1x30"}, {'vcuda_admission_build_info{version="1"}': "1x30"}),
    "VcudaNoLeader": (
        {'vcuda_admission_leader{instance="a"}': "0x30", 'vcuda_admission_leader{instance="b"}': "0x30"},
        {'vcuda_admission_leader{instance="a"}': "0x30", 'vcuda_admission_leader{instance="b"}': "1x30"},
    ),
    "VcudaAdmissionErrors": (
        {'vcuda_admission_http_responses_total{path="/mutate",code="500"}': "0+1x30"},
        {'vcuda_admission_http_responses_total{path="/mutate",code="200"}': "0+1x30"},
    ),
    "VcudaCertificateExpiring": (
        {"vcuda_admission_certificate_expiry_timestamp_seconds": "500000x30"},
        {"vcuda_admission_certificate_expiry_timestamp_seconds": "5000000x30"},
    ),
    "VcudaDenialsSpike": (
        {'vcuda_admission_decisions_total{result="denied",rule="r"}': "0+5x30"},
        {'vcuda_admission_decisions_total{result="denied",rule="r"}': "0+1x30"},
    ),
    "VcudaQuotaUnreadable": (
        {"vcuda_admission_quota_in_force": "0x30"},
        {"vcuda_admission_quota_in_force": "1x30"},
    ),
    "VcudaPodsBypassing": (
        {'vcuda_admission_bypassing_pods{reason="r"}': "2x30"},
        {'vcuda_admission_bypassing_pods{reason="r"}': "0x30"},
    ),
}
PRESENT = 'vcuda_admission_build_info{version="0"}'  # or its absence would be an alert of its own


Case = tuple[str, dict[str, str], list[dict[str, Any]]]


def judge(directory: Path, *cases: Case) -> None:
    """Series and what is expected of them, all in one run of promtool."""
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in series.items()],
            "promql_expr_test": expectations,
        }
        for name, series, expectations in cases
    ]
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (directory / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", directory / "test.yaml")


def firing(names: list[str]) -> dict[str, Any]:
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0'
    return {"expr": expression, "eval_time": "25m", "exp_samples": samples}


@needs_prometheus
def test_promtool_finds_no_fault() -> None:
    promtool("check", "rules", RULES)


def test_every_alert_is_tried() -> None:
    assert set(CASES) == set(ALERTS)


@needs_prometheus
def test_an_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    def cases() -> Iterator[Case]:
        for name, (bad, good) in CASES.items():
            present = {} if name == "VcudaAdmissionDown" else {PRESENT: "1x30"}
            yield f"{name} fires", {**present, **bad}, [firing([name])]
            yield f"{name} is silent", {**present, **good}, [firing([])]

    judge(tmp_path, *cases())


def test_every_alert_says_what_is_wrong_how_grave_it_is_and_what_to_do() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    headings = {line[3:].strip().lower() for line in text.splitlines() if line.startswith("## ")}
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("docs/runbooks.md", name.lower()), name
        assert anchor in headings, f"docs/runbooks.md has no section on {name}"
    assert headings == {name.lower() for name in ALERTS}


@needs_prometheus
def test_an_hour_of_thirty_cores_costs_thirty_core_hours_and_only_what_is_known_is_waste(
    tmp_path: Path,
) -> None:
    other = P.replace('"p"', '"q"')
    gib = 1 << 30
    series = {
        f"vcuda_pod_core_booked_ratio{{{P}}}": "0.3x60",
        f"vcuda_pod_core_booked_ratio{{{other}}}": "1x30 stale",
        f"vcuda_container_memory_used_bytes{{{C}}}": f"{gib}x60",
        **{
            f"vcuda_namespace_{figure}_total{{{N}}}": f"0+{step}x60"
            for figure, step in {
                "core_seconds": 80 * 60,
                "core_used_seconds": 10 * 60,
                "core_wasted_seconds": 20 * 60,
                "memory_byte_seconds": 5 * gib * 60,
                "memory_used_byte_seconds": gib * 60,
                "memory_wasted_byte_seconds": 4 * gib * 60,
            }.items()
        },
        'kube_pod_labels{namespace="a",pod="p",label_team="t"}': "1x60",
    }

    def costs(metric: str, value: float, labels: str = '{namespace="a"}', at: str = "60m") -> dict[str, Any]:
        return {
            "expr": f"round({metric}, 0.001)",
            "eval_time": at,
            "exp_samples": [{"labels": labels, "value": value}],
        }

    hour = "increase_1h"
    expected = [
        costs(f"namespace:vcuda_booked_core_hours:{hour}", 30 + 50),
        costs(f"namespace:vcuda_used_core_hours:{hour}", 10),
        costs(f"namespace:vcuda_wasted_core_hours:{hour}", 20),
        costs(f"namespace:vcuda_booked_memory_gib_hours:{hour}", 5),
        costs(f"namespace:vcuda_used_memory_gib_hours:{hour}", 1),
        costs(f"namespace:vcuda_wasted_memory_gib_hours:{hour}", 4),
        costs("namespace:vcuda_core_booked_ratio:sum", 1.3, at="20m"),
        costs("namespace:vcuda_booked_cores:sum", 130, at="20m"),
        costs("namespace_team:vcuda_core_booked_ratio:sum", 0.3, '{namespace="a", label_team="t"}', "20m"),
        costs("namespace_team:vcuda_booked_cores:sum", 30, '{namespace="a", label_team="t"}', "20m"),
        costs("namespace_team:vcuda_used_memory_bytes:sum", gib, '{namespace="a", label_team="t"}', "20m"),
    ]
    judge(tmp_path, ("an hour", series, expected))
