"""An agent that starts with other settings brings them to the pages of pods that run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.limits_file import PagePolicy
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.prestart import LimitPages
from tests.fakes.ports import cards
from tests.fakes.state import state_of
from vcuda.page.limits import read_limits

CARD = cards(1)[0].card.uuid
FRACTION, ABSENT, WHOLE, BROKEN = (letter * 32 for letter in "abcd")


def grant(directory: str, cores: int = 10) -> Grant:
    share = Share(CARD, Amount(cores, GIB if cores < 100 else 16 * GIB))
    return Grant(Allocation(PodUid(directory), "c", ContainerKind.APP, 0, (share,)), directory)


@pytest.mark.parametrize("wanted", [True, False], ids=["on", "off"])
def test_a_running_pod_follows_the_agents_flag_both_ways(tmp_path: Path, wanted: bool) -> None:
    before = FileControlPages(tmp_path, PagePolicy(oversubscribe=not wanted))
    before.open(FRACTION, limits_of(grant(FRACTION)))
    generation = read_limits((tmp_path / FRACTION / "limits").read_bytes()).generation
    before.close()
    state = state_of(cards(1), grant(FRACTION), grant(ABSENT))
    LimitPages(state, FileControlPages(tmp_path, PagePolicy(oversubscribe=wanted))).apply_settings()
    page = read_limits((tmp_path / FRACTION / "limits").read_bytes())
    assert (page.oversubscribe, page.generation > generation) == (wanted, True)
    assert not (tmp_path / ABSENT).exists()


class Stuck(FileControlPages):
    """Cannot write one page, or not even list them."""

    listed = True

    def names(self) -> Sequence[str]:
        if not self.listed:
            raise NodeUnready("the disk reports an error")
        return super().names()

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        if name == BROKEN:
            raise NodeUnready("the disk reports an error")
        super().open(name, limits)


def test_a_page_that_cannot_be_written_keeps_no_other_from_its_settings(tmp_path: Path) -> None:
    first = FileControlPages(tmp_path)
    for name in (BROKEN, FRACTION):
        first.open(name, limits_of(grant(name)))
    first.close()
    state = state_of(cards(2), grant(BROKEN), grant(FRACTION))
    stuck = Stuck(tmp_path, PagePolicy(oversubscribe=True))
    LimitPages(state, stuck).apply_settings()
    shown = {name: read_limits((tmp_path / name / "limits").read_bytes()) for name in (BROKEN, FRACTION)}
    assert {name: page.oversubscribe for name, page in shown.items()} == {BROKEN: False, FRACTION: True}


def test_pages_that_cannot_be_listed_keep_no_agent_from_starting(tmp_path: Path) -> None:
    stuck = Stuck(tmp_path)
    stuck.listed = False
    LimitPages(state_of(cards(1), grant(FRACTION)), stuck).apply_settings()
    assert list(tmp_path.iterdir()) == []


def test_whole_cards_have_no_page(tmp_path: Path) -> None:
    (tmp_path / WHOLE).mkdir()
    LimitPages(state_of(cards(1), grant(WHOLE, 100)), FileControlPages(tmp_path)).apply_settings()
    assert list((tmp_path / WHOLE).iterdir()) == []
