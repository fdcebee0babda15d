"""A directory is waited for without looking again and again. A wait that nothing ends fails by its length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.kubelet.directory import DirectoryWatch

LONG = 30.0


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[DirectoryWatch]:
    made = DirectoryWatch(tmp_path / "plugins")
    yield made
    made.close()


def ends_at_once(watch: DirectoryWatch) -> bool:
    started = time.monotonic()
    watch.wait(LONG)
    return time.monotonic() - started < LONG


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / "new").touch(),
        lambda place: (place / "old").unlink(),
        lambda place: (place / "old").rename(place / "other"),
    ],
    ids=["made", "removed", "renamed"],
)
def test_a_file_that_comes_or_goes_ends_the_wait(
    watch: DirectoryWatch, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    place = tmp_path / "plugins"
    place.mkdir()
    (place / "old").touch()
    assert watch.arm()
    change(place)
    assert watch.arm(), "again, before every wait"
    assert ends_at_once(watch)


def test_a_directory_in_the_place_of_another_is_watched(watch: DirectoryWatch, tmp_path: Path) -> None:
    place = tmp_path / "plugins"
    assert not watch.arm(), "there is none yet"
    place.mkdir()
    assert watch.arm()
    place.rename(tmp_path / "away")
    place.mkdir()
    assert watch.arm()
    (place / "new").touch()
    assert ends_at_once(watch)


def test_a_wait_can_be_ended(watch: DirectoryWatch) -> None:
    watch.wake()
    assert ends_at_once(watch)
