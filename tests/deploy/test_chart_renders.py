"""Every render is what the API server takes, and says what it says everywhere else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, KUBECTL, MANIFESTS, ROOT, SETS, helm, objects, text_of
from tests.deploy.schemas import faults
from tests.fakes.waiting import PATIENCE

VERSIONS = ("1.30.0", "1.37.0")  # the oldest that is supported, the newest known
SINCE_1_34 = "resource.k8s.io/v1"  # and the chart refuses what needs it on an older one
FOREIGN = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}  # no schema of Kubernetes' own
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "DeviceClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
}


def key(obj: dict[str, Any]) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def test_lint_is_clean() -> None:
    done = helm("lint", "--strict", str(CHART), "-n", "kube-system")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_each_render_is_valid_for_each_version_of_kubernetes(version: str) -> None:
    distinct = {json.dumps(o, sort_keys=True): o for name in SETS for o in objects(name)}.values()
    unknown = FOREIGN | ({SINCE_1_34} if version == VERSIONS[0] else set())
    ours = [o for o in distinct if o["apiVersion"] not in unknown]
    assert len(ours) > 80
    assert {f"{key(o)}: {fault}" for o in ours for fault in faults(o, version)} == set()


def test_claims_on_a_kubernetes_that_has_none_are_refused_with_the_cure() -> None:
    done = helm("template", "x", str(CHART), "--kube-version", "1.33.0", *SETS["claims"])
    assert done.returncode != 0
    assert "agent.front is dra, which needs Kubernetes 1.34" in done.stderr


def test_a_field_that_kubernetes_does_not_know_is_a_fault() -> None:
    broken = next(o for o in objects("defaults") if o["kind"] == "DaemonSet")
    broken["spec"]["template"]["spec"]["hostPids"] = True
    (fault,) = faults(broken, VERSIONS[-1])
    assert "hostPids" in fault
    broken["spec"]["template"]["spec"] = {"containers": "none"}
    assert faults(broken, VERSIONS[0])


@pytest.mark.parametrize("name", SETS)
def test_no_object_stands_twice_and_each_says_where_it_goes(name: str) -> None:
    found = [key(o) for o in objects(name)]
    assert len(set(found)) == len(found)
    for obj in objects(name):
        assert ("namespace" in obj["metadata"]) == (obj["kind"] not in CLUSTER_WIDE), key(obj)
        assert obj["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpu-manager"


@pytest.mark.parametrize("name", SETS)
def test_whatever_is_named_is_there(name: str) -> None:
    """Volumes, environments, roles and services point at objects of this render, or at known foreign ones."""
    there = {(kind, called) for kind, _, called in map(key, objects(name))}
    elsewhere = {
        ("ClusterRole", "system:kube-scheduler"),
        ("ClusterRole", "system:volume-scheduler"),
        ("Role", "extension-apiserver-authentication-reader"),
        ("Secret", "gpu-quota-admission-extender"),
        ("Secret", "gpu-quota-admission-certs"),
        ("Secret", "metrics"),
        ("Secret", "reader"),
        ("Secret", "ours"),
        ("Group", "gpu-users"),
    }
    for obj in objects(name):
        for kind, called in named(obj):
            assert (kind, called) in there | elsewhere, f"{key(obj)} names {kind} {called}"


def named(obj: Any) -> list[tuple[str, str]]:
    found = []
    if isinstance(obj, dict):
        for field, kind, word in (
            ("configMap", "ConfigMap", "name"),
            ("configMapRef", "ConfigMap", "name"),
            ("configMapKeyRef", "ConfigMap", "name"),
            ("secret", "Secret", "secretName"),
            ("service", "Service", "name"),
        ):
            if isinstance(obj.get(field), dict) and word in obj[field]:
                found.append((kind, obj[field][word]))
        if "roleRef" in obj:
            found.append((obj["roleRef"]["kind"], obj["roleRef"]["name"]))
            found += [(s["kind"], s["name"]) for s in obj["subjects"]]
        if "serviceAccountName" in obj:
            found.append(("ServiceAccount", obj["serviceAccountName"]))
        if "policyName" in obj:
            found.append(("ValidatingAdmissionPolicy", obj["policyName"]))
        for value in obj.values():
            found += named(value)
    elif isinstance(obj, list):
        for value in obj:
            found += named(value)
    return found


@pytest.mark.parametrize("name", SETS)
def test_every_volume_is_mounted_and_every_mount_has_a_volume(name: str) -> None:
    for obj in objects(name):
        pod = obj["spec"] if obj["kind"] == "Pod" else obj.get("spec", {}).get("template", {}).get("spec")
        if not pod:
            continue
        mounted = {m["name"] for c in containers(pod) for m in c.get("volumeMounts", [])}
        assert mounted == {v["name"] for v in pod.get("volumes", [])}, key(obj)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["containers"], *pod.get("initContainers", [])]


def test_manifests_readme_and_policies_are_what_the_chart_makes() -> None:
    done = subprocess.run(
        [sys.executable, "deploy/tools/render.py", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubectl_reads_the_manifests_and_they_are_the_charts_defaults() -> None:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(MANIFESTS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    plain = {key(o): o for o in yaml.safe_load_all(done.stdout)}
    chart = {
        key(o): o
        for o in objects("defaults")
        if o["kind"] == "Secret" or "helm.sh/hook" not in (o["metadata"].get("annotations") or {})
    }
    assert plain.keys() == chart.keys()
    for which, obj in chart.items():
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            obj["metadata"]["labels"].pop(label)
        if obj["kind"] == "Secret":
            del obj["metadata"]["annotations"]  # a hook
        assert plain[which] == obj
    assert "helm.sh" not in done.stdout
    assert "Helm" not in done.stdout


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(known: dict[str, Any], value: dict[str, Any], where: str) -> None:
        if "properties" not in known or known.get("additionalProperties") is not False:
            return
        names = set(known["properties"]) - ({"global"} if not where else set())
        if value or where.count(".") == 0:
            assert names >= set(value), where
        for name, inner in value.items():
            if isinstance(inner, dict):
                compare(known["properties"][name], inner, f"{where}{name}.")

    compare(schema, values, "")
    top = set(schema["properties"]) - {"global"}
    assert top == set(values)
    for group in top:
        if isinstance(values[group], dict) and values[group]:
            assert set(schema["properties"][group]["properties"]) == set(values[group]), group


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ("scheduler.weight=100", "/scheduler/weight"),
        ("cards.injection=magic", "/cards/injection"),
        ("agent.hostPid=true", "hostPid"),
        ("terms.minimumCores=0", "/terms/minimumCores"),
        ("terms.memoryUnit=12.5Mi", "/terms/memoryUnit"),
        ("scheduler.mode=neither", "/scheduler/mode"),
        ("cards.cardXids={x}", "/cards/cardXids"),
        ("agent.kubeletPodsURL=http://x", "/agent/kubeletPodsURL"),
        ("scheduler.name=", "/scheduler/name"),
        ("terms.memoryUnit=1Ki", "use 1Mi to 1024Gi"),
        ("certificates.secret=ours", "certificates.caBundle belong together"),
        ("certificates.secret=a,certificates.issuer.name=b", "use one of them"),
        ("certificates.issuer.kind=ClusterIssuer", "/certificates/issuer"),
        ("namespace.create=true", "kube-system is there already"),
        ("nonsense=1", "nonsense"),
        ("quota.a.protectedd.T4=1", "protectedd"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: str, word: str) -> None:
    done = helm("template", "gpu-manager", str(CHART), "-n", "kube-system", "--set", wrong)
    assert done.returncode != 0
    assert word in done.stderr


@pytest.mark.parametrize("part", ["quota", "protected"])
def test_a_quota_that_the_service_could_not_use_is_refused_by_name(part: str) -> None:
    wrong = f"quota.a.{part}.T4=0.005"
    done = helm("template", "gpu-manager", str(CHART), "-n", "kube-system", "--set-json", wrong)
    assert done.returncode != 0
    assert f"/quota/a/{part}/T4" in done.stderr
    assert "multipleOf" in done.stderr


@pytest.mark.parametrize("cards", ["0", "0.07", "0.29", "1.15", "4.35", "65536.01", "1000000"])
def test_a_quota_of_two_decimals_is_taken_as_written(cards: str) -> None:
    done = helm(
        "template",
        "gpu-manager",
        str(CHART),
        "-n",
        "kube-system",
        "--set-json",
        f"quota.a.protected.T4={cards}",
    )
    assert f'\\"T4\\":{cards}' in done.stdout, done.stderr


def test_an_old_cluster_is_refused() -> None:
    done = helm("template", "gpu-manager", str(CHART), "-n", "kube-system", "--kube-version", "1.29.9")
    assert done.returncode != 0
    assert "1.30" in done.stderr


def test_every_value_is_documented() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for before, line in pairwise(lines):
        if re.match(r" {2}[A-Za-z]+: ", line) or re.match(r"[A-Za-z]+: ", line):
            assert re.match(r" *# -- \S", before), f"no meaning above {line!r}"
    table = (CHART / "README.md").read_text()
    assert len(re.findall(r"^\| `[A-Za-z.]+` \|", table, flags=re.MULTILINE)) > 60


def test_vendors_versions_of_kubernetes_give_the_schedulers_plain_version() -> None:
    for version in ("v1.33.4+k3s1", "v1.33.4-gke.1134000"):
        assert "kube-scheduler:v1.33.4\n" in text_of("defaults", version)


@pytest.mark.parametrize("name", SETS)
def test_the_notes_say_the_next_step(name: str) -> None:
    namespace = () if "-n" in SETS[name] else ("-n", "kube-system")
    done = helm("install", "gpu-manager", str(CHART), *namespace, "--dry-run=client", *SETS[name])
    assert done.returncode == 0, done.stderr
    _, _, notes = done.stdout.partition("NOTES:\n")
    assert "helm test gpu-manager" in notes
    assert "\n\n\n" not in notes.strip()
    assert ("WARNING: image.repository" in notes) == (name != "simulated")
    assert ("privileged, because" in notes) == ("privileged: true #" in text_of(name))
    unit = 5 if name == "terms" else 20
    assert f"tencent.com/vcuda-memory: {unit} " in notes
