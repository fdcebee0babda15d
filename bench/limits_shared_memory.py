"""Memory that is not one process's at one moment: of graphs, of a pool, and what processes give each other.

The judges (``tests/oracle``) are written from CUDA's documentation, apart from the stand-in driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.native import container
from bench.rows import Row
from tests.native.driven import CONTEXT, GRANULE, MIB, OUT, OUT_OF_MEMORY, SUCCESS, Program
from tests.native.export_player import ExportPlayer
from tests.native.graph_player import Verdict, judge
from tests.native.structures import POSIX, block_props
from tests.oracle.random_exports import communicators

GRAPHS: Final = 10_000
QUICK_GRAPHS: Final = 300
SET_BYTES: Final = (0, 15_000_000)
"""What other nodes of a graph set: nothing, or 10 ms of the modelled card's time, so that launches
overlap.
"""
COMMUNICATORS: Final = 100
ROUNDS: Final = 20


def graphs(*, full: bool) -> Iterable[Row]:
    """Branches, children, updates, launches without a synchronisation between, at limits that are often too
    small.
    """
    verdict = Verdict()
    with container(1 << 30) as made:
        guest = made.program().start()
        for seed in itertools.count():
            judge(made, guest, seed, verdict, set_bytes=SET_BYTES[seed % 2])
            if verdict.graphs >= (GRAPHS if full else QUICK_GRAPHS):
                break
        guest.end()
    refused = f"{verdict.launches} launches, {verdict.refusals} refused"
    note = f"{verdict.graphs} random graphs, {refused}; model, not yet a card"
    wrongly = verdict.false_refusals + verdict.hasty_refusals
    over = max(0, verdict.bytes_over, verdict.bytes_uncharged)
    yield Row("graph_false_refusals", wrongly, "calls", "≤ 0", None, full, note)
    yield Row("graph_bytes_over", over, "bytes", "≤ 0", None, full, f"over or not charged; {note}")


def exports(*, full: bool) -> Iterable[Row]:
    """Communicators of one and of two ranks, whose buffers are exported; there is room for two at a time."""
    worst = 0
    for ranks in (1, 2):
        with container(ranks * (CONTEXT + 2 * 96 * MIB)) as made:
            player = ExportPlayer(made)
            player.play(communicators(COMMUNICATORS, ranks=ranks).calls, judge=False)
            player.look_again(ranks * CONTEXT)
            worst = max(worst, made.charged() - ranks * CONTEXT)
    note = f"charged after {COMMUNICATORS} communicators of 1 and of 2 ranks; model, not yet a card"
    yield Row("exported_leak_mib", worst / MIB, "MiB", "≤ 0", None, full, note)


def calls(*, full: bool) -> Iterable[Row]:
    """What a pair of stream-ordered calls asks the driver beyond the pair, far from the limit."""
    most = max(_asked(*shape) for shape in ((1, 0), (1, 1), (1, 4), (2, 1), (2, 4)))
    note = (
        f"beside cuMemAllocAsync and cuMemFreeAsync, pair {ROUNDS}; null stream, own stream, four in turn; "
        f"own and four in turn on each of two cards; {_asked(2, 0)} on the null streams of two cards in turn"
    )
    yield Row("async_alloc_extra_calls", most, "calls", "≤ 1", None, full, note)


def _asked(cards: int, own_streams: int) -> int:
    with TemporaryDirectory() as directory, container(1 << 30, cards=cards) as made:
        log = Path(directory) / "calls"
        guest = made.program(trace=log, cards=cards).start()
        places = []
        for card in range(cards):
            context = guest.context(card)
            streams = [guest("cuStreamCreate", OUT, 1).value for _ in range(own_streams)] or [0]
            places.append([(context, stream) for stream in streams])
        turns = [place for several in zip(*places, strict=True) for place in several]
        for context, stream in itertools.islice(itertools.cycle(turns), ROUNDS):
            guest("cuCtxSetCurrent", context)
            log.write_text("")
            at = guest("cuMemAllocAsync", OUT, 4 * MIB, stream).value
            guest("cuMemFreeAsync", at, stream)
            asked = log.read_text().count("call ") - 2
            guest("cuStreamSynchronize", stream)
    return asked


def kept_descriptors(limit: int) -> tuple[int, int]:
    """Bytes past the limit, by account and by card, of who exports, releases and keeps the descriptors."""
    with container(limit) as made:
        guest = made.program().start()
        over = [0, 0]
        for size in itertools.cycle((2 * GRANULE, 50 * MIB, 7 * GRANULE)):
            answer = guest("cuMemCreate", OUT, size, block_props(), 0)
            if answer.result == OUT_OF_MEMORY:
                break
            _give_away(guest, answer.value)
            over = [max(over[0], made.charged() - limit), max(over[1], guest.card_used() - limit)]
    return over[0], over[1]


def _give_away(guest: Program, handle: int) -> None:
    for name, *arguments in (
        ("cuMemExportToShareableHandle", OUT, handle, POSIX, 0),
        ("cuMemRelease", handle),
    ):
        result = guest(name, *arguments).result
        if result != SUCCESS:
            raise RuntimeError(f"{name} returned {result}")


def rows(*, full: bool) -> Iterable[Row]:
    """All of these."""
    for part in (graphs, exports, calls):
        yield from part(full=full)
