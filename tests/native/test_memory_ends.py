"""Pools that end while the library asks about them in other threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.driven import (
    CONTEXT,
    MIB,
    SANITIZERS,
    Container,
)

LIMIT = 512 * MIB


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_pools_may_be_destroyed_while_other_threads_synchronise_or_are_refused(
    tmp_path: Path, sanitize: str
) -> None:
    with Container(tmp_path, LIMIT, sanitize=sanitize) as container:
        pools = container.program(name="prog_pools", arguments=["1500" if sanitize else "20000"])
        assert pools.process.stdout
        said = pools.process.stdout.readline().split()
        assert said == ["ready", str(LIMIT - CONTEXT)], (said, pools.close())
        assert container.charged() == CONTEXT
        pools.end()
