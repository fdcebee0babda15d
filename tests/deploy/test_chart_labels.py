"""What operators put on the chart's objects: labels, annotations, where pods spread, where runbooks are."""

from __future__ import annotations

import pytest
import yaml

from tests.deploy.chart import CHART, admission_pod, helm, objects, of_kind, the

ADMISSION, LIMITS = "gpu-quota-admission", ["resourcequotas", "limitranges"]
NAME = "app.kubernetes.io/name"
PODS = (
    ("DaemonSet", "gpu-manager-daemonset"),
    ("Deployment", "gpu-quota-admission"),
    ("Deployment", "gpu-manager-evictor"),
)


def test_common_labels_stand_on_every_object_and_pod_and_the_pods_own_count_there() -> None:
    for obj in objects("labelled"):
        assert obj["metadata"]["labels"]["cost-centre"] == "ml", obj["metadata"]["name"]
        assert obj["metadata"]["labels"]["team"] == "a"
        assert "sidecar.istio.io/inject" not in obj["metadata"]["labels"]
    for kind, name in PODS:
        labels = the("labelled", kind, name)["spec"]["template"]["metadata"]["labels"]
        assert (labels["cost-centre"], labels["team"]) == ("ml", "c" if kind == "DaemonSet" else "b")
        assert labels.get("admissions") == ("a" if name == "gpu-quota-admission" else None)
        assert labels["sidecar.istio.io/inject"] == "false"


def test_pods_are_selected_by_none_of_them() -> None:
    for kind, name in PODS:
        found = the("labelled", kind, name)
        selector = found["spec"]["selector"]["matchLabels"]
        assert selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()
        assert set(selector) == {NAME, "app.kubernetes.io/instance", "app.kubernetes.io/component"}
        assert selector[NAME] == "gpus"


def test_pods_accounts_and_webhooks_carry_what_they_are_given() -> None:
    for kind, name in PODS:
        annotations = the("labelled", kind, name)["spec"]["template"]["metadata"]["annotations"]
        assert annotations["vault.hashicorp.com/agent-inject"] == "false"
        assert ("company.example/owner" in annotations) == (kind == "DaemonSet")
        assert ("a.example/x" in annotations) == (name == "gpu-quota-admission")
        assert ("checksum/terms" in annotations) == (name != "gpu-manager-evictor")
    accounts = list(of_kind("labelled", "ServiceAccount"))
    assert len(accounts) == len(PODS)
    for account in accounts:
        assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (hooks,) = of_kind("labelled", kind)
        assert hooks["metadata"]["labels"]["admissions.enforcer/disabled"] == "true"


def test_kubernetes_own_quotas_are_read_where_resizes_are_held_to_them_alone() -> None:
    for name, held in (("labelled", True), ("monitored", False)):
        (role,) = (one for one in of_kind(name, "ClusterRole") if one["metadata"]["name"] == ADMISSION)
        read = [rule for rule in role["rules"] if "resourcequotas" in rule["resources"]]
        assert read == ([{"apiGroups": [""], "resources": LIMITS, "verbs": ["list"]}] if held else [])
        words = admission_pod(name)["containers"][0]
        assert ("--resize-within-quota" in [*words.get("command", ()), *words.get("args", ())]) == held


def test_pod_groups_are_read_only_of_the_apis_that_are_named() -> None:
    for name, named in (("labelled", ["scheduling.k8s.io", "scheduling.x-k8s.io"]), ("monitored", [])):
        (role,) = (one for one in of_kind(name, "ClusterRole") if one["metadata"]["name"] == ADMISSION)
        read = [rule for rule in role["rules"] if "podgroups" in rule["resources"]]
        assert [rule["apiGroups"] for rule in read] == [[api] for api in named]
        assert all(rule["verbs"] == ["list", "watch"] for rule in read)
        words = admission_pod(name)["containers"][0]["args"]
        assert [word for word in words if "gang" in word or "pod-groups" in word] == (
            [
                "--gang-seconds=120",
                "--pod-groups=scheduling.k8s.io/v1beta1",
                "--pod-groups=scheduling.x-k8s.io/v1alpha1",
            ]
            if named
            else []
        )


@pytest.mark.parametrize("api", ["apps/v1", "scheduling.k8s.io", "scheduling.x-k8s.io/v1alpha1/podgroups"])
def test_an_api_that_has_no_pod_groups_is_refused_by_the_chart(api: str) -> None:
    found = helm("template", "x", str(CHART), f'--set-json=admission.gangs.podGroups=["{api}"]')
    assert found.returncode != 0
    assert "podGroups" in found.stderr


def test_admission_spreads_over_zones_by_its_own_pods() -> None:
    (spread,) = admission_pod("labelled")["topologySpreadConstraints"]
    labels = the("labelled", "Deployment", "gpu-quota-admission")["spec"]["selector"]["matchLabels"]
    assert spread["labelSelector"] == {"matchLabels": labels}
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("name", "page"), [("labelled", "https://host/runbooks.md"), ("monitored", "docs/runbooks.md")]
)
def test_an_alert_leads_to_its_section_of_the_runbooks(name: str, page: str) -> None:
    (rules,) = of_kind(name, "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 20
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{page}#{alert['alert'].lower()}"


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ((), True),
        (("--set=namespace.priorityQuota=false",), False),
        (("--set=agent.priorityClassName=gpu,admission.priorityClassName=gpu",), False),
        (("--set=agent.priorityClassName=gpu,admission.enabled=false",), False),
    ],
)
def test_the_systems_priorities_are_let_into_another_namespace(values: tuple[str, ...], made: bool) -> None:
    done = helm("template", "gpu-manager", str(CHART), "-n", "gpu", "--kube-version", "1.36.2", *values)
    quotas = [o for o in yaml.safe_load_all(done.stdout) if o and o["kind"] == "ResourceQuota"]
    assert bool(quotas) is made
    assert not list(of_kind("defaults", "ResourceQuota"))
    for quota in quotas:
        (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        assert scope["values"] == ["system-node-critical", "system-cluster-critical"]


@pytest.mark.parametrize("name", ["commonLabels", "podLabels", "webhook.labels"])
@pytest.mark.parametrize("key", [NAME, "app.kubernetes.io/component", "helm.sh/chart"])
def test_the_labels_by_which_objects_are_known_are_not_to_be_given(name: str, key: str) -> None:
    outer, _, inner = name.partition(".")
    values = f'{outer}={{"{inner}":{{"{key}":"x"}}}}' if inner else f'{outer}={{"{key}":"x"}}'
    done = helm("template", "gpu-manager", str(CHART), f"--set-json={values}")
    assert done.returncode != 0
    assert key in done.stderr
