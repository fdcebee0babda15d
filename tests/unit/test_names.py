"""Names said once: public classes across all packages, strings of the contract in its one module, log events;
and one tree of errors.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from gpu_manager.domain import contract
from tests.sources import sources

STRUCTS = "vcuda/page/"  # mirrors the C structs, which have names of their own
CONTRACT = "gpu_manager/domain/contract.py"


def test_a_public_class_name_exists_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for place, tree in sources():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and not place.startswith(STRUCTS)
            ):
                found[node.name].append(f"{place}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


# Exceptions outside the tree of gpu_manager.domain.errors, and why no person ever reads one.
OUTSIDE_THE_TREE = {
    "VcudaError": "the root",
    "PageError": "vcuda.page stands below gpu_manager; the adapter translates it",
    "Silent": "the admission service did not answer: the command judges by itself",
    "Unseen": "a check of the doctor cannot be made from here",
    "Answer": "an HTTP answer",
    "DriverHangsError": "the adapter of the cards closes the card that hangs",
    "_Refused": "an HTTP answer",
}


def test_every_error_that_people_read_is_of_the_one_tree() -> None:
    foreign = re.compile(r"^(?:Base)?Exception$|^[A-Z]\w*Error$")
    found = {
        node.name
        for place, tree in sources()
        if not place.startswith("sandbox/")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(foreign.match(ast.unparse(b)) and ast.unparse(b) != "VcudaError" for b in node.bases)
    }
    assert found == OUTSIDE_THE_TREE.keys()


# Words that are contract and plain words at once: spelled elsewhere they mean something else.
PLAIN = {
    contract.NAMESPACE: "Kubernetes' own namespace, which exists with or without this project",
    contract.AGENT_NAME: "the program, the distribution and the User-Agent have this name too",
    contract.PRELOAD_PATH: "the loader's own file",
    contract.KUBELET_DIR: "the kubelet's default",
}


def promised() -> list[str]:
    strings = [
        value
        for name, value in vars(contract).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    ]
    assert len(strings) > 40
    return sorted(set(strings) - PLAIN.keys())


def spelled(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String constants of the code with their lines; docstrings are prose."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


@pytest.fixture(scope="module")
def constants() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for place, tree in sources():
        if place != CONTRACT:
            for line, text in spelled(tree):
                found[text].append(f"{place}:{line}")
    return found


@pytest.mark.parametrize("string", promised())
def test_a_string_of_the_contract_is_spelled_in_its_module_alone(
    string: str, constants: dict[str, list[str]]
) -> None:
    assert constants.get(string, []) == []


LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def logged(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The events of all log calls with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        owner = node.func.value
        if isinstance(owner, ast.Name) and (
            (owner.id == "log" and node.func.attr in LEVELS)
            or (owner.id == "threads" and node.func.attr == "failed")
        ):
            texts = (part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
            yield from ((node.lineno, text) for text in texts if isinstance(text, str))


def test_log_events_are_snake_case_and_the_logger_has_one_name() -> None:
    events = [(f"{place}:{line}", event) for place, tree in sources() for line, event in logged(tree)]
    assert len(events) > 100
    assert [(at, event) for at, event in events if not re.fullmatch(r"[a-z][a-z0-9_]*", event)] == []
    loggers = [
        (place, target.id)
        for place, tree in sources()
        for node in tree.body
        if isinstance(node, ast.Assign) and "structlog.get_logger" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert {name for _, name in loggers} == {"log"}
