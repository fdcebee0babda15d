"""``kubectl vcuda migrate``: what becomes of one pod, by example and whatever it looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.systems.others import SYSTEMS
from gpu_manager.cli.kubectl.migrate.translate import documents, rewrite, translate
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.rules.legal_values import check_pod


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


def test_amounts_in_requests_alone_are_written_into_limits_and_told() -> None:
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    resources:\n      requests:\n"
    )
    text += "        tencent.com/vcuda-core: 30\n        tencent.com/vcuda-memory: 20\n"
    one = migrate("f", text.encode(), MigrationTerms())
    assert 'container "c": 30 cores, 20 units (5 GiB)' in one.findings[0].text
    assert "limits:" in one.new


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
