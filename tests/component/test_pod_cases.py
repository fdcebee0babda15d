"""Manifests as people have them beside other controllers: the given ones, and others of each kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.main import run as kubectl
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory, of_model
from gpu_manager.cli.kubectl.migrate.left_over import foreign_names
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationTerms
from gpu_manager.cli.kubectl.migrate.systems.others import SYSTEMS
from gpu_manager.cli.main import run
from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.constraints import host_of_pod
from gpu_manager.domain.resources import GIB
from tests.oracle.pod_cases import CASES, given

FOLDER = given()
A100 = MigrationTerms(card=of_memory(40 * GIB))


@pytest.mark.skipif(FOLDER is None, reason="the cases (../shared/cases/cluster) are not on this machine")
@pytest.mark.parametrize("name", CASES)
def test_a_given_manifest_becomes_what_is_right_for_it(name: str) -> None:
    assert FOLDER is not None
    assert list(CASES[name](FOLDER / name)) == []


@pytest.mark.skipif(FOLDER is None, reason="the cases (../shared/cases/cluster) are not on this machine")
def test_each_given_manifest_has_its_case() -> None:
    assert FOLDER is not None
    assert {file.name for file in FOLDER.glob("*.yaml")} == set(CASES)


def pod(limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    container = {"name": "c", "image": "x", "resources": {"limits": limits or {}}}
    meta = {"name": "p", "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def migrated(document: Any, terms: MigrationTerms = A100) -> tuple[Any, str]:
    one = migrate("f", yaml.safe_dump(document, sort_keys=False).encode(), terms)
    return read_documents(one.new.encode())[0], "\n".join(f"{f.kind.value} {f.text}" for f in one.findings)


def limits_of(document: Any) -> tuple[Any, Any]:
    limits = document["spec"]["containers"][0]["resources"]["limits"]
    return limits.get(CORE), limits.get(MEMORY)


@pytest.mark.parametrize("count", range(2, 21))
def test_equal_parts_of_a_card_fit_on_it_together_in_each_system(count: int) -> None:
    percent = 100 // count
    for asked in (
        pod({NVIDIA: 1, "nvidia.com/gpumem-percentage": percent, "nvidia.com/gpucores": percent}),
        pod({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": percent, "volcano.sh/vgpu-cores": percent}),
        pod(annotations={"gpu-fraction": str(round(1 / count, 3))}),
        pod({NVIDIA: 1}),
    ):  # fmt: skip
        new, report = migrated(asked, MigrationTerms(card=of_memory(40 * GIB), replicas=count))
        cores, units = limits_of(new)
        assert cores * count <= 100
        assert units * count <= 157
        fit = re.search(r"(\d+) of these fit on a card of 157 units", report)
        assert fit is not None
        assert int(fit[1]) >= count


def test_unequal_parts_fit_too_and_an_amount_up_to_the_nominal_size_is_cut() -> None:
    shares = [
        limits_of(migrated(pod({NVIDIA: 1, "nvidia.com/gpumem-percentage": p, "nvidia.com/gpucores": p}))[0])
        for p in (60, 40)
    ]
    assert shares == [(60, 94), (40, 62)]
    new, report = migrated(pod({NVIDIA: 1, "nvidia.com/gpumem": 40960, "nvidia.com/gpucores": 50}))
    assert limits_of(new) == (50, 157)
    assert "cut to the 157 units that a card offers" in report


def test_the_size_of_a_card_is_found_by_memory_model_or_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_memory(39 * GIB).offered == 39 * GIB
    assert of_memory(80 * 10**9).title.startswith("H100")
    assert of_model("nvidia a100 80gb").offered == (81_920 - 750) << 20
    with pytest.raises(RequestInvalid, match="A100-SXM4-40GB, A100-SXM4-80GB"):
        of_model("A100")
    assert kubectl(["migrate", "x.yaml", "--card-memory", "4Gi", "--card-model", "T4"]) == 2
    assert "one of --card-memory, --card-model and --like" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({NVIDIA: 1, "nvidia.com/gpumem": "16Gi"}, "if 16 GiB was meant, write 16384 (written: gpu 1, gpumem 16Gi)"),
        ({NVIDIA: 1, "nvidia.com/gpumem": 17179869184}, "if 16 GiB was meant, write 16384"),
        ({NVIDIA: 1, "nvidia.com/gpumem": 16777216}, "if 16 GiB was meant, write 16384"),
        ({NVIDIA: 1, "nvidia.com/gpumem": 100000}, "more than a card of 40 GiB has"),
        ({NVIDIA: 1, "nvidia.com/gpumem-percentage": 150}, "comes to 150 % of a card"),
        ({NVIDIA: 1, "nvidia.com/gpumem": 10, "nvidia.com/gpucores": 150}, "percent of a card, 100 at most"),
        ({"aliyun.com/gpu-mem": 8192}, "if 8 GiB was meant, write 8"),
        ({"volcano.sh/vgpu-memory": "8Gi"}, "if 8 GiB was meant, write 8192"),
        ({"nvidia.com/vgpu-memory": "8Gi", "nvidia.com/vgpu-cores": 10}, "if 8 GiB was meant, write 8192"),
    ],
)  # fmt: skip
def test_an_amount_that_no_card_has_is_refused_in_the_words_of_what_was_written(
    limits: dict[str, Any], says: str
) -> None:
    new, report = migrated(made := pod(limits))
    assert new == made
    assert says in report


@pytest.mark.parametrize(
    ("annotations", "share", "told"),
    [
        ({"gpu-memory.request": "8Gi"}, (10, 32), ""),
        ({"gpu-memory.limit": "8Gi"}, (10, 32), "no equivalent nvidia.com/container.c.gpu-memory.limit"),
        ({"gpu-memory.request": "4Gi", "gpu-memory.limit": "8Gi"}, (10, 16), "gpu-memory.limit"),
        ({"gpu-memory.request": "4Gi", "gpu-compute.portion": "0.25"}, (25, 16), ""),
        ({"gpu-memory.request": "4Gi", "gpu-compute.mode": "sm-sharing"}, (10, 16), "no equivalent"),
        ({"gpu-memory.request": "4Gi", "gpu-compute.mode": "time-slicing"}, (10, 16), "always so here"),
        ({"gpu-memory.request": "4Gi", "gpus.devices": "GPU-1"}, (10, 16), "gpus.devices removed"),
        ({"gpu-memory.request": "4Gi", "gpu-next": "1"}, (10, 16), "no equivalent"),
    ],
)
def test_annotations_that_name_their_container_become_its_share(
    annotations: dict[str, str], share: tuple[int, int], told: str
) -> None:
    new, report = migrated(
        pod(annotations={f"nvidia.com/container.c.{k}": v for k, v in annotations.items()})
    )
    assert limits_of(new) == share
    assert told in report
    assert "nvidia.com/container" not in json.dumps(new)
    assert (
        "there is no container"
        in migrated(pod(annotations={"nvidia.com/container.d.gpu-memory.limit": "1Gi"}))[1]
    )


def test_what_users_of_a_renamed_count_write_is_translated() -> None:
    made = pod({"example.com/cards": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 10})
    assert limits_of(migrated(made, MigrationTerms(hami_count="example.com/cards"))[0]) == (10, 4)
    assert "example.com/cards" not in json.dumps(
        migrated(made, MigrationTerms(hami_count="example.com/cards"))[0]
    )


@pytest.mark.parametrize(
    ("value", "kind"), [("all", "changed"), ("0,1", "changed"), ("GPU-1", "no equivalent"), (None, "changed")]
)
def test_the_variable_that_shows_cards_is_removed_and_none_is_kept(value: str | None, kind: str) -> None:
    made = pod({NVIDIA: 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 10})
    shown = {"name": "NVIDIA_VISIBLE_DEVICES", **({"value": value} if value else {"valueFrom": {}})}
    made["spec"]["containers"][0]["env"] = [shown]
    new, report = migrated(made)
    assert "env" not in new["spec"]["containers"][0]
    assert f'{kind} container "c": NVIDIA_VISIBLE_DEVICES removed' in report


KNATIVE = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "s"},
    "spec": {"template": {"spec": pod({NVIDIA: 1})["spec"]}},
}
HAMI = {NVIDIA: 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 10}


def test_a_service_of_knative_gets_no_toleration() -> None:
    new, _ = migrated(KNATIVE, MigrationTerms())
    assert "tolerations" not in new["spec"]["template"]["spec"]
    assert "tolerations" in migrated(pod({NVIDIA: 1}), MigrationTerms())[0]["spec"]


@pytest.mark.parametrize(
    ("limits", "parameters", "then"),
    [
        (HAMI, {}, "1"),
        ({NVIDIA: 2}, {}, "2"),
        (HAMI, {"num-gpus": "0"}, "0"),
        (HAMI, None, "1"),
        ({}, {}, None),
    ],
)
def test_a_ray_group_counts_the_cards_of_its_pods(limits: Any, parameters: Any, then: str | None) -> None:
    group = {"groupName": "g", "rayStartParams": parameters, "template": {"spec": pod(limits)["spec"]}}
    spec = {"rayClusterSpec": {"workerGroupSpecs": [group]}}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "r"}, "spec": spec}
    [new] = migrated(job)[0]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert new["rayStartParams"].get("num-gpus") == then


ELSEWHERE = [
    {"kind": "ScaledObject", "metadata": {"name": "s"}, "spec": {"triggers": [{"metadata": {"query": "avg(Device_utilization_desc_of_container)"}}]}},
    {"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"resourceGroups": [{"coveredResources": ["cpu", "nvidia.com/gpu"]}]}},
    {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"conf": "spark.driver.resource.gpu.vendor nvidia.com"}},
    {"server": {"podAnnotations": {"gpu-fraction": "0.5"}}},
    {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [], "affinity": {"nodeAffinity": {"x": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["on"]}]}]}}}}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "name"),
    list(zip(ELSEWHERE, ("Device_utilization_desc_of_container", "coveredResources", "resource.gpu.vendor", "", "gpu at"), strict=True)),
)  # fmt: skip
def test_a_name_outside_of_pods_is_left_and_told(document: Any, name: str) -> None:
    if not name:
        assert [one.name for one in foreign_names({"metadata": document["server"]})] == []
        return
    new, report = migrated(document)
    assert new == document
    assert name in report


def test_a_label_of_the_users_own_nodes_stays() -> None:
    made = pod(HAMI, nodeSelector={"gpu": "true"})
    assert migrated(made)[0]["spec"]["nodeSelector"] == {"gpu": "true"}
    assert "nodeSelector" not in migrated(pod(HAMI, nodeSelector={"gpu": "on"}))[0]["spec"]


# gpu-manager check


def checked(document: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (tmp_path / "f.yaml").write_text(
        yaml.safe_dump_all(document if isinstance(document, list) else [document])
    )
    code = run(["check", str(tmp_path / "f.yaml")])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("kind", ["RayJob", "PyTorchJob", "Rollout", "InferenceService"])
def test_check_judges_templates_wherever_migrate_finds_them(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec: Any = {"a": {"b": [{"template": {"spec": pod({CORE: 150})["spec"]}}]}}
    if kind == "InferenceService":
        spec = {"predictor": {"model": {"resources": {"limits": {CORE: 150}}}}}
    made = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    code, out = checked(made, tmp_path, capsys)
    assert code == 1
    assert "[core-not-multiple]" in out


def test_check_warns_of_every_name_that_migrate_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for system in SYSTEMS:
        if system.name == "gpu-manager":
            continue
        annotations = {name.replace("*", "c"): "1" for name in system.annotations}
        variables = [{"name": name.replace("*", "X"), "value": "1"} for name in system.variables]
        made = pod(dict.fromkeys(system.resources, 1), annotations)
        made["metadata"]["labels"] = dict.fromkeys(system.labels, "a")
        made["spec"]["containers"][0]["env"] = variables
        _, out = checked(made, tmp_path, capsys)
        names = [*system.resources, *annotations, *system.labels, *(one["name"] for one in variables)]
        assert [name for name in names if name not in out and name != NVIDIA] == [], system.name


def test_check_warns_of_mps_and_privilege_beside_a_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pod({CORE: 20, MEMORY: 8})
    made["spec"]["containers"][0]["env"] = [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}]
    made["spec"]["containers"].append({"name": "d", "image": "x", "securityContext": {"privileged": True}})
    code, out = checked(made, tmp_path, capsys)
    assert code == 0
    assert "CUDA_MPS_PIPE_DIRECTORY at spec.containers[0].env[0].name" in out
    assert "[privileged-beside-share]" in out


def test_a_plain_pod_of_nvidias_whole_cards_is_warned_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tolerations = [{"key": NVIDIA, "operator": "Exists"}]
    assert "warning" not in checked(pod({NVIDIA: 1}, tolerations=tolerations), tmp_path, capsys)[1]


def test_values_without_a_foreign_name_are_still_no_manifest() -> None:
    with pytest.raises(RequestInvalid, match="has no kind"):
        migrate("f", b"replicas: 3\n", MigrationTerms())
    assert [f.kind for f in migrate("f", b"x: nvidia.com/gpumem\n", MigrationTerms()).findings] == [
        FindingKind.LEFT
    ]


def test_a_whole_pod_asks_for_no_share_and_its_cpu_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes 1.34 and later: ``spec.resources`` bounds CPU, memory and huge pages of all containers."""
    made = pod({CORE: 50, MEMORY: 8}, resources={"limits": {"cpu": "4"}, "requests": {"cpu": "4"}})
    assert checked(made, tmp_path, capsys)[0] == 0
    assert host_of_pod(made).cpu == 4000
    assert host_of_pod(pod(resources={"limits": {"memory": "1Gi"}})).memory == GIB
    code, told = checked(pod(resources={"limits": {CORE: 50, MEMORY: 8}}), tmp_path, capsys)
    assert code == 1
    assert f"no whole pod asks for {CORE}: write it in the container that uses it" in told
    _, told = checked(pod(resources={"requests": {"nvidia.com/gpumem": 4000}}), tmp_path, capsys)
    assert (
        "huge pages alone: write tencent.com/vcuda-core and tencent.com/vcuda-memory in the container" in told
    )


def test_what_a_spark_operator_asks_for_by_one_name_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spark(name: str, quantity: int) -> Any:
        asked = {"gpu": {"name": name, "quantity": quantity}}
        meta = {"name": "s"}
        return {
            "apiVersion": "x/v1",
            "kind": "SparkApplication",
            "metadata": meta,
            "spec": {"executor": asked},
        }

    assert checked(spark(CORE, 100), tmp_path, capsys)[0] == 0
    code, told = checked(spark(CORE, 50), tmp_path, capsys)
    assert (code, "is 50 without tencent.com/vcuda-memory" in told) == (1, True)
    (left,) = foreign_names(spark(NVIDIA, 1))
    assert left.path == "spec.executor.gpu.name"
    assert "with quantity 100 is a whole card" in left.advice


def test_bounds_that_their_system_does_not_count_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bound(name: str) -> Any:
        policy = {"containerName": "*", "maxAllowed": {"cpu": 1, name: 50}}
        spec = {"resourcePolicy": {"containerPolicies": [policy]}}
        return {
            "kind": "VerticalPodAutoscaler",
            "apiVersion": "x/v1",
            "metadata": {"name": "v"},
            "spec": spec,
        }

    def machines(name: str) -> Any:
        spec = {"limits": {"cpu": 1000, name: 8}}
        return {"kind": "NodePool", "apiVersion": "karpenter.sh/v1", "metadata": {"name": "n"}, "spec": spec}

    for document, reason in ((bound(CORE), "sizes CPU and memory alone"), (machines(CORE), "instance types")):
        code, told = checked(document, tmp_path, capsys)
        assert code == 0
        assert f"{CORE} in " in told
        assert reason in told
    assert "[resource-uncounted]" not in checked(bound("memory"), tmp_path, capsys)[1]
    (left,) = foreign_names(bound(NVIDIA))
    assert "sizes CPU and memory alone" in left.advice
    assert list(foreign_names(machines(NVIDIA))) == []  # instance types offer it: so it stands there rightly
