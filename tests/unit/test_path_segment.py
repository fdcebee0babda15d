"""Names in paths of the API: none points elsewhere."""

from __future__ import annotations

import pytest

from gpu_manager.adapters.kube.connection import named_path, segment
from gpu_manager.domain.errors import RequestInvalid


def test_a_name_stays_one_segment() -> None:
    assert named_path("a/b", "c?d#e%2f") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd%23e%252f"
    assert segment("web-0.example...") == "web-0.example..."


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_alone_are_no_name(name: str) -> None:
    with pytest.raises(RequestInvalid, match="is no name"):
        named_path("team", name)
