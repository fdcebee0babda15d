"""What counts as a line of code, and what a package may have."""

from __future__ import annotations

import pytest

from tools import size

PYTHON = '''"""A module."""
import os  # counts

# does not


def f(a):
    """Neither does
    this.
    """
    text = """does,
    all of it"""
    return text
'''
C = """/* no
 * no */
#include <x.h> // yes

static int a; /* yes */
// no
const char *b = "/* a string, not a comment";
int c;
"""


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert size.python_lines(PYTHON) == 5
    assert size.python_lines('"""Only words."""\n') == 0
    assert size.c_lines(C) == 4


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("gpu_manager/domain/rules/pod.py", "gpu_manager/domain"),
        ("gpu_manager/agent/config.py", "gpu_manager/agent"),
        ("admission/webhook/admit.py", "admission"),
        ("vcuda/library.py", "vcuda"),
        ("vcuda/lib/src/core/gate.c", "C"),
    ],
)
def test_a_file_counts_for_its_package(path: str, package: str) -> None:
    assert size.package(path) == package


def test_a_package_beyond_its_ceiling_or_without_one_is_named() -> None:
    assert size.beyond({"a": 5, "b": 7, "new": 1}, {"a": 5, "b": 6}) == [
        "b: 7 lines of code; [tool.size] in pyproject.toml allows 6",
        "new: 1 lines of code; [tool.size] in pyproject.toml allows 0",
    ]


def test_generated_code_and_the_library_s_own_tests_are_left_out() -> None:
    found = [path for path, _ in size.files()]
    assert "gpu_manager/agent/config.py" in found
    assert not [path for path in found if path.startswith(("gpu_manager/pb/", "vcuda/lib/test/"))]
