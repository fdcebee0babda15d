"""Go programs of the cluster: a build that fails says why, however much is written behind the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.build import build
from tests.cluster.parts import GoPrograms, MissingError

CAUSE = "a.go:7:2: example.test/b@v1.2.7: reading https://proxy.test/b/@v/v1.2.7.zip: 403 Forbidden"


def test_a_module_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go lists hundreds of packages after the one that fails."""
    go = tmp_path / "go"
    go.write_text(
        f"""#!/bin/sh
echo "go: downloading example.test/b v1.2.7"
echo "{CAUSE}"
i=0; while [ $i -lt 200 ]; do echo "example.test/a/package$i"; i=$((i + 1)); done
exit 1
"""
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    programs = GoPrograms("example v1", tmp_path, tmp_path / "built", {"a": "example.test/a"}, {})
    with pytest.raises(MissingError) as found:
        build(programs)
    assert str(found.value) == f"building example v1 failed:\n{CAUSE}"
