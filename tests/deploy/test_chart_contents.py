"""What the renders promise: names that others rely on, privileges, what ends and what outlives what."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from admission import config as admission_config
from gpu_manager.domain import contract
from tests.deploy.chart import (
    CHART,
    SETS,
    admission_pod,
    agent_pod,
    container,
    helm,
    objects,
    of_kind,
    text_of,
    the,
)

PRIVILEGED = {
    "defaults",
    "viewed",
    "cluster",
    "cluster-by-hand",
    "monitored",
    "own-namespace",
    "labelled",
    "autoscaled",
    "bare-network",
    "own-certificate",
    "claims",
    "split",
    "leaving",
    "terms",
}


def test_names_are_those_of_the_contract() -> None:
    service = the("defaults", "Service", "gpu-manager-metric")
    assert service["spec"]["clusterIP"] == "None"
    assert [p["port"] for p in service["spec"]["ports"]] == [contract.HTTP_PORT]
    annotations = service["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == "/metric"
    assert annotations["prometheus.io/port"] == str(contract.HTTP_PORT)
    assert annotations["prometheus.io/scrape"] == "true"
    agent = container(agent_pod("defaults"), "gpu-manager")
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in agent["volumeMounts"]}
    assert mounts[f"{contract.KUBELET_DIR}/device-plugins"] is False
    assert mounts[f"{contract.KUBELET_DIR}/pod-resources"] is True
    assert mounts[contract.STATE_DIR] is False
    assert mounts[contract.PAGES_DIR.rpartition("/")[0]] is False
    assert f"--checkpoint-path=/host{contract.OLD_CHECKPOINT_DIR}" in agent["args"]
    assert mounts["/host"] is True
    assert mounts["/host/sys/fs/cgroup"] is False
    assert {o["metadata"]["name"] for o in of_kind("defaults", "ServiceAccount")} == {
        contract.EVICTOR_NAME,
        *(user.rpartition(":")[2] for user in admission_config.TRUSTED_USERS),
    }


def test_what_containers_mount_from_has_the_same_path_on_the_node() -> None:
    for name in SETS:
        pod = agent_pod(name)
        paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
        for mount in container(pod, "gpu-manager")["volumeMounts"]:
            inside, outside = mount["mountPath"], paths.get(mount["name"])
            if outside is not None and not inside.startswith("/host"):
                assert inside == outside
            elif outside is not None:
                assert inside == f"/host{outside}".rstrip("/")


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_made_under_etc_which_some_systems_keep_read_only(name: str) -> None:
    paths = [v["hostPath"] for v in agent_pod(name)["volumes"] if "hostPath" in v]
    made = [path["path"] for path in paths if path.get("type") == "DirectoryOrCreate"]
    assert made, "the state and the pages are"
    assert [path for path in made if path.startswith("/etc")] == []


@pytest.mark.parametrize("name", SETS)
def test_privileges_are_the_least_that_work(name: str) -> None:
    for obj in objects(name):
        pod = obj["spec"] if obj["kind"] == "Pod" else obj.get("spec", {}).get("template", {}).get("spec")
        for one in [*pod["containers"], *pod.get("initContainers", [])] if pod else []:
            security = one["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            if one["name"] == "gpu-manager" and name in PRIVILEGED:
                assert security == {"privileged": True, "readOnlyRootFilesystem": True}
                continue
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "privileged" not in security
            if obj["metadata"]["name"] != "gpu-manager-daemonset":
                assert pod["securityContext"]["runAsNonRoot"] is True
            assert one["resources"]["limits"]["memory"] if one["name"] != "stand-in" else True


def test_the_agent_runs_where_cards_are_and_two_never_share_a_node() -> None:
    spec = the("defaults", "DaemonSet", "gpu-manager-daemonset")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    pod = spec["template"]["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["hostPID"] is True
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    opted_in = {"key": "nvidia-device-enable", "operator": "In", "values": ["enable"]}
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [opted_in]}], "no label that others set"
    # The predecessor's reserves are an upper bound.
    assert container(pod, "gpu-manager")["resources"]["requests"] == {"cpu": "50m", "memory": "160Mi"}


def test_the_quota_is_the_predecessors_and_outlives_the_chart() -> None:
    quota = the("terms", "ConfigMap", "gpuquota")
    assert f"{quota['metadata']['namespace']}/{quota['metadata']['name']}" == admission_config.QUOTA
    assert quota["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert json.loads(quota["data"]["gpu_quota"])["team-a"]["quota"] == {"Tesla-T4": 4}
    assert not [o for o in of_kind("defaults", "ConfigMap") if o["metadata"]["name"] == "gpuquota"]


# What outlives what.


@pytest.mark.parametrize("name", SETS)
def test_uninstall_and_rollback_touch_no_node(name: str) -> None:
    """What limits running containers lies in directories of the node, and nothing here ever clears them."""
    text = text_of(name)
    assert "preStop" not in text
    hooks = re.findall(r"helm\.sh/hook: (.*)", text)
    assert set(hooks) <= {"test", "pre-install,pre-upgrade"}  # the latter makes an empty Secret
    for volume in agent_pod(name)["volumes"]:
        assert "emptyDir" not in volume
    assert "rm -" not in text


@pytest.mark.parametrize("name", SETS)
def test_services_and_network_policies_select_pods_that_are_there(name: str) -> None:
    pods = [
        o["spec"]["template"]["metadata"]["labels"]
        for o in objects(name)
        if o["kind"] in ("Deployment", "DaemonSet")
    ]
    for obj in objects(name):
        selector: dict[str, str] | None = None
        if obj["kind"] == "Service":
            selector = {k: v for k, v in obj["spec"]["selector"].items() if k != contract.LEADER_LABEL}
        elif obj["kind"] == "NetworkPolicy":
            selector = obj["spec"]["podSelector"]["matchLabels"]
        if selector is not None:
            assert sum(selector.items() <= labels.items() for labels in pods) == 1, obj["metadata"]["name"]


def test_the_roles_for_people_can_be_left_out_and_are_bound_to_nobody_by_themselves() -> None:
    def named(name: str) -> set[tuple[str, str]]:
        return {(o["kind"], o["metadata"]["name"]) for o in objects(name) if "-view" in o["metadata"]["name"]}

    roles = {
        ("ClusterRole", "gpu-manager-view"),
        ("Role", "gpu-manager-view"),
        ("Role", "gpu-manager-view-quota"),
    }
    assert named("defaults") == roles
    assert named("least") == set()
    assert named("viewed") == roles | {(kind.replace("Role", "RoleBinding"), name) for kind, name in roles}
    assert not [
        o for o in objects("defaults") if "aggregat" in str(o["metadata"]) and o["kind"] == "ClusterRole"
    ]


def test_a_namespace_of_its_own_allows_host_paths_and_its_accounts_are_the_trusted_ones() -> None:
    (namespace,) = of_kind("own-namespace", "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    arguments = container(admission_pod("own-namespace"), "admission")["args"]
    assert "--trusted-user=system:serviceaccount:gpu:gpu-manager" in arguments
    assert "kube-system:gpu-" not in text_of("own-namespace")


def test_without_kube_proxy_every_part_finds_the_api_server_by_address() -> None:
    for pod, name in (
        (agent_pod("bare-network"), "gpu-manager"),
        (admission_pod("bare-network"), "admission"),
        (admission_pod("bare-network"), "scheduler"),
    ):
        environment = {e["name"]: e.get("value") for e in container(pod, name)["env"]}
        assert environment["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"
        assert environment["KUBERNETES_SERVICE_PORT"] == "6443"
    (hook, *_) = next(of_kind("bare-network", "MutatingWebhookConfiguration"))["webhooks"]
    assert hook["clientConfig"] == {"url": "https://gpu-quota-admission.kube-system.svc:9443/mutate"}
    assert "KUBERNETES_SERVICE_HOST" not in text_of("defaults")


def test_simulated_nodes_pull_nothing_and_mount_the_stand_in_driver_from_the_node() -> None:
    assert set(re.findall(r"imagePullPolicy: (\w+)", text_of("simulated"))) == {"Never"}
    pod = agent_pod("simulated")
    arguments = dict(pairwise("=".join(container(pod, "gpu-manager")["args"]).split("=")))
    assert arguments["--cards"].startswith("simulated:")
    assert arguments["--device-injection"] == "simulated"
    assert arguments["--stand-in"].startswith(f"{contract.STATE_DIR}/")
    (first,) = pod["initContainers"]
    assert arguments["--stand-in"] in first["args"][0]
    compile(first["args"][0], "stand-in", "exec")
    assert "affinity" not in pod


def test_cdi_specs_are_shown_to_the_agents_that_write_them() -> None:
    """CDI's directory is shown where specs are written, and nowhere else."""
    for name, there in (("defaults", True), ("least", True), ("nvidia", False), ("simulated", False)):
        assert ("/var/run/cdi" in text_of(name)) is there


def test_simulated_cards_come_by_cdi_where_that_is_asked_for() -> None:
    done = helm("template", "x", str(CHART), *SETS["simulated"], "--set=cards.injection=cdi")
    assert done.returncode == 0, done.stderr
    assert "- --device-injection=cdi\n" in done.stdout
    assert "- --stand-in=" in done.stdout
    assert "mountPath: /var/run/cdi" in done.stdout


# Monitoring.


def test_monitors_scrape_what_the_programs_serve() -> None:
    (endpoint,) = next(of_kind("monitored", "PodMonitor"))["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["honorLabels"]) == ("metrics", "/metric", True)
    (endpoint,) = next(of_kind("monitored", "ServiceMonitor"))["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == ("webhook", "/metrics", "https")
    for kind in ("PodMonitor", "ServiceMonitor"):
        assert next(of_kind("monitored", kind))["metadata"]["labels"]["release"] == "prometheus"


def test_rules_and_dashboards_arrive_as_they_are_in_their_files() -> None:
    (rule,) = of_kind("monitored", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    maps = list(of_kind("monitored", "ConfigMap"))
    boards = {k: v for o in maps for k, v in o["data"].items() if k.endswith(".json")}
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert len(files) >= 3
    assert boards == files
    for obj in maps:
        is_board = any(k.endswith(".json") for k in obj["data"])
        assert (obj["metadata"]["labels"].get("grafana_dashboard") == "1") is is_board


def test_a_copy_of_the_chart_without_them_says_so_and_installs_without(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(CHART, tmp_path / "gpu-manager"))
    shutil.rmtree(copied / "files" / "dashboards")
    (copied / "files" / "rules.yaml").unlink()
    template = ("template", "gpu-manager", str(copied), "-n", "kube-system")
    assert helm(*template).returncode == 0
    for wanted, missing in (("rules", "files/rules.yaml"), ("dashboards", "files/dashboards")):
        done = helm(*template, f"--set=monitoring.{wanted}=true")
        assert done.returncode != 0
        assert missing in done.stderr
