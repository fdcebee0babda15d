"""Each way to take memory of a card is charged with what the card gives, and given back with it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tests.native.driven import (
    CONTEXT,
    DOORS,
    GRANULE,
    INVALID_VALUE,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    held,
    program,
)
from tests.native.structures import array_3d_shape, array_shape, block_props, pool_props

LIMIT = 256 * MIB


def device_block(size: int, device: int = 0, place: int = 1) -> tuple[str, str, int, bytes, int]:
    """The arguments of cuMemCreate."""
    return ("cuMemCreate", OUT, size, block_props(device, place=place), 0)


def test_a_context_is_charged_with_the_reserve_and_its_end_gives_it_back(container: Container) -> None:
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    assert container.charged() == 0
    guest.context()
    assert container.charged() == CONTEXT
    other = guest("cuCtxCreate_v2", OUT, 0, 0).value
    assert container.charged() == 2 * CONTEXT
    assert guest("cuCtxDestroy_v2", other).result == SUCCESS
    assert container.charged() == CONTEXT
    assert guest("cuDevicePrimaryCtxRetain", OUT, 0).result == SUCCESS
    assert guest("cuDevicePrimaryCtxRelease_v2", 0).result == SUCCESS
    assert container.charged() == CONTEXT
    assert guest("cuDevicePrimaryCtxRelease_v2", 0).result == SUCCESS
    assert container.charged() == 0


def test_a_context_that_does_not_fit_is_refused(container: Container) -> None:
    container.change(memory_limit=CONTEXT)
    guest = container.program().start()
    assert guest("cuCtxCreate_v2", OUT, 0, 0).result == OUT_OF_MEMORY
    assert guest("cuCtxCreate_v3", OUT, 0, 0, 0, 0).result == OUT_OF_MEMORY
    assert guest("cuCtxCreate_v4", OUT, 0, 0, 0).result == OUT_OF_MEMORY
    assert held(container, guest) == 0


def test_threads_that_retain_the_first_context_together_need_room_for_one(container: Container) -> None:
    container.change(memory_limit=CONTEXT)
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    assert guest.tell(".threads 16 20 cuDevicePrimaryCtxRetain & 0") == str(16 * 20)
    assert container.charged() == CONTEXT


def test_linear_memory_fills_the_limit_to_the_byte(container: Container, guest: Program) -> None:
    room = LIMIT - CONTEXT
    assert guest("cuMemAlloc_v2", OUT, room + 1).result == OUT_OF_MEMORY
    at = guest("cuMemAlloc_v2", OUT, room).value
    assert held(container, guest) == room
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert held(container, guest) == 0
    assert container.usage.cards[0].refusals == 2
    assert container.usage.cards[0].peak == LIMIT


def test_small_allocations_share_granules_as_they_do_on_the_card(
    container: Container, guest: Program
) -> None:
    pointers = [guest("cuMemAlloc_v2", OUT, 700_000).value for _ in range(9)]
    assert held(container, guest) >= 9 * 700_000
    for pointer in pointers[1:]:
        assert guest("cuMemFree_v2", pointer).result == SUCCESS
        held(container, guest)
    assert held(container, guest) == GRANULE
    assert guest("cuMemFree_v2", pointers[0]).result == SUCCESS
    assert held(container, guest) == 0


def test_what_is_left_unused_between_small_allocations_is_no_gain(
    container: Container, guest: Program
) -> None:
    pointers = []
    while (answer := guest("cuMemAlloc_v2", OUT, 512 * 1024)).result == SUCCESS:
        pointers.append(answer.value)
    for at, pointer in enumerate(pointers):
        if at % 4:
            guest("cuMemFree_v2", pointer)
    assert held(container, guest) == LIMIT - CONTEXT
    assert guest("cuMemAlloc_v2", OUT, 3 * MIB).result == OUT_OF_MEMORY


@pytest.mark.parametrize(("width", "height"), [(1, 1), (513, 4000), (1 << 20, 64), (100_000, 1500)])
def test_pitched_memory_is_charged_with_its_rows_as_they_are(
    container: Container, guest: Program, width: int, height: int
) -> None:
    answer = guest("cuMemAllocPitch_v2", OUT, OUT, width, height, 4)
    assert held(container, guest) == -(-answer.out[1] * height // GRANULE) * GRANULE
    assert guest("cuMemFree_v2", answer.out[0]).result == SUCCESS
    assert held(container, guest) == 0


@pytest.mark.parametrize(
    "call",
    [
        ("cuMemAllocPitch_v2", OUT, OUT, (1 << 64) - 1, 1, 4),
        ("cuMemAllocPitch_v2", OUT, OUT, 1 << 40, 1 << 40, 4),
        ("cuMemAlloc_v2", OUT, (1 << 64) - 1),
        ("cuMemAllocManaged", OUT, (1 << 64) - 1, 1),
        ("cuMemAllocAsync", OUT, (1 << 64) - 1, 0),
        ("cuArray3DCreate_v2", OUT, array_3d_shape((1 << 64) - 1, (1 << 64) - 1, 2, 0x20, 4)),
    ],
    ids=lambda call: str(call[0]),
)
def test_sizes_that_no_number_holds_are_refused(
    container: Container, guest: Program, call: tuple[str, str | int]
) -> None:
    assert guest(*call).result in (OUT_OF_MEMORY, INVALID_VALUE)
    assert held(container, guest) == 0


@pytest.mark.parametrize(
    "call",
    [
        ("cuMemAlloc_v2", OUT, 0),
        ("cuMemAlloc_v2", 0, 4096),
        ("cuMemAllocPitch_v2", OUT, 0, 64, 64, 4),
        ("cuMemAllocPitch_v2", 0, OUT, 64, 64, 4),
        ("cuMemAllocPitch_v2", OUT, OUT, 64, 0, 4),
        ("cuMemAllocPitch_v2", OUT, OUT, 64, 64, 3),
        ("cuMemAllocManaged", OUT, 0, 1),
        ("cuMemAllocManaged", 0, 4096, 1),
        ("cuMemAllocManaged", OUT, 4096, 9),
        ("cuArrayCreate_v2", OUT, 0),
        ("cuArray3DCreate_v2", 0, array_3d_shape(64, 64, 0, 0x20, 1)),
        ("cuMipmappedArrayCreate", OUT, array_3d_shape(64, 64, 0, 0x20, 1), 0),
        ("cuMipmappedArrayCreate", OUT, 0, 3),
        ("cuMemAllocAsync", OUT, 0, 0),
        ("cuMemAllocAsync", 0, 4096, 0),
        ("cuMemAllocFromPoolAsync", OUT, 4096, 0, 0),
        ("cuMemPoolCreate", 0, bytes(88)),
        ("cuMemPoolCreate", OUT, 0),
        ("cuMemCreate", OUT, GRANULE, 0, 0),
        ("cuMemCreate", 0, *device_block(GRANULE)[2:]),
        device_block(0),
        device_block(GRANULE + 1),
        device_block(GRANULE, device=77),
        ("cuMemRelease", 12345),
        ("cuMemMap", 0, GRANULE, 0, 12345, 0),
        ("cuMemUnmap", 0, 0),
        ("cuMemFree_v2", 12345),
        ("cuMemFreeAsync", 12345, 0),
        ("cuDevicePrimaryCtxRetain", 0, 0),
        ("cuDevicePrimaryCtxRetain", OUT, 77),
        ("cuDevicePrimaryCtxRetain", OUT, -1),
        ("cuCtxCreate_v2", OUT, 0, 77),
        ("cuImportExternalMemory", OUT, bytes(104)),
        ("cuGreenCtxCreate", OUT, 0, 0, 0),
        ("cuGraphInstantiateWithFlags", OUT, 0, 0),
    ],
    ids=str,
)
def test_a_call_that_the_driver_refuses_has_its_answer_and_leaves_no_trace(
    container: Container, guest: Program, call: tuple[str, str | int | bytes]
) -> None:
    name, *arguments = call
    real, ours = guest(f"real:{name}", *arguments), guest(name, *arguments)
    assert ours.result == real.result != SUCCESS
    assert held(container, guest) == 0


def test_managed_memory_is_charged_in_full_as_it_can_all_be_resident(
    container: Container, guest: Program
) -> None:
    at = guest("cuMemAllocManaged", OUT, 100 * MIB, 1).value
    assert container.charged() == CONTEXT + 100 * MIB
    assert guest("cuMemAllocManaged", OUT, 93 * MIB, 1).result == OUT_OF_MEMORY
    assert guest("cuMemPrefetchAsync", at, 100 * MIB, 0, 0).result == SUCCESS
    assert held(container, guest) == 100 * MIB
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert held(container, guest) == 0


def test_memory_of_another_interface_is_charged_from_its_import_to_its_end(
    container: Container, guest: Program
) -> None:
    """A buffer of it is freed by itself, and leaves the memory charged."""
    handle = struct.pack("<i4xQQQI64x4x", 1, 3, 0, 50 * MIB, 0)
    memory = guest("cuImportExternalMemory", OUT, handle).value
    assert held(container, guest) == 50 * MIB
    buffer = guest(
        "cuExternalMemoryGetMappedBuffer", OUT, memory, struct.pack("<QQI64x4x", 2 * MIB, MIB, 0)
    ).value
    assert guest("cuMemFree_v2", buffer).result == SUCCESS
    assert held(container, guest) == 50 * MIB
    assert (
        guest("cuImportExternalMemory", OUT, handle[:24] + struct.pack("<Q", LIMIT) + handle[32:]).result
        == OUT_OF_MEMORY
    )
    assert guest("cuDestroyExternalMemory", memory).result == SUCCESS
    assert held(container, guest) == 0


def test_memory_of_the_host_is_not_charged(container: Container, guest: Program) -> None:
    assert guest("cuMemAllocHost_v2", OUT, LIMIT * 2).result == SUCCESS
    assert guest("cuMemHostAlloc", OUT, LIMIT * 2, 0).result == SUCCESS
    for place in (2, 3, 4):
        assert guest(*device_block(LIMIT * 2, place=place)).result == SUCCESS
    pool = guest("cuMemPoolCreate", OUT, pool_props(place=3, handles=0)).value
    assert guest("cuMemAllocFromPoolAsync", OUT, LIMIT * 2, pool, 0).result == SUCCESS
    assert held(container, guest) == 0


FORMATS = {
    0x01: 1, 0x02: 2, 0x03: 4, 0x08: 1, 0x09: 2, 0x0A: 4, 0x10: 2, 0x20: 4,
}  # fmt: skip


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(("form", "size"), FORMATS.items())
def test_arrays_are_charged_in_bytes_not_bits(
    container: Container, guest: Program, form: int, size: int, channels: int
) -> None:
    shape = array_shape(2048, 2048, form, channels)
    array = guest("cuArrayCreate_v2", OUT, shape).value
    assert held(container, guest) == -(-2048 * 2048 * size * channels // GRANULE) * GRANULE
    assert guest("cuArrayDestroy", array).result == SUCCESS
    assert held(container, guest) == 0


@pytest.mark.parametrize("form", [0x50, 0x91, 0x93, 0x97, 0x99, 0x9B, 0x9D, *range(0xC0, 0xCC)])
@pytest.mark.parametrize(
    "shape", [(1, 0, 0), (1023, 1025, 0), (300, 200, 30), (2048, 2048, 6), (1, 32768, 64)]
)
def test_arrays_of_every_format_are_charged_as_the_card_does(
    container: Container, guest: Program, form: int, shape: tuple[int, int, int]
) -> None:
    channels = {0xC1: 2, 0xC2: 4, 0xC4: 2, 0xC5: 4, 0xC7: 2, 0xC8: 4, 0xCA: 2, 0xCB: 4}.get(form, 1)
    array = guest("cuArray3DCreate_v2", OUT, array_3d_shape(*shape, form, channels)).value
    assert held(container, guest) > 0
    assert guest("cuArrayDestroy", array).result == SUCCESS
    assert held(container, guest) == 0


def test_a_narrow_array_is_charged_with_the_tiles_that_the_card_lays_it_out_in(
    container: Container, guest: Program
) -> None:
    """A row of one byte takes a tile's 64: 64 MiB of elements would be 4 GiB of the card."""
    assert guest("cuArray3DCreate_v2", OUT, array_3d_shape(1, 32768, 2048, 1, 1, 1)).result == OUT_OF_MEMORY
    assert (
        guest("cuMipmappedArrayCreate", OUT, array_3d_shape(1, 32768, 2048, 1, 1, 1), 16).result
        == OUT_OF_MEMORY
    )
    array = guest("cuArray3DCreate_v2", OUT, array_3d_shape(1, 32768, 64, 1, 1, 1)).value
    assert held(container, guest) == 128 * MIB
    assert guest("cuArrayDestroy", array).result == SUCCESS
    assert held(container, guest) == 0


@pytest.mark.parametrize("flags", [0, 0x01, 0x04])
@pytest.mark.parametrize("levels", [1, 3, 11, 99])
def test_mipmapped_arrays_are_charged_with_all_their_levels(
    container: Container, guest: Program, levels: int, flags: int
) -> None:
    shape = array_3d_shape(1000, 700, 6, 0x20, 4, flags)
    array = guest("cuMipmappedArrayCreate", OUT, shape, levels).value
    assert held(container, guest) >= 1000 * 700 * 6 * 16
    assert guest("cuMipmappedArrayDestroy", array).result == SUCCESS
    assert held(container, guest) == 0


def test_sparse_and_deferred_arrays_cost_nothing_until_memory_is_mapped_into_them(
    container: Container, guest: Program
) -> None:
    for flags in (0x40, 0x80):
        assert (
            guest("cuArray3DCreate_v2", OUT, array_3d_shape(8192, 8192, 0, 0x20, 4, flags)).result == SUCCESS
        )
        assert (
            guest("cuMipmappedArrayCreate", OUT, array_3d_shape(8192, 8192, 0, 0x20, 4, flags), 5).result
            == SUCCESS
        )
    assert held(container, guest) == 0


def test_a_block_lives_and_is_charged_while_it_has_a_handle_or_a_mapping(
    container: Container, guest: Program
) -> None:
    at = guest("cuMemAddressReserve", OUT, 64 * MIB, 0, 0, 0).value
    assert held(container, guest) == 0
    block = guest(*device_block(32 * MIB)).value
    assert held(container, guest) == 32 * MIB
    assert guest("cuMemMap", at, 16 * MIB, 0, block, 0).result == SUCCESS
    assert guest("cuMemMap", at + 16 * MIB, 16 * MIB, 16 * MIB, block, 0).result == SUCCESS
    assert guest("cuMemRelease", block).result == SUCCESS
    assert held(container, guest) == 32 * MIB
    assert guest("cuMemRetainAllocationHandle", OUT, at + 20 * MIB).value == block
    assert guest("cuMemUnmap", at, 32 * MIB).result == SUCCESS
    assert held(container, guest) == 32 * MIB
    assert guest("cuMemRelease", block).result == SUCCESS
    assert held(container, guest) == 0
    assert guest("cuMemRelease", block).result == INVALID_VALUE
    assert held(container, guest) == 0


def test_a_block_needs_no_context_and_belongs_to_the_card_its_properties_name(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT, cards=2) as container:
        guest = container.program(cards=2)
        assert guest("cuInit", 0).result == SUCCESS
        block = guest(*device_block(32 * MIB, device=1)).value
        assert [container.charged(0), container.charged(1)] == [0, 32 * MIB]
        assert guest("cuMemRelease", block).result == SUCCESS
        assert [container.charged(0), container.charged(1)] == [0, 0]


def test_a_failed_mapping_or_unmapping_changes_nothing(container: Container, guest: Program) -> None:
    at = guest("cuMemAddressReserve", OUT, 64 * MIB, 0, 0, 0).value
    block = guest(*device_block(32 * MIB)).value
    assert guest("cuMemMap", at, 64 * MIB, 0, block, 0).result == INVALID_VALUE
    assert guest("cuMemUnmap", at, 32 * MIB).result == INVALID_VALUE
    assert guest("cuMemMap", at, 32 * MIB, 0, block, 0).result == SUCCESS
    assert guest("cuMemMap", at, 32 * MIB, 0, block, 0).result == INVALID_VALUE
    assert guest("cuMemUnmap", at, 16 * MIB).result == INVALID_VALUE
    assert guest("cuMemRelease", block).result == SUCCESS
    assert held(container, guest) == 32 * MIB
    assert guest("cuMemUnmap", at, 64 * MIB).result == SUCCESS
    assert held(container, guest) == 0


@pytest.mark.parametrize("door", DOORS)
def test_what_a_driver_calls_by_its_exported_name_is_not_charged_twice(tmp_path: Path, door: str) -> None:
    """A driver may call its own functions through the library in its place."""
    with Container(tmp_path, LIMIT, door=door, callback=1) as container:
        guest = container.program().start()
        at, _ = guest("cuMemAllocPitch_v2", OUT, OUT, 1 << 20, 100, 4).out
        assert held(container, guest) == 100 * MIB
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert held(container, guest) == 0
        assert guest("cuMemAllocPitch_v2", OUT, OUT, 1 << 20, 193, 4).result == OUT_OF_MEMORY


def test_a_green_context_is_a_part_of_the_primary_one_and_costs_no_second(
    container: Container, guest: Program
) -> None:
    primary = guest("cuCtxGetCurrent", OUT).value
    for _ in range(3):
        green = guest("cuGreenCtxCreate", OUT, 1, 0, 1).value
        assert guest("cuCtxSetCurrent", guest("cuCtxFromGreenCtx", OUT, green).value).result == SUCCESS
        at = guest("cuMemAlloc_v2", OUT, 40 * MIB).value
        assert held(container, guest) == 40 * MIB
        assert guest("cuCtxSetCurrent", primary).result == SUCCESS
        assert guest("cuGreenCtxDestroy", green).result == SUCCESS
        assert held(container, guest) == 40 * MIB
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert held(container, guest) == 0


def test_what_is_allocated_in_a_green_context_goes_with_the_primary_one(
    container: Container, guest: Program
) -> None:
    green = guest("cuGreenCtxCreate", OUT, 1, 0, 1).value
    assert guest("cuCtxSetCurrent", guest("cuCtxFromGreenCtx", OUT, green).value).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, 40 * MIB).result == SUCCESS
    assert guest("cuDevicePrimaryCtxReset_v2", 0).result == SUCCESS
    assert container.charged() == 0
    guest.context()
    assert container.charged() == guest.card_used() == CONTEXT


def test_a_context_of_the_runtimes_own_way_is_charged_when_it_is_first_used(container: Container) -> None:
    """The CUDA runtime takes its context from the driver's export table, past every function that can be hooked."""
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    assert guest.tell(".runtime").startswith("0 ")
    assert container.charged() == 0
    assert guest.card_used() == CONTEXT
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT, LIMIT)
    assert held(container, guest) == 0
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT + 1).result == OUT_OF_MEMORY
    assert guest("cuMemAlloc_v2", OUT, 10 * MIB).result == SUCCESS
    assert guest("cuDevicePrimaryCtxRetain", OUT, 0).result == SUCCESS
    assert guest("cuDevicePrimaryCtxRelease_v2", 0).result == SUCCESS
    assert held(container, guest) == 10 * MIB


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"])
def test_a_reset_drops_what_a_runtimes_context_held_too(container: Container, name: str) -> None:
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    for _ in range(3):
        assert guest.tell(".runtime").startswith("0 ")
        assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS
        assert held(container, guest) == LIMIT - CONTEXT
        assert guest(name, 0).result == SUCCESS
        assert container.charged() == 0


def test_a_context_that_is_there_counts_although_it_did_not_fit(container: Container) -> None:
    container.change(memory_limit=CONTEXT // 2)
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    assert guest.tell(".runtime").startswith("0 ")
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert container.charged() == CONTEXT
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (0, CONTEXT // 2)


def test_memory_of_a_context_goes_with_it(container: Container, guest: Program) -> None:
    other = guest("cuCtxCreate_v2", OUT, 0, 0).value
    for _ in range(3):
        assert guest("cuMemAlloc_v2", OUT, 10 * MIB).result == SUCCESS
        assert guest("cuMemAlloc_v2", OUT, 1000).result == SUCCESS
    assert guest("cuArrayCreate_v2", OUT, array_shape(2048, 2048, 0x20, 1)).result == SUCCESS
    assert held(container, guest) == CONTEXT + 30 * MIB + GRANULE + 16 * MIB
    assert guest("cuCtxDestroy_v2", other).result == SUCCESS
    guest.context()
    assert held(container, guest) == 0


def test_settings_that_take_memory_are_charged(container: Container, guest: Program) -> None:
    heap = 2
    assert guest("cuCtxSetLimit", heap, 100 * MIB).result == SUCCESS
    assert container.charged() == CONTEXT + 92 * MIB, "before a kernel takes it"
    assert guest("cuCtxSetLimit", heap, LIMIT).result == OUT_OF_MEMORY
    assert guest("cuCtxSetLimit", heap, 50 * MIB).result == SUCCESS
    assert container.charged() == CONTEXT + 42 * MIB
    assert guest("cuCtxSetLimit", heap, MIB).result == SUCCESS
    assert container.charged() == CONTEXT
    stack_bytes = 64 * 1024
    assert guest("cuCtxSetLimit", 0, stack_bytes).result == OUT_OF_MEMORY, (
        "16 SMs x 2048 threads x 64 KiB are 2 GiB"
    )


def test_old_names_of_allocation_reach_the_account_too(container: Container, guest: Program) -> None:
    """Functions of 32-bit addresses; the stand-in has none of them, so what they return is its refusal."""
    for name, *arguments in (
        ("cuMemAlloc", OUT, 4096),
        ("cuMemAllocPitch", OUT, OUT, 64, 64, 4),
        ("cuArrayCreate", OUT, struct.pack("<IIiI", 64, 64, 0x20, 1)),
        ("cuArray3DCreate", OUT, struct.pack("<IIIiII", 64, 64, 1, 0x20, 1, 0)),
    ):
        assert guest(name, *arguments).result == guest(f"real:{name}", *arguments).result
        assert held(container, guest) == 0
    assert guest("cuMemAlloc", OUT, LIMIT).result == OUT_OF_MEMORY


def test_a_small_allocation_is_granted_where_its_granule_has_room(
    container: Container, guest: Program
) -> None:
    pointers = []
    while (answer := guest("cuMemAlloc_v2", OUT, 512 * 1024)).result == SUCCESS:
        pointers.append(answer.value)
    assert len(pointers) == 4 * (LIMIT - CONTEXT) // GRANULE, "four to a granule, the last granule too"
    refused = container.usage.cards[0].refusals
    guest("cuMemFree_v2", pointers[5])
    assert guest("cuMemAlloc_v2", OUT, 512 * 1024 + 1).result == OUT_OF_MEMORY
    assert guest("cuMemAllocPitch_v2", OUT, OUT, 512, 600, 4).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, 400 * 512).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, 512 * 25).result == OUT_OF_MEMORY
    assert held(container, guest) == LIMIT - CONTEXT
    assert container.usage.cards[0].peak == LIMIT
    assert container.usage.cards[0].refusals == refused + 2, "what is granted is not counted as refused"


def test_a_small_allocation_that_the_driver_puts_into_a_new_granule_at_the_limit_goes_back(
    container: Container, guest: Program
) -> None:
    """Granules are one context's own: of another's the driver has no use."""
    assert guest("cuMemAlloc_v2", OUT, 4096).result == SUCCESS
    other = guest("cuCtxCreate_v2", OUT, 0, 0).value
    container.change(memory_limit=container.charged())
    assert guest("cuMemAlloc_v2", OUT, 4096).result == OUT_OF_MEMORY
    assert guest("cuCtxDestroy_v2", other).result == SUCCESS
    assert guest("cuMemAlloc_v2", OUT, 4096).result == SUCCESS
    assert held(container, guest) == GRANULE


@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_allocations_that_race_the_end_of_their_context_leave_no_charge(
    container: Container, how: str
) -> None:
    container.change(memory_limit=1 << 30)
    racer = subprocess.Popen(
        [str(program("prog_ended", container.sanitize)), "250", how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=container.env(),
    )  # fmt: skip
    with racer:
        assert racer.stdout
        assert racer.stdout.readline() == "done\n"
        assert container.charged() == CONTEXT
        assert container.program().start().card_used() == 2 * CONTEXT
