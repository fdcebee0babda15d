"""Memory that processes give each other: charged to its maker while anything holds it, and given back then."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.native.driven import CONTEXT, Container
from tests.native.export_player import ExportPlayer
from tests.native.tools import FULL
from tests.oracle.random_exports import communicators, random_history

BLOCKS, HISTORIES = (4, 10) if FULL else (1, 12)
COMMUNICATORS = 100 if FULL else 25
ROOM = 8 << 30


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_account_follows_random_histories_of_exports(tmp_path: Path, block: int) -> None:
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        base = tmp_path / str(seed)
        base.mkdir()
        with Container(base, ROOM) as container:
            player = ExportPlayer(container)
            history = itertools.takewhile(
                lambda call: call.verb != "fork", random_history(seed, multicast=False)
            )
            player.play(history)
            player.end()
            assert (player.uncharged, player.leaked) == (0, 0), f"history {seed}"


@pytest.mark.parametrize("ranks", [1, 2])
def test_communicators_leave_nothing_charged(tmp_path: Path, ranks: int) -> None:
    """With room for two at a time: NCCL's buffers are exported, mapped by the neighbour, and let go of by their maker
    first."""
    with Container(tmp_path, ranks * (CONTEXT + 2 * (96 << 20))) as container:
        player = ExportPlayer(container)
        player.play(communicators(COMMUNICATORS, ranks=ranks).calls, judge=False)
        player.look_again(ranks * CONTEXT)
        assert container.charged() == ranks * CONTEXT
