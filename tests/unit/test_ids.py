import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.ids import DeviceIds, compact, expand, prefixes
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, MIB

hexes = st.text("0123456789abcdef", min_size=32, max_size=32)
uuids = hexes.map(lambda h: CardUuid(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"))


def card(uuid: str, memory: int = 16 * GIB, **more: object) -> Card:
    return Card(0, CardUuid(uuid), "T4", memory, **more)  # type: ignore[arg-type]


@given(st.lists(uuids, unique=True, min_size=1, max_size=16), st.integers(1, 200))
def test_case_13_ids_count_the_cards_and_units_are_unique_and_short(cards: list[CardUuid], gib: int) -> None:
    ids = DeviceIds(
        tuple(Card(i, u, "T4", gib * GIB + 7 * MIB, reserved=300 * MIB) for i, u in enumerate(cards)),
        DEFAULT_UNIT,
    )
    cores = [d for some in ids.of_card[CORE].values() for d in some]
    memory = [d for some in ids.of_card[MEMORY].values() for d in some]
    assert len(cores) == 100 * len(cards)
    assert len(memory) == len(cards) * ((gib * GIB + 7 * MIB - 300 * MIB) // DEFAULT_UNIT)
    assert len({*cores, *memory}) == len(cores) + len(memory)
    assert max(map(len, cores + memory)) <= 63
    for uuid in cards:
        assert ids.cards_of(CORE, ids.of_card[CORE][uuid]) == {uuid}


@given(st.lists(uuids, unique=True, min_size=2, max_size=6), st.randoms())
def test_ids_do_not_depend_on_the_order_of_discovery(cards: list[CardUuid], random: object) -> None:
    shuffled = list(cards)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert prefixes(cards) == prefixes(shuffled)


def test_cards_that_collide_in_8_hex_get_12_and_then_the_whole_uuid() -> None:
    a, b = (
        CardUuid("GPU-aaaaaaaa-1111-0000-0000-000000000000"),
        CardUuid("GPU-aaaaaaaa-2222-0000-0000-000000000000"),
    )
    c, d = (
        CardUuid("GPU-bbbbbbbb-3333-0000-0000-000000000000"),
        CardUuid("GPU-bbbbbbbb-3333-0000-0000-000000000001"),
    )
    assert prefixes([a, b, c, d]) == {a: "aaaaaaaa1111", b: "aaaaaaaa2222", c: c, d: d}


def test_a_card_in_mig_mode_has_no_ids() -> None:
    ids = DeviceIds((card("GPU-5fd4f087", mig=True),), DEFAULT_UNIT)
    assert ids.of_card[CORE] == {"GPU-5fd4f087": ()}
    assert ids.of_card[MEMORY] == {"GPU-5fd4f087": ()}


def test_case_14_sixteen_large_cards_stay_below_a_mebibyte() -> None:
    cards = tuple(card(f"GPU-{i:08x}-0000-0000-0000-000000000000", 192 * GIB) for i in range(16))
    ids = DeviceIds(cards, DEFAULT_UNIT)
    ids.check_size()
    assert sum(len(d) + 19 for some in ids.of_card[MEMORY].values() for d in some) < 1 << 20


def test_case_14_a_list_beyond_4_mib_is_refused_at_start_with_a_unit_that_fits() -> None:
    cards = tuple(card(f"GPU-{i:08x}-0000-0000-0000-000000000000", 140 * GIB) for i in range(8))
    with pytest.raises(
        NodeUnready, match=r"kubelet accepts: use a memory unit of (\d+) bytes or more"
    ) as refused:
        DeviceIds(cards, MIB).check_size()
    unit = int(str(refused.value).split("unit of ")[1].split()[0])
    DeviceIds(cards, unit).check_size()


device_ids = st.builds(
    lambda s, k, n: f"{s}-{k}{n:04d}",
    st.text("abcdef", min_size=1, max_size=8),
    st.sampled_from("cm"),
    st.integers(0, 9999),
)


@given(st.frozensets(device_ids | st.text(max_size=12)))
def test_expand_undoes_compact(ids: frozenset[str]) -> None:
    plain = frozenset(i for i in ids if ".." not in i)
    assert expand(compact(plain)) == plain


def test_a_run_is_written_as_its_ends() -> None:
    assert compact(f"5fd4f087-m{n:04d}" for n in (3, 1, 2, 9)) == ["5fd4f087-m0001..0003", "5fd4f087-m0009"]


def test_a_hostile_run_does_not_expand_without_bound() -> None:
    assert expand(["x-c00..999999999"]) == {"x-c00..999999999"}
