"""Sixty attacks of a container's root on its pages and its card's gate: what others notice, and who is named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.hostile_attacks import ATTACKS, Attack
from tests.fakes.hostile_world import HostileWorld, hostile_world, may_mount
from tests.native.tools import build_tests

pytestmark = pytest.mark.skipif(not may_mount(), reason="needs the right to mount file systems")


@pytest.fixture(scope="module")
def program() -> Path:
    return build_tests("vcuda-gates") / "vcuda-gates"


@pytest.fixture
def world(program: Path) -> Iterator[HostileWorld]:
    with tempfile.TemporaryDirectory(prefix="gm-") as base, hostile_world(Path(base), program) as made:
        yield made


def test_sixty_attacks_are_played() -> None:
    assert len(ATTACKS) >= 60
    assert len({str(attack) for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_nobody_else_waits_a_second_and_who_did_it_is_named(world: HostileWorld, attack: Attack) -> None:
    judged = world.play(attack)
    assert not judged.wrong
