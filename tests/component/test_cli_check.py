"""``gpu-manager check`` as a person and as a script sees it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.cli.main import COMMANDS, run
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
NGINX = """\
apiVersion: v1
kind: Pod
metadata: {name: nginx}
spec:
  containers:
  - name: nginx
    image: nginx
    resources:
      limits:   {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20}
      requests: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20}
"""

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Write the text to a file, check it, and return exit code, output and complaint."""

    def call(text: str | bytes, *options: str, name: str = "pod.yaml") -> tuple[int, str, str]:
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        monkeypatch.chdir(tmp_path)
        code = run(["check", name, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def pod(core: object = None, memory: object = None, name: str = "p") -> dict[str, Any]:
    limits = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}
    limits = {k: v for k, v in limits.items() if v is not None}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
    }


def workload(api: str, kind: str, template: dict[str, Any]) -> dict[str, Any]:
    spec = {"template": {"spec": template["spec"]}}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "w", "namespace": "ml"}, "spec": spec}


def test_the_first_pod_everyone_writes_is_legal_and_its_share_is_said(check: Check) -> None:
    assert check(NGINX) == (0, "legal     Pod default/nginx\n          nginx  30 cores, 5 GiB\n1 legal\n", "")


def test_an_illegal_pod_says_why_and_what_would_be_legal(check: Check) -> None:
    code, out, err = check(json.dumps(pod(150)))
    assert (code, err) == (1, "")
    assert out == (
        "illegal   Pod default/p\n"
        '          container "train": tencent.com/vcuda-core is 150: use 1 to 100 for a part of one card, '
        "or a multiple of 100 for whole cards (100 or 200)  [core-not-multiple]\n"
        "1 illegal\n"
    )


@pytest.mark.parametrize(
    ("core", "memory", "code"),
    [(30, 20, 0), (56, 20, 0), (100, None, 0), (600, None, 0), (3400, None, 0),
     (150, None, 1), (270, None, 1), (354, None, 1), (None, 20, 1), (30, 0.5, 1), (1.5, 20, 1)],
)  # fmt: skip
def test_the_seeds_rules_hold(check: Check, core: object, memory: object, code: int) -> None:
    for text in (json.dumps(pod(core, memory)), yaml.safe_dump(pod(core, memory))):
        assert check(text)[0] == code


def test_json_for_programs_has_rule_value_and_nearest(check: Check) -> None:
    code, out, _ = check(json.dumps(pod(270)) + "\n" + json.dumps(pod(30, 20, "fine")), "-o", "json")
    answer = json.loads(out)
    assert (code, answer["legal"], answer["unit"]) == (1, False, 268435456)
    first, second = answer["objects"]
    assert first["violations"] == [
        {
            "rule": "core-not-multiple",
            "container": "train",
            "field": "tencent.com/vcuda-core",
            "value": "270",
            "message": first["violations"][0]["message"],
            "nearest": [300, 200],
            "cure": "Round to whole cards, or split the work over two containers.",
        }
    ]
    assert (second["verdict"], second["name"], second["file"]) == ("legal", "fine", "pod.yaml")
    assert second["containers"] == [
        {"name": "train", "kind": "app", "cores": 30, "cards": 0, "parts": 1, "memory": 5368709120}
    ]


def test_yaml_says_the_same_as_json(check: Check) -> None:
    text = json.dumps(pod(100, 5))
    assert yaml.safe_load(check(text, "-o", "yaml")[1]) == json.loads(check(text, "-o", "json")[1])


@pytest.mark.parametrize(
    ("api", "kind"),
    [("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("apps/v1", "ReplicaSet"),
     ("batch/v1", "Job"), ("batch/v1", "CronJob"), ("v1", "ReplicationController")],
)  # fmt: skip
def test_the_template_of_a_workload_is_judged_like_a_pod(check: Check, api: str, kind: str) -> None:
    code, out, _ = check(json.dumps(workload(api, kind, pod(150))))
    assert code == 1
    assert out.startswith(f"illegal   {kind} ml/w\n")
    assert check(json.dumps(workload(api, kind, pod(200))))[0] == 0


def test_an_annotation_on_the_workload_itself_is_warned_of(check: Check) -> None:
    written = workload("apps/v1", "Deployment", pod(30, 20))
    written["metadata"]["annotations"] = {
        "tencent.com/vcuda-priority": "protected",
        "tencent.com/gpu-model": 7,
    }
    code, out, _ = check(json.dumps(written))
    assert code == 0
    assert (
        "warning: annotation tencent.com/vcuda-priority stands on the Deployment itself, where it does nothing: "
        "write it into spec.template.metadata.annotations  [annotation-of-workload]"
    ) in out
    assert out.count("[annotation-of-workload]") == 2
    written["metadata"]["annotations"] = "none"
    assert "warning" not in check(json.dumps(written))[1]


def test_a_size_on_a_workload_is_judged_with_its_template(check: Check) -> None:
    """The webhook refuses it when it is written."""
    there = workload("apps/v1", "Deployment", pod(100, 40))
    there["spec"]["template"]["metadata"] = {"annotations": {"tencent.com/vcuda-cards": "2"}}

    def sized(cores: int, kind: str = "Deployment") -> tuple[int, str, str]:
        text = json.dumps({"v": 1, "containers": {"train": {"cores": cores}}})
        there["metadata"]["annotations"] = {"tencent.com/vcuda-resize": text}
        return check(yaml.safe_dump({**there, "kind": kind}))

    assert sized(120)[0] == 0
    code, told, _ = sized(101)
    assert code == 1
    assert "is 101, the total of 2 equal parts: use 100 or 102" in told
    assert sized(101, "ReplicaSet")[0] == 0, "which has no size of its own"


def test_a_workload_without_a_template_is_illegal(check: Check) -> None:
    code, out, _ = check("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w}\n")
    assert code == 1
    assert "this Deployment has no pod template  [pod-unreadable]" in out


def test_other_kinds_are_skipped_with_a_word_even_if_they_share_a_name(check: Check) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}}
    code, out, _ = check(yaml.safe_dump_all([service, volcano]))
    assert code == 0
    assert "skipped   Service default/web\n          a Service runs no pods that are judged here\n" in out
    assert "skipped   Job default/v\n" in out
    assert out.endswith("\n2 skipped\n")


def test_lists_are_taken_apart_and_empty_documents_are_nothing(check: Check) -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [pod(30, 20, "a"), pod(None, None, "b")]}
    bare = {
        "apiVersion": "v1",
        "kind": "PodList",
        "items": [{"metadata": {"name": "c"}, "spec": pod(150)["spec"]}],
    }
    text = "---\n" + yaml.safe_dump_all([{"kind": "List", "items": [inner]}, None, bare])
    code, out, _ = check(text)
    assert code == 1
    assert [line.split()[-1] for line in out.splitlines() if "Pod " in line] == [
        "default/a",
        "default/b",
        "default/c",
    ]
    assert "asks for no card" in out
    assert out.endswith("2 legal, 1 illegal\n")


def test_a_warning_is_said_and_stays_legal(check: Check) -> None:
    code, out, _ = check(json.dumps(pod(50, "5Gi")))
    assert code == 0
    assert "warning: container" in out
    assert "if 5 GiB was meant, use 20  [memory-beyond-cards]" in out


def test_numbers_are_read_as_kubernetes_reads_them(check: Check) -> None:
    for core in ("30", "3e1", "30.0", "0x1e", "036", '"30"', '" 30 "', "30000m"):
        text = NGINX.replace(
            "limits:   {tencent.com/vcuda-core: 30", f"limits:   {{tencent.com/vcuda-core: {core}"
        )
        assert check(text)[:2] == check(NGINX)[:2], core
    code, out, _ = check(NGINX.replace("vcuda-core: 30", "vcuda-core: 1:30"))
    assert code == 1
    assert '"1:30" is not a Kubernetes quantity' in out


def test_dates_yes_and_merges_are_no_trouble(check: Check) -> None:
    text = (
        "x: &limits {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 20}\n"
        "kind: Pod\nmetadata: {name: a, annotations: {since: 2026-01-01}}\n"
        "spec: {containers: [{name: a, tty: yes, resources: {limits: {<<: *limits}}}]}\n"
    )
    assert check(text)[:2] == (0, "legal     Pod default/a\n          a  30 cores, 5 GiB\n1 legal\n")


def test_the_clusters_unit_and_smallest_part_can_be_given(check: Check) -> None:
    assert "30 cores, 20 GiB" in check(NGINX, "--unit", "1Gi")[1]
    assert check(NGINX, "--minimum-cores", "40")[0] == 1
    assert check(NGINX, "--unit", "0")[0] == 2
    assert check(NGINX, "--unit", "lots")[0] == 2
    assert check(NGINX, "--minimum-cores", "0")[0] == 2


def test_several_files_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, core in (("a.yaml", 100), ("b.yaml", 150)):
        (tmp_path / name).write_text(yaml.safe_dump(pod(core)))
    assert run(["check", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == 1
    out = capsys.readouterr().out
    assert f"legal     {tmp_path}/a.yaml: Pod default/p" in out
    assert f"illegal   {tmp_path}/b.yaml: Pod default/p" in out


VALUES = "hub: {config: {admin: true}}\n"
FOREIGN_VALUES = "singleuser: {extra_resource_limits: {nvidia.com/gpumem: 4000, nvidia.com/gpucores: 20}}\n"


@pytest.mark.parametrize(("core", "code"), [(100, 0), (150, 1)])
def test_what_is_no_kubernetes_object_is_passed_over_and_named(
    core: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.yaml": "# nothing yet\n", "b.yaml": "- op: remove\n", "pod.yaml": yaml.safe_dump(pod(core)),
             "two.yaml": f"kind: Service\n---\n{VALUES}", "values.yaml": FOREIGN_VALUES}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert run(["check", str(tmp_path)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    for name, why in (
        ("a.yaml: document 1", "empty: no Kubernetes object in it"),
        ("b.yaml: document 1", "document 1 is a list, not a Kubernetes object"),
        ("two.yaml: document 2", "document 2 has no kind: not a Kubernetes object; of a chart, check what"),
        ("values.yaml: document 1", "document 1 has no kind"),
    ):
        assert f"skipped   {tmp_path}/{name}\n          {why}" in out
    assert "nvidia.com/gpumem at singleuser.extra_resource_limits" in out
    assert run(["check", "-o", "json", str(tmp_path)]) == code
    told = [one["reason"] for one in json.loads(capsys.readouterr().out)["objects"] if "reason" in one]
    assert len(told) == 4


def test_what_cannot_be_read_is_named_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("kind: Pod\nspec: {")
    (tmp_path / "nameless.yaml").write_text(json.dumps({**pod(30, 20), "kind": None}))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod(150)))
    assert run(["check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert f"illegal   {tmp_path}/nameless.yaml: document 1\n" in out
    assert f"illegal   {tmp_path}/pod.yaml: Pod default/p\n" in out
    assert err.startswith(f"{tmp_path}/broken.yaml: neither YAML nor JSON: line 3")
    assert err.count("\n") == 1


def test_a_file_without_an_object_is_bad_input_and_its_foreign_names_are_told(check: Check) -> None:
    code, out, err = check(VALUES)
    assert (code, out) == (2, "")
    assert err == (
        "gpu-manager: pod.yaml: document 1 has no kind: not a Kubernetes object; of a chart, check what it "
        "renders (helm template … | gpu-manager check -)\n"
    )
    code, out, err = check(FOREIGN_VALUES)
    assert (code, err) == (2, "")
    assert "write tencent.com/vcuda-core: 20, tencent.com/vcuda-memory: 16 there by hand" in out


@pytest.mark.parametrize(
    "of",
    [
        {"steps": [{"name": "s", "computeResources": {"limits": "HERE"}}]},
        {"trainer": {"resourcesPerNode": {"limits": "HERE"}}},
        {"resources": {"limits": "HERE"}},
        {"values": {"singleuser": {"extra_resource_limits": "HERE"}}},
        {"template": {"containers": [{"name": "s", "resources": {"limits": "HERE"}}]}},
    ],
)
def test_amounts_of_which_an_operator_or_a_chart_makes_a_container_are_judged(check: Check, of: Any) -> None:
    for core, code, word in ((150, 1, "illegal"), (200, 0, "legal")):
        amounts = json.dumps({"tencent.com/vcuda-core": core})
        spec = json.loads(json.dumps(of).replace('"HERE"', amounts))
        found = check(
            json.dumps({"apiVersion": "x/v1", "kind": "Task", "metadata": {"name": "t"}, "spec": spec})
        )
        assert (found[0], found[1].split()[:3]) == (code, [word, "Task", "default/t"])
        found = check(json.dumps(spec))
        assert (found[0], found[1].split()[:3]) == (code, [word, "document", "1"])


def test_what_a_pool_of_nodes_may_hold_is_no_container(check: Check) -> None:
    pool = {
        "kind": "NodePool",
        "metadata": {"name": "n"},
        "spec": {"limits": {"tencent.com/vcuda-core": 850}},
    }
    assert check(json.dumps(pool))[0] == 0


def test_a_dash_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NGINX.encode())))
    assert run(["check", "-", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["objects"][0]["file"] == "standard input"


def python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


PROGRAM = "from gpu_manager.cli.main import main; main()"


def test_the_program_ends_with_the_same_code_and_no_colour_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod(150, name="größe-显卡")))
    with python(PROGRAM, "check", str(tmp_path / "pod.yaml"), env={"PYTHONIOENCODING": "latin-1"}) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (1, b"")
    assert out.startswith(b"illegal   Pod default/gr\xf6\xdfe-\\u663e\\u5361\n")
    assert b"\x1b" not in out


def test_a_terminal_gets_colour_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pod.yaml").write_text(NGINX)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for no_colour, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_colour)
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert run(["check", str(tmp_path / "pod.yaml")]) == 0
        assert ("\x1b[32m" in sys.stdout.getvalue()) is coloured


def test_check_does_not_load_the_kubernetes_client_or_anything_as_heavy(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(NGINX)
    code = (
        "import sys; from gpu_manager.cli.main import run; assert run(sys.argv[1:]) == 0;"
        "heavy = {'kubernetes', 'grpc', 'google.protobuf', 'numpy', 'rich', 'structlog', 'cryptography', 'pynvml'};"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    with python(code, "check", str(tmp_path / "pod.yaml")) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"")


def test_an_interrupt_ends_it_without_a_word(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # As from a terminal, also where a shell has started these tests with SIGINT ignored.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {PROGRAM}"
    with python(code, "check", str(pipe)) as process, pipe.open("wb"):  # open() returns once it reads
        for _ in range(60):  # one that arrives on the way into read() is noted, and read() waits all the same
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                break
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("arguments", [["check", "-o", "json"], ["check"]])
def test_a_reader_that_leaves_hears_no_complaint(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(yaml.safe_dump_all([pod(100)] * 400))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, *arguments, str(tmp_path / "many.yaml")]
    with subprocess.Popen(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (1, b"")


def test_help_names_every_command_without_loading_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert run(["check", "--help"]) == 0
    assert "--minimum-cores" in capsys.readouterr().out


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == run(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("gpu-manager ")


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["check"], ["check", "x", "-o", "xml"], ["check", "--nope", "x"], ["--nope"]],
)
def test_a_wrong_command_line_is_one_line_and_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gpu-manager: ")
    assert said.err.count("\n") == 1


def test_claims_show_what_a_labelled_namespace_makes_of_a_pod_or_why_it_stays(check: Check) -> None:
    code, said, _ = check(NGINX, "--claims")
    assert code == 0
    assert "[turned-into-claim]" in said
    assert "request nginx: 30 cores, 5 GiB" in said
    assert "turned-into-claim" not in check(NGINX)[1]
    bound = NGINX.replace("spec:\n", "spec:\n  nodeName: n1\n")
    code, said, _ = check(bound, "--claims")
    assert code == 0
    assert "only a scheduler allocates claims: use a nodeSelector instead  [not-turned-into-claim]" in said


def test_claims_are_in_json_as_their_spec(check: Check) -> None:
    _, said, _ = check(NGINX, "--claims", "-o", "json")
    [found] = json.loads(said)["objects"]
    [request] = found["claim"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"cores": "30", "memory": "5Gi"}}
    [plain] = json.loads(check(NGINX, "-o", "json")[1])["objects"]
    assert "claim" not in plain
