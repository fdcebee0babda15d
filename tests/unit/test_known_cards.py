"""The cards that a node has had, on the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_manager.services.cards.inventory import KnownCards, decode_cards, encode_cards
from tests.fakes.ports import FakeStore, cards


class CountingStore(FakeStore):
    saves = 0

    def save(self, state: bytes) -> None:
        self.saves += 1
        super().save(state)


def test_what_is_kept_is_what_was_seen_last() -> None:
    store = CountingStore()
    known = KnownCards(store)
    assert known.load() == ()
    states = [replace(s, card=replace(s.card, pci_bus_id="0000:01:00.0")) for s in cards(3, numa=1)]
    known.cards_changed(states)
    known.cards_changed([replace(s, healthy=False, missing=True) for s in states])
    assert store.saves == 1, "an ailing card is the same card"
    assert KnownCards(store).load() == tuple(s.card for s in states)
    known.cards_changed(states[:2])
    assert KnownCards(store).load() == tuple(s.card for s in states[:2])


def test_a_card_that_never_told_its_size_is_not_missed_later() -> None:
    store = FakeStore()
    KnownCards(store).cards_changed(cards(2, memory=0))
    assert KnownCards(store).load() == ()


def test_a_list_that_could_not_be_written_is_written_with_the_next_change() -> None:
    store, states = FakeStore(), cards(2)
    known = KnownCards(store)
    store.broken = True
    known.cards_changed(states)
    store.broken = False
    known.cards_changed(states)
    assert KnownCards(store).load() == tuple(s.card for s in states)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[[]]", b"\xff", b"[1]", b'[["x","u","m",1,1,null,null,""]]', b"[" * 9999]
)
def test_a_list_that_cannot_be_read_is_empty(text: bytes) -> None:
    assert KnownCards(FakeStore(text)).load() == ()


def test_decoding_undoes_encoding() -> None:
    there = tuple(s.card for s in cards(4))
    assert decode_cards(encode_cards(there)) == there
