"""Memory that was exported so that the library cannot tell who holds it: charged until the host has seen it gone."""

from __future__ import annotations

import time

from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    host_looks,
    soon,
)
from tests.native.structures import FABRIC, block_props

LIMIT = 1024 * MIB
BY_FABRIC = block_props(handles=FABRIC)
BLOCK = 100 * MIB


def let_go(guest: Program, size: int = BLOCK) -> bytes:
    """Make a block, export it by a fabric handle and release it; the handle."""
    made = guest("cuMemCreate", OUT, size, BY_FABRIC, 0).value
    exported = guest("cuMemExportToShareableHandle", bytes(64), made, FABRIC, 0)
    assert exported.result == SUCCESS
    assert guest("cuMemRelease", made).result == SUCCESS
    return exported.bytes


def test_what_nothing_tells_of_is_given_back_when_the_host_has_seen_it_gone(
    container: Container, guest: Program
) -> None:
    let_go(guest)
    assert container.charged() == CONTEXT + BLOCK
    assert [slot.untold for slot in container.usage.slots] == [BLOCK]
    host_looks(container, guest)
    assert soon(lambda: container.charged() == CONTEXT)
    assert soon(lambda: container.usage.slots[0].untold == 0)


def test_what_another_process_holds_stays_charged_whenever_the_host_looks(
    container: Container, guest: Program
) -> None:
    other = container.program().start()
    made = guest("cuMemCreate", OUT, BLOCK, BY_FABRIC, 0).value
    handle = guest("cuMemExportToShareableHandle", bytes(64), made, FABRIC, 0).bytes
    held = other("cuMemImportFromShareableHandle", OUT, handle, FABRIC).value
    assert guest("cuMemRelease", made).result == SUCCESS
    host_looks(container, guest)
    assert soon(lambda: container.charged() == 2 * CONTEXT + BLOCK)
    assert guest("cuMemCreate", OUT, LIMIT - 2 * CONTEXT, BY_FABRIC, 0).result == OUT_OF_MEMORY
    assert other("cuMemRelease", held).result == SUCCESS
    host_looks(container, guest)
    assert soon(lambda: container.charged() == 2 * CONTEXT)


def test_a_figure_from_before_it_was_let_go_says_nothing_of_it(container: Container, guest: Program) -> None:
    container.change(host_excess=BLOCK, host_looked_ns=time.monotonic_ns(), host_counted=CONTEXT)
    let_go(guest)
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == CONTEXT + BLOCK


def test_processes_draw_on_one_figure_together_no_more_than_it_says(container: Container) -> None:
    guests = [container.program().start() for _ in range(3)]
    for guest in guests:
        let_go(guest)
    container.change(
        host_excess=BLOCK, host_looked_ns=time.monotonic_ns(), host_counted=3 * CONTEXT + 2 * BLOCK
    )
    for guest in guests * 2:
        assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == 3 * CONTEXT + 2 * BLOCK


def test_managed_memory_that_is_not_on_the_card_hides_no_block_that_is_held(
    container: Container, guest: Program
) -> None:
    """It is charged in full, and counted by the driver as it comes to the card."""
    other = container.program().start()
    at = guest("cuMemAllocManaged", OUT, 2 * BLOCK, 1).value
    assert container.usage.slots[0].movable == 2 * BLOCK
    made = guest("cuMemCreate", OUT, BLOCK, BY_FABRIC, 0).value
    handle = guest("cuMemExportToShareableHandle", bytes(64), made, FABRIC, 0).bytes
    assert other("cuMemImportFromShareableHandle", OUT, handle, FABRIC).result == SUCCESS
    assert guest("cuMemRelease", made).result == SUCCESS
    host_looks(container, guest)
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == 2 * CONTEXT + 3 * BLOCK
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert container.usage.slots[0].movable == 0
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == 2 * CONTEXT + BLOCK


def test_a_block_that_its_maker_imports_again_is_held_as_by_any_handle(
    container: Container, guest: Program
) -> None:
    made = guest("cuMemCreate", OUT, BLOCK, BY_FABRIC, 0).value
    handle = guest("cuMemExportToShareableHandle", bytes(64), made, FABRIC, 0).bytes
    assert guest("cuMemImportFromShareableHandle", OUT, handle, FABRIC).value == made
    assert guest("cuMemRelease", made).result == SUCCESS
    assert [slot.untold for slot in container.usage.slots] == [0]
    assert container.charged() == guest.card_used() == CONTEXT + BLOCK
    assert guest("cuMemRelease", made).result == SUCCESS
    assert [slot.untold for slot in container.usage.slots] == [BLOCK]
