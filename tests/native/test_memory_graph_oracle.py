"""Random graphs with memory nodes in containers that are often too small for them: branches, children, updates, launches
without a synchronisation between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.driven import Container
from tests.native.graph_player import Verdict, judge
from tests.native.tools import FULL

BLOCKS, HISTORIES = (4, 50) if FULL else (1, 20)
MILLISECONDS_10 = 15_000_000  # bytes that the modelled card sets in that time


@pytest.mark.parametrize("set_bytes", [0, MILLISECONDS_10])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_graphs_take_is_charged_and_what_fits_is_launched(
    tmp_path: Path, block: int, set_bytes: int
) -> None:
    verdict = Verdict()
    with Container(tmp_path) as container:
        guest = container.program().start()
        for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
            judge(container, guest, seed, verdict, set_bytes=set_bytes)
        guest.end()
    assert verdict.launches > 5 * HISTORIES
    assert verdict.refusals > 0
    assert (verdict.bytes_uncharged, verdict.bytes_over) == (0, 0)
    assert (verdict.false_refusals, verdict.hasty_refusals) == (0, 0)
