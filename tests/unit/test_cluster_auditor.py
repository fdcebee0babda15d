"""The auditor of the real cluster finds what it is there for: each book that says something else is told."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY, Assignment, encode_assignment
from gpu_manager.domain.resources import Amount
from tests.cluster.auditor import Books, Held, compare, overcommitted, unwritten
from tests.cluster.cluster import Cluster

UUID, OTHER = (CardUuid(f"GPU-{n * 8}-0000-4000-8000-000000000000") for n in "ab")
SIZE = 40 << 30
SHARES = frozenset({(str(UUID), 100, SIZE)})
HELD = Held("one", "uid", "c", 100, 0, "number", SHARES)
COPY = encode_assignment(Assignment("n1", "uid", {"c": ((UUID, Amount(100, SIZE)),)}, "d" * 32))
ROW: dict[str, Any] = {
    "pod": "uid",
    "container": "c",
    "kind": "app",
    "order": 0,
    "shares": [[str(UUID), 100, SIZE]],
    "dir": "d" * 32,
    "proven": True,
}


def ids(letter: str, count: int = 100) -> frozenset[str]:
    return frozenset(f"{letter * 8}-c{n:02d}" for n in range(count))


def books(row: dict[str, Any] | None = None, held: frozenset[str] | None = None, copy: str = COPY) -> Books:
    entry = (ids("a") if held is None else held, copy)
    return Books([ROW if row is None else row], {("uid", "c", CORE): entry})


def told(one: Held, kept: Books) -> list[str]:
    """What is said before the container's process is looked at: there is none here."""
    found = []
    with contextlib.suppress(ProcessLookupError):
        for text in compare(one, kept):
            found.append(text)  # noqa: PERF402 - what came before the error counts
    return found


def test_books_that_agree_say_nothing() -> None:
    assert told(HELD, books()) == []
    assert unwritten(HELD, books()) == ""


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (Books([], {}), "not in the ledger"),
        (books({**ROW, "proven": False}), "no start of it was proven"),
        (books({**ROW, "shares": [[str(UUID), 90, SIZE]]}), "asks for 100 cores"),
        (books(held=ids("a", 99)), "gave 99 and 0 ids"),
        (books(held=ids("b")), "ids of ['bbbbbbbb']"),
        (books({**ROW, "shares": [[str(OTHER), 100, SIZE]]}, ids("b")), "the checkpoint's copy says"),
        (books(copy="{}"), "the checkpoint's copy says"),
    ],
)
def test_each_book_that_says_something_else_is_told(kept: Books, words: str) -> None:
    assert any(words in text for text in told(HELD, kept)), told(HELD, kept)


def test_an_annotation_of_another_card_is_told() -> None:
    strange = replace(HELD, annotation=frozenset({(str(OTHER), 100, SIZE)}))
    assert "annotated" in unwritten(strange, books())


GIB = 1 << 30
PART = Held("one", "uid", "c", 30, 4, "number", frozenset({(str(UUID), 50, 2 * GIB)}), (50, 2 * GIB))


def part(cores: int, size: int, copied: int = 30) -> Books:
    """The ledger has this size, the checkpoint the ids of 30 cores and 4 units, and such a copy."""
    copy = encode_assignment(Assignment("n1", "uid", {"c": ((UUID, Amount(copied, GIB)),)}, "d" * 32))
    units = frozenset(f"{'a' * 8}-m{n:02d}" for n in range(4))
    checkpoint = {("uid", "c", CORE): (ids("a", 30), copy), ("uid", "c", MEMORY): (units, copy)}
    return Books([{**ROW, "shares": [[str(UUID), cores, size]]}], checkpoint)


def test_a_resized_container_has_its_new_size_and_the_ids_of_its_spec() -> None:
    assert told(PART, part(50, 2 * GIB)) == []
    assert replace(PART, answered=None).size == (30, GIB)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (part(30, GIB), "asks for 50 cores"),
        (part(50, 2 * GIB, copied=50), "the checkpoint's copy says"),
    ],
)
def test_a_resize_that_was_not_followed_is_told(kept: Books, words: str) -> None:
    assert any(words in text for text in told(PART, kept))


@pytest.mark.parametrize(("cores", "over"), [(50, False), (51, True)])
def test_a_card_that_is_booked_over_is_told(cores: int, over: bool) -> None:
    cluster = Cluster()
    share = [cluster.cards[2].uuid, cores, 1 << 30]
    rows = [{**ROW, "pod": pod, "shares": [share]} for pod in ("one", "two")]
    found = list(overcommitted(cluster, Books(rows, {})))
    assert bool(found) is over
    assert all("card 2: 102 cores" in text for text in found)
