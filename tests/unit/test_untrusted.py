"""JSON that others wrote: what has another form counts as absent."""

from __future__ import annotations

import pytest

from gpu_manager.domain.untrusted import json_object


@pytest.mark.parametrize(
    ("data", "found"),
    [('{"a": 1}', {"a": 1}), (b"{}", {}), ("[1]", None), ("{", None), (b"\xff", None), ("[" * 100_000, None)],
    ids=["object", "bytes", "list", "cut", "no text", "deep"],
)
def test_a_json_object_is_read_and_anything_else_is_none(data: str | bytes, found: object) -> None:
    assert json_object(data) == found
