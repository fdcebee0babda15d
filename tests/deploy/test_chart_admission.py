"""What the chart makes of admission: the scheduler beside it or the cluster's own, webhooks, certificates."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from admission import config as admission_config
from admission.webhook.admit import TEMPLATES
from gpu_manager.domain import contract
from tests.deploy.chart import GANGS, WITH_ADMISSION, admission_pod, container, objects, of_kind, the

EXTENDER_KEYS = {
    *("urlPrefix", "filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb", "weight", "nodeCacheCapable"),
    *("httpTimeout", "ignorable", "managedResources", "enableHTTPS", "tlsConfig"),
}


@pytest.mark.parametrize(
    ("name", "configmap"),
    [
        ("defaults", "gpu-quota-admission-scheduler"),
        ("cluster", "gpu-quota-admission-cluster-scheduler"),
        ("cluster-by-hand", "gpu-quota-admission-cluster-scheduler"),
    ],
)
def test_the_schedulers_configuration_lets_the_policy_decide(name: str, configmap: str) -> None:
    config = yaml.safe_load(the(name, "ConfigMap", configmap)["data"]["config.yaml"])
    assert (config["apiVersion"], config["kind"]) == (
        "kubescheduler.config.k8s.io/v1",
        "KubeSchedulerConfiguration",
    )
    assert config["percentageOfNodesToScore"] == 100
    (extender,) = config["extenders"]
    assert set(extender) <= EXTENDER_KEYS  # kube-scheduler refuses others
    assert extender["weight"] >= 150
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert extender["managedResources"] == [
        {"name": resource, "ignoredByScheduler": False} for resource in (contract.CORE, contract.MEMORY)
    ]
    verbs = {extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "bind", "preempt")}
    assert verbs == {"filter", "prioritize", "bind", "preempt"}


def test_beside_its_scheduler_the_extender_listens_on_loopback_and_follows_that_lease() -> None:
    config = yaml.safe_load(
        the("defaults", "ConfigMap", "gpu-quota-admission-scheduler")["data"]["config.yaml"]
    )
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == f"http://{admission_config.EXTENDER}/scheduler"
    assert "tlsConfig" not in extender
    election = config["leaderElection"]
    assert election["leaderElect"] is True
    assert (election["resourceNamespace"], election["resourceName"]) == (
        "kube-system",
        contract.ADMISSION_NAME,
    )
    (profile,) = config["profiles"]
    admission = container(admission_pod("defaults"), "admission")
    assert f"--scheduler-name={profile['schedulerName']}" in admission["args"]
    assert f"--extender-address={admission_config.EXTENDER}" in admission["args"]
    assert "--leader-mode=scheduler" in admission["args"]
    assert [p["name"] for p in admission["ports"]] == ["webhook", "probes"]
    assert not [o for o in of_kind("defaults", "Service") if "extender" in o["metadata"]["name"]]


def test_the_scheduler_beside_admission_has_the_plugins_that_its_image_brings() -> None:
    config = yaml.safe_load(
        the("bare-network", "ConfigMap", "gpu-quota-admission-scheduler")["data"]["config.yaml"]
    )
    assert config["profiles"] == [{"schedulerName": "vcuda-scheduler", **GANGS}]
    args = container(admission_pod("bare-network"), "scheduler")["args"]
    assert "--feature-gates=GenericWorkload=true,GangScheduling=true" in args
    assert len(config["extenders"]) == 1


def test_the_clusters_scheduler_needs_a_certificate_and_reaches_the_leader_alone() -> None:
    config = yaml.safe_load(
        the("cluster", "ConfigMap", "gpu-quota-admission-cluster-scheduler")["data"]["config.yaml"]
    )
    (extender,) = config["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["urlPrefix"] == "https://10.96.0.9:3456/scheduler"
    assert set(extender["tlsConfig"]) == {"serverName", "caFile", "certFile", "keyFile"}
    assert config["profiles"] == [{"schedulerName": "default-scheduler"}]
    by_hand = the("cluster-by-hand", "ConfigMap", "gpu-quota-admission-cluster-scheduler")["data"]
    named = [p["schedulerName"] for p in yaml.safe_load(by_hand["config.yaml"])["profiles"]]
    assert named == ["default-scheduler", "vcuda-scheduler"]  # other pods must not lose theirs
    service = the("cluster", "Service", "gpu-quota-admission-extender")
    assert extender["tlsConfig"]["serverName"] == "gpu-quota-admission-extender.kube-system.svc"
    assert service["spec"]["selector"][contract.LEADER_LABEL] == "true"
    admission = container(admission_pod("cluster"), "admission")
    assert "--leader-mode=lease" in admission["args"]
    assert "--scheduler-name=default-scheduler" in admission["args"]
    assert [c["name"] for c in admission_pod("cluster")["containers"]] == ["admission"]
    made = {o["metadata"]["name"]: o["spec"] for o in of_kind("cluster", "Certificate")}
    assert made["gpu-quota-admission-extender"]["dnsNames"] == [extender["tlsConfig"]["serverName"]]
    assert made["gpu-quota-admission-scheduler"]["commonName"] == admission_config.SCHEDULER_USER


def test_a_certificate_of_ones_own_is_served_and_vouched_for_and_takes_rights_away() -> None:
    hooks = [
        hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in next(of_kind("own-certificate", kind))["webhooks"]
    ]
    assert len(hooks) == 6
    for hook in hooks:
        authority = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        assert authority == "-----BEGIN CERTIFICATE-----\nours"
    pod = admission_pod("own-certificate")
    assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == ["ours"]
    arguments = container(pod, "admission")["args"]
    assert "--tls-cert-file=/etc/gpu-quota-admission/webhook/admit/tls.crt" in arguments
    rights = {r for o in objects("own-certificate") for rule in o.get("rules", []) for r in rule["resources"]}
    assert "secrets" not in rights
    (endpoint,) = next(of_kind("own-certificate", "ServiceMonitor"))["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "ours"


@pytest.mark.parametrize("name", WITH_ADMISSION)
def test_admission_survives_the_loss_of_a_node_and_never_blocks_a_drain(name: str) -> None:
    deployment = the(name, "Deployment", "gpu-quota-admission")["spec"]
    budget = the(name, "PodDisruptionBudget", "gpu-quota-admission")["spec"]
    replicas = deployment["replicas"]
    assert replicas == (1 if name in ("simulated", "cluster-by-hand") else 2)
    assert budget.get("minAvailable", 0) < replicas
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    affinity = deployment["template"]["spec"]["affinity"]["podAntiAffinity"]
    (near,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_the_webhook_warns_about_every_template_that_the_program_reads() -> None:
    hooks = next(of_kind("defaults", "ValidatingWebhookConfiguration"))["webhooks"]
    (warn,) = (h for h in hooks if h["name"].startswith("warn."))
    assert warn["failurePolicy"] == "Ignore"
    asked = {(r["apiGroups"][0], plural) for r in warn["rules"] for plural in r["resources"]}
    assert asked == set(TEMPLATES)


@pytest.mark.parametrize("name", WITH_ADMISSION)
def test_on_a_nodes_network_the_scheduler_shows_a_certificate_that_its_pod_made(name: str) -> None:
    """Loopback is every program's of the node there."""
    pod = admission_pod(name)
    args = container(pod, "admission")["args"]
    beside = "--extender-address=127.0.0.1:3456" in args
    shown = [one for one in args if one.startswith("--extender-client-ca-file")]
    assert bool(shown) is (not beside or pod.get("hostNetwork", False))
    if not (beside and shown):
        return
    (first,) = pod["initContainers"]
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["pod-certificate"]["emptyDir"]["medium"] == "Memory"
    directory = first["volumeMounts"][0]["mountPath"]
    assert first["command"] == ["gpu-quota-admission", f"--make-pod-certificate={directory}"]
    config = yaml.safe_load(the(name, "ConfigMap", "gpu-quota-admission-scheduler")["data"]["config.yaml"])[
        "extenders"
    ][0]
    assert config["urlPrefix"].startswith("https://127.0.0.1:")
    assert {Path(config["tlsConfig"][key]).parent for key in ("caFile", "certFile", "keyFile")} == {
        Path(directory)
    }
    assert f"--extender-client-name={config['tlsConfig']['serverName']}" in args
    for each in ("admission", "scheduler"):
        mounts = container(pod, each)["volumeMounts"]
        assert {"name": "pod-certificate", "mountPath": directory, "readOnly": True} in mounts


def test_the_schedulers_image_is_named_by_its_digest_where_one_is_given() -> None:
    image = container(admission_pod("unprivileged"), "scheduler")["image"]
    assert image == "registry.k8s.io/kube-scheduler@sha256:" + "1" * 64
    assert container(admission_pod("defaults"), "scheduler")["image"].endswith(":v1.36.2")
