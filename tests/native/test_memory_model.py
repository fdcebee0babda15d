"""Random sequences of every allocating call, failures of the driver among them, beside a model of what is held."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.native.driven import (
    CONTEXT,
    DOORS,
    GRANULE,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SANITIZE,
    SANITIZERS,
    SUCCESS,
    Container,
    Program,
)
from tests.native.structures import array_3d_shape, array_shape, block_props, pool_props

LIMIT = 200 * MIB
VERSIONS = ("12.2", "12.4", "12.9", "13.0", "13.5")


@dataclass
class Model:
    """What a program does, and what of it the card does not count: managed memory that is nowhere yet."""

    guest: Program
    chance: random.Random
    live: list[tuple[Callable[[], int], int]] = field(default_factory=list)
    """How to give it back, and managed bytes."""
    refused: int = 0

    def size(self) -> int:
        """Small, of a granule, large, and now and then absurd."""
        bound = self.chance.choice([512, 4096, MIB - 1, MIB, 3 * GRANULE, 40 * MIB, 40 * MIB, 1 << 62])
        return self.chance.randint(1, bound)

    def keep(self, name: str, *arguments: str | int | bytes, free: str, more: tuple[int, ...] = ()) -> None:
        """Make the call; remember how to undo it."""
        answer = self.guest(name, *arguments)
        assert answer.result in (SUCCESS, OUT_OF_MEMORY), f"{name} returned {answer.result}"
        if answer.result == OUT_OF_MEMORY:
            self.refused += 1
            assert answer.out[0] == 0, "an output was touched"
            return
        managed = -(-int(arguments[1]) // GRANULE) * GRANULE if name == "cuMemAllocManaged" else 0
        self.live.append((lambda: self.guest(free, answer.out[0], *more).result, managed))

    def linear(self) -> None:
        self.keep(
            "cuMemAlloc_v2",
            OUT,
            self.size(),
            free=self.chance.choice(["cuMemFree_v2", "cuMemFreeAsync"]),
            more=(0,),
        )

    def managed(self) -> None:
        self.keep("cuMemAllocManaged", OUT, self.size(), 1, free="cuMemFree_v2")

    def pitched(self) -> None:
        width, height = self.chance.randint(1, 5000), self.chance.randint(1, 5000)
        self.keep("cuMemAllocPitch_v2", OUT, OUT, width, height, 8, free="cuMemFree_v2")

    def array(self) -> None:
        shape = array_3d_shape(
            self.chance.randint(1, 3000), self.chance.randint(0, 3000), self.chance.choice([0, 0, 3]),
            self.chance.choice([0x01, 0x10, 0x20, 0x91, 0xC2]), self.chance.choice([1, 4]),
        )  # fmt: skip
        if self.chance.random() < 0.5:
            self.keep("cuArray3DCreate_v2", OUT, shape, free="cuArrayDestroy")
        else:
            levels = self.chance.randint(1, 14)
            self.keep("cuMipmappedArrayCreate", OUT, shape, levels, free="cuMipmappedArrayDestroy")

    def ordered(self) -> None:
        suffix = self.chance.choice(["", "_ptsz"])
        self.keep(f"cuMemAllocAsync{suffix}", OUT, self.size(), 0, free=f"cuMemFreeAsync{suffix}", more=(0,))

    def block(self) -> None:
        size = -(-min(self.size(), 1 << 40) // GRANULE) * GRANULE
        self.keep("cuMemCreate", OUT, size, block_props(), 0, free="cuMemRelease")

    def context(self) -> None:
        answer = self.guest("cuCtxCreate_v2", OUT, 0, 0)
        assert answer.result in (SUCCESS, OUT_OF_MEMORY)
        if answer.result == SUCCESS:
            self.guest("cuMemAlloc_v2", OUT, self.size())
            assert self.guest("cuCtxPopCurrent_v2", OUT).result == SUCCESS
            self.live.append((lambda: self.guest("cuCtxDestroy_v2", answer.out[0]).result, 0))

    def give_back(self) -> None:
        if self.live:
            free, _ = self.live.pop(self.chance.randrange(len(self.live)))
            assert free() == SUCCESS

    def check(self, container: Container) -> None:
        """After a synchronisation the account is what the card gave, and managed memory."""
        assert self.guest("cuCtxSynchronize").result == SUCCESS
        managed = sum(size for _, size in self.live)
        assert container.charged() == self.guest.card_used() + managed
        assert container.charged() <= LIMIT
        free, total = self.guest("cuMemGetInfo_v2", OUT, OUT).out
        assert (free, total) == (LIMIT - container.charged(), LIMIT)


def play(container: Container, seed: int, steps: int, *, fail: str = "") -> Model:
    """A random sequence; at its end everything is given back."""
    guest = container.program(fail=fail).start()
    model = Model(guest, random.Random(seed))
    doings = [model.linear, model.managed, model.pitched, model.array, model.ordered, model.block]
    for step in range(steps):
        model.chance.choice([*doings, *doings, model.context, *[model.give_back] * 6])()
        if step % 8 == 0:
            model.check(container)
    while model.live:
        model.give_back()
    model.check(container)
    assert container.charged() == CONTEXT
    return model


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_account_is_what_the_card_gave_whatever_the_order_of_calls(
    tmp_path: Path, version: str, door: str, sanitize: str
) -> None:
    with Container(tmp_path, LIMIT, version=version, sanitize=sanitize, door=door) as container:
        model = play(container, seed=VERSIONS.index(version), steps=400)
        assert model.refused > 10
        model.guest.end()


FAILING = (
    "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate",
    "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemCreate", "cuCtxCreate_v2",
)  # fmt: skip


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("door", DOORS)
def test_a_driver_that_runs_out_of_memory_at_any_call_leaves_the_account_true(
    tmp_path: Path, door: str, sanitize: str
) -> None:
    for turn, name in enumerate(FAILING):
        for nth in ("", "@2"):
            base = tmp_path / f"{turn}{nth}"
            with Container(base, LIMIT, sanitize=sanitize, door=door) as container:
                play(container, turn, 120, fail=f"{name}=2{nth}").guest.end()


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxRetain", "cuCtxCreate_v2", "cuMemPoolCreate"])
@pytest.mark.parametrize("code", [2, 46, 304, 999])
@pytest.mark.parametrize("door", DOORS)
def test_whatever_the_driver_fails_with_is_passed_on_and_nothing_stays_charged(
    tmp_path: Path, name: str, code: int, door: str
) -> None:
    with Container(tmp_path, LIMIT, sanitize=SANITIZE, door=door) as container:
        guest = container.program(fail=f"{name}={code}")
        assert guest("cuInit", 0).result == SUCCESS
        arguments = {"cuDevicePrimaryCtxRetain": (OUT, 0), "cuCtxCreate_v2": (OUT, 0, 0)}.get(
            name, (OUT, pool_props())
        )
        assert guest(name, *arguments).result == code
        assert container.charged() == 0
        guest.end()


@pytest.mark.parametrize(
    "name", ["cuMemFree_v2", "cuMemFreeAsync", "cuMemRelease", "cuMemUnmap", "cuArrayDestroy"]
)
@pytest.mark.parametrize("door", DOORS)
def test_what_could_not_be_freed_stays_charged(tmp_path: Path, name: str, door: str) -> None:
    with Container(tmp_path, LIMIT, sanitize=SANITIZE, door=door) as container:
        guest = container.program(fail=f"{name}=719@1").start()
        at = guest("cuMemAddressReserve", OUT, 8 * MIB, 0, 0, 0).value
        made: dict[str, tuple[int, ...]] = {}
        if name == "cuArrayDestroy":
            made[name] = (guest("cuArrayCreate_v2", OUT, array_shape(2048, 1024, 0x20, 1)).value,)
        elif name in ("cuMemRelease", "cuMemUnmap"):
            block = guest("cuMemCreate", OUT, 8 * MIB, block_props(), 0).value
            made[name] = (block,)
            if name == "cuMemUnmap":
                assert guest("cuMemMap", at, 8 * MIB, 0, block, 0).result == SUCCESS
                assert guest("cuMemRelease", block).result == SUCCESS
                made[name] = (at, 8 * MIB)
        else:
            made[name] = (guest("cuMemAlloc_v2", OUT, 8 * MIB).value, 0)
        assert guest(name, *made[name]).result == 719
        assert container.charged() == CONTEXT + 8 * MIB
        assert guest(name, *made[name]).result == SUCCESS
        assert container.charged() == CONTEXT
        guest.end()


@pytest.mark.parametrize("version", ["12.2", "13.0"])
@pytest.mark.parametrize("door", DOORS)
def test_names_of_the_resolver_and_of_the_linker_reach_the_same_account(
    tmp_path: Path, version: str, door: str
) -> None:
    """Each name a program may ask for, with the version that gives it this meaning, and per-thread streams."""
    with Container(tmp_path, LIMIT, version=version, door=door) as container:
        guest = container.program().start()
        calls: tuple[tuple[str | int | bytes, ...], ...] = (
            ("@3020:cuMemAlloc", OUT, 10 * MIB),
            ("@3020/2:cuMemAlloc", OUT, 10 * MIB),
            ("@6000:cuMemAllocManaged", OUT, 10 * MIB, 1),
            ("@11020:cuMemAllocAsync", OUT, 32 * MIB, 0),
            ("@11020/2:cuMemAllocAsync", OUT, 32 * MIB, 0),
            ("@10020:cuMemCreate", OUT, 10 * MIB, block_props(), 0),
        )
        for name, *arguments in calls:
            before = container.charged()
            assert guest(str(name), *arguments).result == SUCCESS
            assert container.charged() == before + int(arguments[1]), name
