"""Whatever the file holds, ``gpu-manager check`` answers in one line, at once, without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.manifests import LONGEST_BYTES, read_manifests
from gpu_manager.cli.main import run
from gpu_manager.domain.errors import RequestInvalid

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
MERGES = "a: &a {k: v}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(9)
)

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty: no Kubernetes object in it"),
    "blank": (b"\n \n---\n---\n", "empty: no Kubernetes object in it"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "not UTF-8 text (byte 8)"),
    "utf16": ("kind: Pod".encode("utf-16"), "not UTF-8 text"),
    "nul": (b"kind: Pod\x00\n", "it holds control characters"),
    "huge": (b"#" * (LONGEST_BYTES + 1), "larger than 4 MiB"),
    "text": (b"hello", 'document 1 is "hello", not a Kubernetes object'),
    "number": (b"5", "document 1 is 5, not a Kubernetes object"),
    "list": (b"- kind: Pod", "document 1 is a list, not a Kubernetes object"),
    "no kind": (b"a: b", "document 1 has no kind"),
    "kind of another type": (b"kind: [Pod]", "document 1 has no kind"),
    "item of another type": (b"kind: List\nitems: [a]", 'document 1 is "a", not a Kubernetes object'),
    "unclosed": (b"kind: Pod\nspec: {", "neither YAML nor JSON: line 3"),
    "tab": (b"kind: Pod\nspec:\n\tcontainers: []\n", "neither YAML nor JSON: line 3"),
    "template": (b"kind: Pod\n{{- if .Values.gpu }}\n", "render a Helm template before"),
    "unknown reference": (b"kind: *x", "neither YAML nor JSON: line 1: found undefined alias"),
    "map as key": (b"? {a: b}\n: c", "neither YAML nor JSON: line 1"),
    "bomb": (BOMB.encode(), "holds more than 500000 values"),
    "merge bomb": (MERGES.encode(), "holds more than 500000 values"),
    "many values": (b"kind: Pod\na: [" + b"1," * 600_000 + b"]", "holds more than 500000 values"),
    "circle": (b"kind: Pod\nspec: &a\n  b: *a\n", 'refers to "a" inside itself'),
    "deep": (b"[" * 300_000, "nested more than 100 levels deep"),
    "deep and closed": (b"[" * 300_000 + b"]" * 300_000, "nested more than 100 levels deep"),
    "deep JSON": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "tag": (b"kind: !!python/object:os.system x", "which no manifest has"),
    "broken tag": (b"kind: !!bool x", "which no manifest has"),
    "long number": (b"kind: Pod\nspec: {priority: " + b"9" * 5000 + b"}", "a number of thousands of digits"),
    "long JSON number": (b'{"kind": "Pod", "spec": {"priority": ' + b"9" * 5000 + b"}}", "thousands of digits"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_says_what_is_wrong(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, says = BAD[case]
    (tmp_path / "m.yaml").write_bytes(data)
    assert run(["check", str(tmp_path / "m.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpu-manager: {tmp_path}/m.yaml: ")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.err[:-1].isprintable()


@pytest.mark.parametrize(
    ("name", "says"),
    [("nothing.yaml", "No such file or directory"), (".", "a.yaml: empty"), ("a\x00b", "no such file"),
     ("x" * 300, "File name too long"), ("a.yaml/b", "Not a directory")],
)  # fmt: skip
def test_what_is_no_file_is_said(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert run(["check", name]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err


def test_names_cannot_move_the_cursor_or_forge_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "a\n\x1b[2Jlegal\u202e"
    pod = {
        "spec": {"containers": [{"name": hostile, "resources": {"limits": {"tencent.com/vcuda-core": 150}}}]}
    }
    (tmp_path / "m.json").write_text(json.dumps({"kind": "Pod", "metadata": {"name": hostile}, **pod}))
    assert run(["check", str(tmp_path / "m.json")]) == 1
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert all(line.isprintable() for line in out.splitlines())


def test_half_a_surrogate_is_refused_and_printed_as_an_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.json").write_text('{"kind": "Pod", "metadata": {"name": "\\ud800"}}')
    for form in ("table", "json", "yaml"):
        assert run(["check", str(tmp_path / "m.json"), "-o", form]) == 1
        capsys.readouterr().out.encode()


def test_a_byte_order_mark_and_windows_lines_are_no_trouble() -> None:
    (only,) = read_manifests(b"\xef\xbb\xbfkind: Pod\r\nmetadata:\r\n  name: a\r\n")
    assert (only.kind, only.name, only.runs_pods) == ("Pod", "a", True)


def test_a_reference_used_often_but_small_is_read() -> None:
    text = "kind: Pod\nx: &x [1, 2]\ny: [" + "*x," * 1000 + "]\nspec: {containers: []}\n"
    assert len(read_manifests(text.encode())) == 1


def test_flow_yaml_is_not_mistaken_for_broken_json() -> None:
    (only,) = read_manifests(b"{kind: Pod, metadata: {name: a}}")
    assert only.name == "a"


def test_json_numbers_keep_the_digits_they_were_written_with() -> None:
    (only,) = read_manifests(b'{"kind": "Pod", "spec": {"a": 0.30, "b": 1e999999}}')
    assert only.pod is not None
    assert only.pod["spec"] == {"a": "0.30", "b": "1e999999"}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=60) | st.text("{}[]:-&*!|>'\"\n\t #,kindPodspec<<?%@`~0.", max_size=60).map(str.encode)
)
def test_no_bytes_escape_as_another_error(data: bytes) -> None:
    try:
        manifests = read_manifests(data)
    except RequestInvalid as error:
        text = str(error)
    else:
        text = "".join(m.kind for m in manifests) or "objects"
    assert text
