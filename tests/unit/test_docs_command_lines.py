"""Every command line of ours in the docs names a command, options and targets that exist, every path a file."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_manager.cli import main
from gpu_manager.cli.kubectl import main as kubectl
from gpu_manager.cli.program import load

ROOT = Path(__file__).parents[2]
FRONT = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.*")]
"""What a visitor meets first: pages of the root, forms for issues and changes."""
HISTORY = ROOT / "CHANGELOG.md"
"""It names what is gone, or is built."""
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(page for page in FRONT if page != HISTORY),
    ROOT / "deploy/helm/gpu-manager/README.md",
]
PROGRAMS = {"gpu-manager": main.COMMANDS, "kubectl vcuda": kubectl.COMMANDS}
TARGETS = set(re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
OF_THE_CLUSTER = re.compile(r'make cluster CMD="?([a-z-]+)')
_PATH = re.compile(
    r"`((?:admission|bench|deploy|docs|gpu_manager|locks|proto|sandbox|tests|tools|vcuda)/[\w./-]+)`"
)
_LINE = re.compile(r"(?:^|.* -- |\| |\$ |\.venv/bin/)(gpu-manager|kubectl vcuda|make) (.*)")


def code(text: str) -> Iterator[str]:
    """Each line of the blocks, and each span, without comments."""
    blocks = re.findall(r"(?ms)^ *```[^\n]*\n(.*?)^ *```", text)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```", "", text))
    for line in [line for block in blocks for line in block.splitlines()] + spans:
        yield re.split(r"\s+#\s", line.strip())[0]


def command_lines() -> Iterator[tuple[str, str, str]]:
    """(page, program, the words behind it)."""
    for page in PAGES:
        for line in code(page.read_text(encoding="utf-8")):
            for part in re.split(r" \| | && |; ", line):
                if match := _LINE.fullmatch(part.strip()):
                    yield str(page.relative_to(ROOT)), match[1], match[2]


LINES = sorted(set(command_lines()))


def test_many_are_found_of_each_program() -> None:
    counts = {program: sum(line[1] == program for line in LINES) for program in (*PROGRAMS, "make")}
    assert min(counts.values()) > 30, counts


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_and_options_are_those_of_the_program(program: str) -> None:
    wrong = []
    for page, said, rest in LINES:
        words = shlex.split(rest.replace("…", "")) if said == program else []
        if not words or not re.fullmatch("[a-z]+", words[0]):
            continue  # a row of placeholders, an option of the program
        for name in words[0].split("|"):
            if name not in PROGRAMS[program]:
                wrong.append(f"{page}: {program} {rest}")
                continue
            known = load(program, name, PROGRAMS[program][name][0]).parameters
            options = {one for p in known for one in (*p.names, *p.off)} | {"--help", "-h"}
            given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
            if name != "sandbox" and not given <= options:
                wrong.append(f"{page}: {program} {rest}: {sorted(given - options)}")
    assert wrong == []


def test_targets_of_make_exist() -> None:
    wrong = []
    for page, said, rest in LINES:
        words = [w for w in rest.split() if "=" not in w and not w.startswith("-")] if said == "make" else []
        wrong += [
            f"{page}: make {word}"
            for word in words
            if re.fullmatch("[a-z0-9-]+", word) and word not in TARGETS
        ]
    assert wrong == []


def test_each_path_that_a_page_names_exists() -> None:
    named = {(page, path) for page in PAGES for path in _PATH.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert [f"{page}: {path}" for page, path in named if not (ROOT / path).exists()] == []


def test_links_of_the_roots_pages_lead_somewhere() -> None:
    """mkdocs checks those of docs."""
    links = [
        (page.name, target)
        for page in FRONT
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 30
    assert [f"{page}: {target}" for page, target in links if not (ROOT / target).exists()] == []


def test_each_form_for_issues_has_a_name_a_purpose_and_a_required_field() -> None:
    forms = [path for path in FRONT if path.suffix == ".yml" and path.name != "config.yml"]
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"]
        assert form["description"]
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert any(part.get("validations", {}).get("required") for part in fields), path.name
        assert all(part["attributes"]["label"] for part in fields)


def test_make_help_shows_each_target_in_one_of_four_groups() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = shown.splitlines()
    assert len([line for line in lines if not line.startswith(" ")]) == 4
    explained = re.findall(r"(?m)^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert sorted(line.split()[0] for line in lines if line.startswith(" ")) == sorted(explained)


def test_each_word_of_the_cluster_is_one_that_its_program_knows() -> None:
    words = {word for page in PAGES for word in OF_THE_CLUSTER.findall(page.read_text(encoding="utf-8"))}
    assert len(words) > 10
    program = (ROOT / "tests" / "cluster" / "__main__.py").read_text(encoding="utf-8")
    assert words - {"packages"} <= set(re.findall(r'"([a-z-]+)"[]:]', program))
