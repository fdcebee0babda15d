"""``kubectl vcuda migrate``: seven systems, five manifests each, and other shapes, with what is expected beside them.

Beside ``NAME.yaml`` stand ``NAME.report`` (what is told) and ``NAME.out`` (the new text; none where every pod
was refused). After a deliberate change: ``python -m tests.component.test_migrate`` writes both anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.manifests import read_documents, read_manifests
from gpu_manager.cli.kubectl.main import run
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.systems.others import SYSTEMS
from gpu_manager.cli.kubectl.migrate.translate import documents, rewrite, translate
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB, MIB
from gpu_manager.domain.rules.legal_values import check_pod
from tests.oracle.migration import CASES, Case, faults

DATA = Path(__file__).parents[1] / "data" / "migrate"
EXAMPLES = sorted(p for p in DATA.glob("*/*") if p.suffix in (".yaml", ".json"))
TERMS = {
    "hami/percentage": MigrationTerms(card=of_memory(24 * GIB)),
    "gpushare/mebibytes": MigrationTerms(gpushare_unit=MIB),
    "nvidia/turn": MigrationTerms(replicas=4, card=of_memory(40 * GIB)),
    "nvidia/shared-name": MigrationTerms(replicas=4, card=of_memory(40 * GIB)),
    "volcano/percentage": MigrationTerms(card=of_memory(16 * GIB)),
    "kai/fraction": MigrationTerms(card=of_memory(40 * GIB)),
    "kai/two-cards": MigrationTerms(card=of_memory(40 * GIB)),
    "kai/runai": MigrationTerms(card=of_memory(40 * GIB)),
    "kai/second-container": MigrationTerms(card=of_memory(40 * GIB)),
    "shapes/mps-percentage": MigrationTerms(card=of_memory(16 * GIB)),
}
FOREIGN = {name for s in SYSTEMS if s.name != "gpu-manager" for name in s.resources}


def done(path: Path) -> Any:
    key = f"{path.parent.name}/{path.stem}"
    return migrate(path.name, path.read_bytes(), TERMS.get(key, MigrationTerms()))


def report(path: Path) -> str:
    return "".join(f"{f.kind.value} | {f.where} | {f.text}\n" for f in done(path).findings)


def test_there_are_five_manifests_of_each_system() -> None:
    assert {s.name for s in SYSTEMS} | {"shapes"} == {p.parent.name for p in EXAMPLES}
    assert all(sum(p.parent.name == s.name for p in EXAMPLES) == 5 for s in SYSTEMS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_manifest_becomes_what_stands_beside_it_or_is_refused_by_name(path: Path) -> None:
    one = done(path)
    assert report(path) == path.with_suffix(".report").read_text()
    expected = path.with_suffix(".out")
    if expected.exists():
        assert one.new == expected.read_text()
        assert one.new != one.old
    else:
        assert one.new == one.old
        assert any(f.kind in (FindingKind.REFUSED, FindingKind.LEFT) for f in one.findings)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_what_comes_out_is_legal_names_nothing_foreign_and_stays_as_it_is(path: Path) -> None:
    one = done(path)
    refused = {f.where for f in one.findings if f.kind is FindingKind.REFUSED}
    for manifest in read_manifests(one.new.encode()):
        if manifest.pod is None or f"{manifest.kind} {manifest.namespace}/{manifest.name}" in refused:
            continue
        assert check_pod(parse_pod(manifest.pod)) == ()
        text = re.sub(r'"tolerations": \[.*?\]', "", json.dumps(manifest.pod))
        told = [f.text for f in one.findings if f.kind is FindingKind.LEFT]
        assert [n for n in FOREIGN if f'"{n}"' in text and not any(n in t for t in told)] == []
    again = migrate(
        path.name, one.new.encode(), TERMS.get(f"{path.parent.name}/{path.stem}", MigrationTerms())
    )
    assert again.new == one.new


def test_a_document_that_did_not_change_keeps_every_character() -> None:
    one = done(DATA / "gpushare" / "two-containers.yaml")
    assert one.new.endswith(
        "metadata: {name: sidecar}  # kept to the letter\nspec:\n    ports:  [ {port: 80} ]\n"
    )


def pod(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    meta = {"name": "p", **({"annotations": annotations} if annotations else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": list(containers), **spec},
    }


def asks(name: str, **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "resources": {"limits": {f"nvidia.com/{k.replace('_', '-')}": v for k, v in limits.items()}},
    }


def test_a_pod_that_asks_by_two_systems_is_refused_until_it_is_said_which() -> None:
    both = pod(asks("a", vgpu_cores=10), asks("b", gpumem=1024))
    new, findings = translate(both, MigrationTerms())
    assert new == both
    assert [f.kind for f in findings] == [FindingKind.REFUSED, FindingKind.LEFT]
    assert "vgpu-manager and HAMi" in findings[0].text


def test_a_ceiling_is_not_written_over_a_container_with_a_fixed_share() -> None:
    mixed = pod(asks("free", gpu=1, gpumem=1024), asks("fixed", gpu=1, gpumem=1024, gpucores=30))
    new, findings = translate(mixed, MigrationTerms())
    assert "annotations" not in new["metadata"]
    assert [f.kind for f in findings if "not written" in f.text] == [FindingKind.LOST]


def test_the_same_wish_twice_keeps_the_first_and_says_so() -> None:
    wishes = {"nvidia.com/device-scheduler-policy": "spread", "nvidia.com/device-topology-mode": "link"}
    new, findings = translate(
        pod(asks("c", vgpu_cores=10, vgpu_memory=256), annotations=wishes), MigrationTerms()
    )
    assert new["metadata"]["annotations"] == {"tencent.com/placement": "spread"}
    assert any('is "spread" already' in f.text for f in findings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.removesuffix(".yaml"))
def test_what_other_projects_document_becomes_what_was_worked_out_by_hand_or_is_named(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["migrate", "-o", "yaml", str(DATA / case.file), *case.options])
    out, err = capsys.readouterr()
    assert list(faults(case, out, err, code)) == []


def test_json_objects_in_a_row_are_each_translated() -> None:
    row = "\n".join(json.dumps(pod(asks(name, gpumem=256, gpucores=5))) for name in ("a", "b"))
    one = migrate("f", row.encode(), MigrationTerms())
    first, second = read_documents(one.new.encode())
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    for value in (first, second):
        limits = value["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {"tencent.com/vcuda-core": 5, "tencent.com/vcuda-memory": 1}


def test_tolerations_stay_and_pages_of_a_project_are_no_names() -> None:
    tolerated = {"key": "nvidia.com/gpu", "operator": "Exists"}
    plain = pod({"name": "c", "args": ["see https://docs.nvidia.com/gpu"]}, tolerations=[tolerated])
    assert translate(plain, MigrationTerms()) == (plain, [])


def test_a_value_that_a_refused_pod_shares_is_not_changed_for_the_other() -> None:
    text = """\
kind: List
apiVersion: v1
items:
- kind: Pod
  apiVersion: v1
  metadata: {name: a}
  spec:
    containers:
    - name: c
      resources: &small
        limits: {nvidia.com/gpumem: 256, nvidia.com/gpucores: 5}
- kind: Pod
  apiVersion: v1
  metadata: {name: b}
  spec:
    containers:
    - name: c
      resources: *small
    - name: d
      resources: {limits: {nvidia.com/gpu: 17, nvidia.com/gpumem: 256}}
"""
    one = migrate("f", text.encode(), MigrationTerms())
    [document] = read_documents(one.new.encode())
    assert isinstance(document, dict)
    a, b = (entry["spec"]["containers"][0]["resources"]["limits"] for entry in document["items"])
    assert a == {"tencent.com/vcuda-core": 5, "tencent.com/vcuda-memory": 1}
    assert b == {"nvidia.com/gpumem": 256, "nvidia.com/gpucores": 5}


SHARING = """apiVersion: v1
kind: ConfigMap
metadata: {name: plugin}
data:
  any: |-
    version: v1
    sharing:
      %s:
        renameByDefault: %s
        resources:
        - {name: %s, replicas: %s}
"""
TURN = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i, resources: {limits: {%s: 1}}}]}
"""


@pytest.mark.parametrize(
    ("sharing", "asked", "says", "limits"),
    [
        (("timeSlicing", "true", "gpu", 4), "nvidia.com/gpu.shared", "1 of 4 turns", (25, 39)),
        (("timeSlicing", "false", "nvidia.com/gpu", "'10'"), "nvidia.com/gpu", "1 of 10 turns", (10, 15)),
        (
            ("timeSlicing", "true", "nvidia.com/gpu", 4),
            "nvidia.com/gpu",
            "taken for whole cards",
            (100, None),
        ),
        (("mps", "false", "nvidia.com/gpu", 2), "nvidia.com/gpu", "1 of 2 clients: 50 cores", (50, 78)),
        (
            ("timeSlicing", "false", "nvidia.com/gpu", 1),
            "nvidia.com/gpu",
            "taken for whole cards",
            (100, None),
        ),
        (
            ("timeSlicing", "false", "nvidia.com/gpu", "many"),
            "nvidia.com/gpu",
            "taken for whole",
            (100, None),
        ),
    ],
)
def test_the_plugins_configuration_says_how_many_share_a_card(
    sharing: tuple[object, ...],
    asked: str,
    says: str,
    limits: tuple[int, int | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.yaml").write_text(SHARING % sharing)
    (tmp_path / "pod.yaml").write_text(TURN % asked)
    run(
        [
            "migrate",
            str(tmp_path / "pod.yaml"),
            str(tmp_path / "config.yaml"),
            "--card-memory",
            "40Gi",
            "-o",
            "yaml",
        ]
    )
    out, err = capsys.readouterr()
    assert says in err
    new = next(m.pod for m in read_manifests(out.encode()) if m.pod)
    [held] = parse_pod(new).containers
    assert (held.core, held.memory_units or None) == limits


def test_what_becomes_of_a_configuration_of_the_plugin_is_said() -> None:
    for card, memory in (
        (None, "give --card-memory"),
        (of_memory(40 * GIB), "tencent.com/vcuda-memory: 39 ("),
    ):
        terms = MigrationTerms(card=card)
        [found] = migrate(
            "f", (SHARING % ("timeSlicing", "false", "nvidia.com/gpu", 4)).encode(), terms
        ).findings
        assert found.kind is FindingKind.LEFT
        assert found.text.startswith("nvidia.com/gpu at data.any: 4 users of a card, each of which becomes")
        assert memory in found.text
        assert "take it out" in found.text
    values = b"config: {map: {default: {sharing: {mps: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}}}}"
    [found] = migrate("f", values, MigrationTerms()).findings
    assert "2 users of each: such cards are left to NVIDIA's plugin" in found.text


def test_configurations_that_differ_leave_the_pod_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (4, 8):
        (tmp_path / f"{count}.yaml").write_text(SHARING % ("timeSlicing", "false", "nvidia.com/gpu", count))
    (tmp_path / "pod.yaml").write_text(TURN % "nvidia.com/gpu")
    assert run(["migrate", str(tmp_path)]) == 1
    assert "several numbers of users in several configurations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["gpu-manager/exported-pod.yaml"], 0, "everything has its equivalent"),
        (["hami/fraction.yaml", "shapes/mig-refused.yaml"], 1, "4 refused"),
        (["nvidia/turn.yaml", "--replicas", "4"], 2, "--replicas needs --card-memory"),
        (["hami/percentage.yaml", "--card-memory", "forty"], 2, "use whole bytes"),
        (["hami/fraction.yaml", "--card-memory", "1"], 2, "use whole bytes from 1Mi to 1Ti, such as 40Gi"),
        (["nowhere.yaml"], 2, "No such file"),
        (["../migrate"], 2, "no manifest (.yaml, .yml, .json) in this directory"),
        (["../proc/v1-kind/1/cgroup"], 2, "not a Kubernetes object"),
    ],
)
def test_the_exit_code_says_whether_all_was_translated(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(DATA / a) if "/" in a or a.endswith(".yaml") else a for a in arguments]
    assert run(["migrate", *files]) == code
    out, err = capsys.readouterr()
    assert says in out + err
    assert "Traceback" not in err


def test_amounts_in_requests_alone_are_written_into_limits_and_told() -> None:
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    resources:\n      requests:\n"
    )
    text += "        tencent.com/vcuda-core: 30\n        tencent.com/vcuda-memory: 20\n"
    one = migrate("f", text.encode(), MigrationTerms())
    assert 'container "c": 30 cores, 20 units (5 GiB)' in one.findings[0].text
    assert "limits:" in one.new


def test_the_user_scheduler_of_a_jupyterhub_whose_servers_ask_for_cards_is_named() -> None:
    limits = "{nvidia.com/gpu: 1, nvidia.com/gpumem: 4000, nvidia.com/gpucores: 20}"
    for servers, told in (("singleuser", True), ("other", False)):
        text = f"{servers}: {{extra_resource_limits: {limits}}}\n"
        found = migrate("values.yaml", text.encode(), MigrationTerms()).findings
        assert any("scheduling.userScheduler" in one.text for one in found) is told


def test_values_of_a_chart_beside_manifests_are_left_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    (tmp_path / "pod.yaml").write_bytes((DATA / "hami" / "fraction.yaml").read_bytes())
    assert run(["migrate", str(tmp_path / "values.yaml")]) == 2
    assert "document 1 has no kind" in capsys.readouterr().err
    assert run(["migrate", "-o", "yaml", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("---\nreplicas: 3\n")
    assert "values.yaml:\nnothing to translate" in err


def test_with_yaml_the_manifests_alone_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    files = [DATA / "hami" / "fraction.yaml", DATA / "nvidia" / "whole.json"]
    assert run(["migrate", "-o", "yaml", *map(str, files)]) == 0
    out, err = capsys.readouterr()
    assert [m.name for m in read_manifests(out.encode())] == ["notebook", "whole"]
    assert "schedulerName hami-scheduler removed" in err


def test_what_cannot_be_changed_in_place_is_written_anew_and_named() -> None:
    text = """\
# who
kind: Pod
apiVersion: v1
metadata: {name: p, annotations: {tencent.com/vcuda-core-limit: "30"}}
spec:
  containers:
  - {name: a, args: [x], "name": b, resources: {limits: {nvidia.com/gpumem: 256, nvidia.com/gpucores: 5}}}
"""
    one = migrate("f", text.encode(), MigrationTerms())
    assert "comments and anchors are lost" in one.findings[-1].text
    assert "#" not in one.new
    [value] = read_documents(one.new.encode())
    assert isinstance(value, dict)
    [only] = value["spec"]["containers"]
    assert only["resources"]["limits"] == {"tencent.com/vcuda-core": 5, "tencent.com/vcuda-memory": 1}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "x", "a: b", "# no", "1", "é\n", " y"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b c", "1", "d/e", "f"]), inner, max_size=4)
    ),
    max_leaves=12,
)
MAPS = st.dictionaries(st.sampled_from(["kind", "x", "spec", "y"]), TREES, min_size=1, max_size=4)


@given(old=MAPS, new=MAPS, flow=st.sampled_from([False, None, True]), indent=st.sampled_from([2, 4]))
def test_whatever_changed_the_new_text_says_it(old: Any, new: Any, flow: bool | None, indent: int) -> None:
    text = yaml.safe_dump(old, default_flow_style=flow, indent=indent, sort_keys=False)
    [document] = documents(text.encode())
    written = rewrite(document, {**document.value, **new}).text
    assert read_documents(written.encode()) == [{**document.value, **new}]


JUNK = st.none() | st.sampled_from([-1, 7, "", "30", "x", "link", "nvidia", [], {}, [3]])


def pods_of(system: System) -> st.SearchStrategy[Any]:
    """Pods that ask by its names, with anything where people may write anything."""
    counts = st.sampled_from([0, 1, 1, 2, 30, 30, 100, 256, "1024", "1.5", None])
    amounts = st.dictionaries(st.sampled_from([*system.resources, "cpu"]), counts, max_size=3) | JUNK
    resources = st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}) | JUNK
    words = [*system.annotations, *system.state, "other"]
    texts = st.dictionaries(
        st.sampled_from(words), JUNK | st.sampled_from(["spread", "100", "fixed", "0.4", "a"]), max_size=3
    )
    variables = st.fixed_dictionaries(
        {"name": st.sampled_from([*system.variables, "OTHER"]) | JUNK}, optional={"value": JUNK}
    )
    container = st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]), "resources": resources},
        optional={"env": st.lists(variables, max_size=2) | JUNK, "args": JUNK},
    )
    spec = st.fixed_dictionaries(
        {"containers": st.lists(container, min_size=1, max_size=2)},
        optional={
            "nodeSelector": st.dictionaries(st.sampled_from([*system.selectors, "other"]), JUNK, max_size=2)
            | JUNK,
            "schedulerName": st.sampled_from([*system.schedulers, "mine"]) | JUNK,
            **dict.fromkeys(("affinity", "initContainers", "resourceClaims", "runtimeClassName"), JUNK),
        },
    )
    meta = st.fixed_dictionaries({}, optional={"annotations": texts | JUNK, "labels": texts | JUNK}) | JUNK
    return st.fixed_dictionaries({"kind": st.just("Pod"), "spec": spec}, optional={"metadata": meta})


@given(pod=st.sampled_from(SYSTEMS).flatmap(pods_of), system=st.sampled_from([None, *SYSTEMS]))
def test_whatever_a_pod_looks_like_it_is_translated_to_a_legal_one_or_left_alone(
    pod: Any, system: System | None
) -> None:
    new, findings = translate(pod, MigrationTerms(replicas=3, card=of_memory(24 * GIB)), system)
    if new == pod:
        return
    assert not any(f.kind is FindingKind.REFUSED for f in findings)
    assert check_pod(parse_pod(new)) == ()
    assert translate(new, MigrationTerms(replicas=3, card=of_memory(24 * GIB)))[0] == new
    assert {f.where for f in findings} <= {"Pod default/(no name)", "object"}
    [document] = documents(yaml.safe_dump(pod, sort_keys=False).encode())
    assert read_documents(rewrite(document, new).text.encode()) == [new]


@given(document=MAPS)
def test_what_is_no_pod_is_left_alone(document: Any) -> None:
    assert translate(document, MigrationTerms()) == (document, [])


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_the_guide_names_everything_that_is_translated(system: System) -> None:
    name = {"nvidia": "time-slicing"}.get(system.name, system.name)
    text = (DATA.parents[2] / "docs" / "migration" / f"{name}.md").read_text()
    names = [*system.resources, *system.annotations, *system.selectors, *system.variables, *system.schedulers]
    assert [n for n in names if n.rstrip("*") not in text] == []


if __name__ == "__main__":
    for example in EXAMPLES:
        example.with_suffix(".report").write_text(report(example))
        result = done(example)
        if result.new != result.old:
            example.with_suffix(".out").write_text(result.new)
        else:
            example.with_suffix(".out").unlink(missing_ok=True)


TAINTED = """kind: Pod
apiVersion: v1
metadata: {name: a}
spec:
  containers:
  - name: c
    resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("  tolerations: []  # kept\n", "  tolerations: [{key: nvidia.com/gpu, operator: Exists}]  # kept\n"),
        (
            "  tolerations:  # kept\n  - {key: mine, operator: Exists}  # kept too\n",
            (
                "  tolerations:  # kept\n  - {key: mine, operator: Exists}  # kept too\n"
                "  - {key: nvidia.com/gpu, operator: Exists}\n"
            ),
        ),
        (
            "  tolerations: [{key: mine, operator: Exists}]\n",
            "  tolerations: [{key: mine, operator: Exists}, {key: nvidia.com/gpu, operator: Exists}]\n",
        ),
        ("  tolerations: [{operator: Exists}]\n", "  tolerations: [{operator: Exists}]\n"),
        (
            "  tolerations: [{key: nvidia.com/gpu, effect: NoSchedule}]\n",
            "  tolerations: [{key: nvidia.com/gpu, effect: NoSchedule}]\n",
        ),
    ],
)
def test_the_taint_of_nodes_with_cards_is_tolerated_once_and_comments_stay(there: str, then: str) -> None:
    done = migrate("a.yaml", (TAINTED + there).encode(), MigrationTerms())
    assert done.new.endswith(then)
    told = [f.text for f in done.findings if "tolerates the taint" in f.text]
    assert len(told) == (there != then)


def test_a_pod_that_never_asked_by_that_name_gets_no_toleration() -> None:
    text = TAINTED.replace("nvidia.com/gpu: 1", "tencent.com/vcuda-core: 100")
    assert "tolerations" not in migrate("a.yaml", text.encode(), MigrationTerms()).new


@pytest.mark.parametrize(
    ("value", "meant"), [("0", "protected, which its namespace's quota must grant"), ("1", "best-effort")]
)
def test_hamis_task_priority_is_named_as_an_annotation(value: str, meant: str) -> None:
    limits = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "1024",
        "nvidia.com/gpucores": "20",
        "nvidia.com/priority": value,
    }
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"limits": limits}},
    ]}}  # fmt: skip
    one = migrate("p.yaml", yaml.safe_dump(made).encode(), MigrationTerms())
    said = f"nvidia.com/priority removed: annotate the pod with tencent.com/vcuda-priority: {meant}"
    assert any(finding.text.endswith(said) or said in finding.text for finding in one.findings)
    assert "nvidia.com/priority" not in one.new
