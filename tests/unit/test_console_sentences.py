"""The console's Chinese for the service's sentences is whole: every text that these modules write has a pattern."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from gpu_manager.domain.rules.rulebook import Rule

ROOT = Path(__file__).parents[2]
MODULES = (
    "admission/cluster/node_view.py",
    "admission/explain/claims.py",
    "admission/explain/explanation.py",
    "admission/explain/remedies.py",
    "admission/explain/waiting_claims.py",
    "admission/extender/refusal_lines.py",
    "admission/gangs/members.py",
    "gpu_manager/domain/advice/size.py",
    "gpu_manager/domain/cluster/kubelet_ids.py",
    "gpu_manager/domain/cluster/pod_holder.py",
    "gpu_manager/domain/kube/constraints.py",
    "gpu_manager/domain/placement/explain.py",
)
NO_SENTENCES = {"not asked", "Knative Service", "no {}"}  # a count, a kind, a selector
NO_SENTENCES |= {
    "no room, even if it were empty",
    "would have room without",
    "closed by quota",
}  # of text alone
NO_SENTENCES |= {
    "has less host memory free than the",
    "holds as many pods as it may",
    "device ids of",
    "left, and the pod asks for",
}  # of what-if: kube-scheduler itself says so of a pod that waits
PATTERN_OF_A_SCHEDULER = re.compile(r"\\|\(had|^unbound immediate|^node\\")
LINE = re.compile(r'\["((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\]')
NAME = re.compile(r"\{(\w)\}")


def table() -> list[tuple[str, str]]:
    """English pattern and Chinese one, in the console's order."""
    found = []
    for script in ("sentences.js", "rules.js"):
        text = files("gpu_manager.ui").joinpath(script).read_text("utf-8")
        found += [(json.loads(f'"{a}"'), json.loads(f'"{b}"')) for a, b in LINE.findall(text)]
    return [(english, chinese) for english, chinese in found if english.strip(" .;|,")]


PATTERNS = table()
ENGLISH = "\n".join(re.sub(r"\{\w\}", "\n", english) for english, _ in PATTERNS)


def texts(path: str) -> Iterator[str]:
    """The fixed parts of every text in a module, but for its docstrings."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


@pytest.mark.parametrize("path", MODULES)
def test_every_text_of_an_explanation_has_a_chinese_pattern(path: str) -> None:
    written = {text.strip(" .,;:()|\"'") for text in texts(path) if not PATTERN_OF_A_SCHEDULER.search(text)}
    sentences = {text for text in written if " " in text and text not in NO_SENTENCES}
    assert {text for text in sentences if text not in ENGLISH} == set()


@pytest.mark.parametrize("rule", [rule for rule in Rule if not rule.is_warning], ids=lambda rule: rule.id)
def test_every_rule_that_refuses_a_pod_has_a_chinese_pattern(rule: Rule) -> None:
    parts = [
        part.strip(" .,;:()") for part in re.split(r"\{\w+\}|(?<=annotation )tencent\S+", rule.value.text)
    ]
    assert {part for part in parts if " " in part and part not in ENGLISH} == set()


def test_both_halves_of_a_pattern_have_the_same_names_and_the_second_is_chinese() -> None:
    assert len(PATTERNS) > 200
    for english, chinese in PATTERNS:
        assert sorted(NAME.findall(english)) == sorted(NAME.findall(chinese)), english
        assert chinese != english
        assert len(set(NAME.findall(english))) == len(NAME.findall(english)), english
    assert len({english for english, _ in PATTERNS}) == len(PATTERNS)
