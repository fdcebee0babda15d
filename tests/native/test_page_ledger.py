"""Charging memory: to the byte, by many processes, killed at any instant."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.conftest import Guest, usage_of

Start = Callable[..., Guest]
LIMIT = 4096


@pytest.fixture
def guest(guests: Start) -> Guest:
    started = guests()
    started("attach")
    return started


def test_the_limit_holds_to_the_byte(guest: Guest, root: Path) -> None:
    assert guest(f"charge 0 {LIMIT} {LIMIT}") == "1"
    assert guest(f"charge 0 1 {LIMIT}") == "0"
    assert guest("discharge 0 1") == "0"
    assert guest(f"charge 0 2 {LIMIT}") == "0"
    assert guest(f"charge 0 1 {LIMIT}") == "1"
    card = usage_of(root).cards[0]
    assert (card.charged, card.peak, card.refusals, card.refused_bytes) == (LIMIT, LIMIT, 2, 2)


@pytest.mark.parametrize("bytes_", [2**64 - 1, 2**63, 2**48])
def test_absurd_sizes_are_refused_and_leave_nothing(guest: Guest, root: Path, bytes_: int) -> None:
    guest("charge 0 10 4096")
    assert guest(f"charge 0 {bytes_} {2**64 - 1}") == "0"
    assert guest("charged 0") == "10"
    assert usage_of(root).slots[0].charged[0] == 10


def test_more_is_never_given_back_than_was_taken(guest: Guest, guests: Start) -> None:
    other = guests()
    other("attach")
    other("charge 0 100 4096")
    guest("charge 0 10 4096")
    guest("discharge 0 1000")
    guest("discharge 0 1000")
    assert guest("charged 0") == "100"


def test_what_the_driver_took_is_charged_past_the_limit_and_blocks_more(guest: Guest) -> None:
    assert guest("taken 0 5000") == "1"
    assert guest("charged 0") == "5000"
    assert guest(f"charge 0 1 {LIMIT}") == "0"


def test_a_shrunken_limit_refuses_until_enough_is_given_back(guest: Guest) -> None:
    guest(f"charge 0 4000 {LIMIT}")
    assert guest("charge 0 1 2000") == "0"
    guest("discharge 0 2001")
    assert guest("charge 0 1 2000") == "1"


def test_a_repair_finds_the_truth(guest: Guest, root: Path) -> None:
    guest("charge 0 1000 4096")
    with (root / "etc/vcuda/usage").open("r+b", buffering=0) as file:
        file.seek(4096)
        file.write((999_999).to_bytes(8, "little"))
    assert guest("charged 0") == "999999"
    guest("repair 0")
    assert guest("charged 0") == "1000"
    assert usage_of(root).repairs >= 1


def test_a_refusal_is_never_for_memory_that_a_dead_process_held(guest: Guest, guests: Start) -> None:
    other = guests()
    other("attach")
    other(f"charge 0 {LIMIT} {LIMIT}")
    assert guest(f"charge 0 1 {LIMIT}") == "0"
    other.kill()
    assert guest(f"charge 0 {LIMIT} {LIMIT}") == "1"


def test_processes_killed_at_random_never_pass_the_limit_and_leave_a_true_ledger(
    guests: Start, root: Path
) -> None:
    pick = random.Random(20)
    limit = 64 * 512

    def hammering() -> Guest:
        guest = guests()
        assert guest("attach") == "1"
        assert guest(f"hammer 0 512 {limit} {pick.randrange(1 << 30)}") == "hammering"
        return guest

    crowd = [hammering() for _ in range(4)]
    for _ in range(60):
        deadline = time.monotonic() + pick.uniform(0, 0.004)
        while time.monotonic() < deadline:
            assert usage_of(root).cards[0].charged <= limit
        crowd.pop(pick.randrange(len(crowd))).kill()
        crowd.append(hammering())
    judge = guests()
    judge("attach")
    for guest in crowd:
        guest.process.kill()
        said = guest.process.communicate(timeout=30)[0]
        assert "lost" not in said
    judge("reap")
    usage = usage_of(root)
    assert [slot.index for slot in usage.slots] == [int(judge("slot"))]
    assert usage.cards[0].charged == 0
    assert usage.cards[0].peak <= limit
