"""What the renders promise: names that others rely on, privileges, what ends and what outlives what."""

from __future__ import annotations

import base64
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from admission import config as admission_config
from admission.__main__ import command as admission_command
from admission.webhook.admit import TEMPLATES
from gpu_manager.cli.beside import evict_marked as evictor_command
from gpu_manager.cli.run import OLD_FLAGS
from gpu_manager.cli.run import command as run_command
from gpu_manager.domain import contract
from gpu_manager.domain.resources import DEFAULT_UNIT, format_bytes
from gpu_manager.runtime.arguments import Command
from tests.deploy.chart import (
    CHART,
    GANGS,
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
WITH_ADMISSION = [name for name in SETS if name != "least"]


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


def test_the_values_that_turn_things_off_turn_them_off() -> None:
    pod = agent_pod("least")
    assert pod["hostPID"] is False
    arguments = container(pod, "gpu-manager")["args"]
    assert {"--no-evict", "--no-legacy-metrics"} <= set(arguments)
    assert not [a for a in arguments if a.startswith("--kubelet-pods-url")]
    kinds = {o["kind"] for o in objects("least")}
    assert not kinds & {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "ValidatingAdmissionPolicy"}
    assert not kinds & {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}


def test_errors_and_nvidias_name_for_cards_are_values_of_their_own() -> None:
    arguments = container(agent_pod("unprivileged"), "gpu-manager")["args"]
    assert "--topology-manager-policy=restricted" in arguments
    assert {"--nvidia-resource", "--program-xids=31,43", "--card-xids=13"} <= set(arguments)
    silent = container(agent_pod("defaults"), "gpu-manager")["args"]
    assert not [a for a in silent if "xids" in a or "nvidia-resource" in a or "topology" in a]


RUN = Command("gpu-manager run", run_command)
ADMISSION = Command("gpu-quota-admission", admission_command)
EVICTOR = Command("gpu-manager evict-marked", evictor_command)


def options(program: Command) -> dict[str, bool]:
    """Flag → whether a value follows."""
    return {
        name: one.convert is not None
        for one in program.parameters
        for name in (*one.names, *one.off)
        if name.startswith("--")
    }


@pytest.mark.parametrize("name", SETS)
def test_every_flag_that_is_passed_is_one_that_the_program_has(name: str) -> None:
    known = options(RUN)
    for argument in container(agent_pod(name), "gpu-manager")["args"]:
        flag, equals, _ = argument.partition("=")
        assert flag in known, argument
        assert flag[2:] not in OLD_FLAGS, argument
        assert known[flag] == bool(equals), argument
    if name in WITH_ADMISSION:
        known = options(ADMISSION)
        for argument in container(admission_pod(name), "admission")["args"]:
            flag, equals, _ = argument.partition("=")
            assert known.get(flag) == bool(equals), argument
        evictor = the(name, "Deployment", "gpu-manager-evictor")["spec"]["template"]["spec"]
        for argument in container(evictor, "evictor")["args"]:
            assert options(EVICTOR)[argument.partition("=")[0]], argument


def test_the_evictors_rate_is_a_value_and_one_process_counts_it() -> None:
    spec = the("defaults", "Deployment", "gpu-manager-evictor")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (evictor,) = spec["template"]["spec"]["containers"]
    assert evictor["command"] == ["gpu-manager", "evict-marked"]
    assert evictor["args"] == ["--per-minute=10", "--node-per-minute=3"]


def test_both_programs_read_the_same_terms() -> None:
    terms = the("terms", "ConfigMap", "gpu-manager-terms")["data"]
    assert terms == {
        "VCUDA_MEMORY_UNIT": str(1 << 30),
        "VCUDA_MINIMUM_CORES": "5",
        "VCUDA_DEFAULT_MEMORY": "2",
    }
    assert the("defaults", "ConfigMap", "gpu-manager-terms")["data"]["VCUDA_MEMORY_UNIT"] == str(DEFAULT_UNIT)
    admission = container(admission_pod("terms"), "admission")
    assert admission["envFrom"] == [{"configMapRef": {"name": "gpu-manager-terms"}}]
    known = {p.envvar for p in ADMISSION.parameters}
    assert set(terms) <= known
    agent = container(agent_pod("terms"), "gpu-manager")
    assert "--memory-unit=$(VCUDA_MEMORY_UNIT)" in agent["args"]
    assert [e["valueFrom"] for e in agent["env"] if e["name"] == "VCUDA_MEMORY_UNIT"]
    checksums = [
        the(name, "DaemonSet", "gpu-manager-daemonset")["spec"]["template"]["metadata"]["annotations"]
        for name in ("defaults", "terms")
    ]
    assert checksums[0] != checksums[1], "a change of terms must start the agents anew"


def test_the_quota_is_the_predecessors_and_outlives_the_chart() -> None:
    quota = the("terms", "ConfigMap", "gpuquota")
    assert f"{quota['metadata']['namespace']}/{quota['metadata']['name']}" == admission_config.QUOTA
    assert quota["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert json.loads(quota["data"]["gpu_quota"])["team-a"]["quota"] == {"Tesla-T4": 4}
    assert not [o for o in of_kind("defaults", "ConfigMap") if o["metadata"]["name"] == "gpuquota"]


# Scheduling.

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


def test_a_memory_unit_is_the_same_in_every_form_that_yaml_has_for_it(tmp_path: Path) -> None:
    for written in ("268435456", '"268435456"', "256Mi", "2.68435456e+8"):
        values = tmp_path / "values.yaml"
        values.write_text(f"terms: {{memoryUnit: {written}}}\n")
        done = helm("template", "x", str(CHART), "-n", "kube-system", "-f", str(values))
        assert 'VCUDA_MEMORY_UNIT: "268435456"' in done.stdout, done.stderr


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


def test_the_webhook_warns_about_every_template_that_the_program_reads() -> None:
    hooks = next(of_kind("defaults", "ValidatingWebhookConfiguration"))["webhooks"]
    (warn,) = (h for h in hooks if h["name"].startswith("warn."))
    assert warn["failurePolicy"] == "Ignore"
    asked = {(r["apiGroups"][0], plural) for r in warn["rules"] for plural in r["resources"]}
    assert asked == set(TEMPLATES)


def test_the_notes_ask_for_five_gibibytes_in_the_clusters_unit() -> None:
    assert format_bytes(20 * DEFAULT_UNIT) == "5 GiB"


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
