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

from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.cli.kubectl.main import run
from gpu_manager.cli.kubectl.migrate.command import migrate, of_memory
from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.systems.others import SYSTEMS
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.removesuffix(".yaml"))
def test_what_other_projects_document_becomes_what_was_worked_out_by_hand_or_is_named(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["migrate", "-o", "yaml", str(DATA / case.file), *case.options])
    out, err = capsys.readouterr()
    assert list(faults(case, out, err, code)) == []


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
