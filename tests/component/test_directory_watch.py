"""A directory is waited for without looking again and again. A wait that nothing ends fails by its length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.kubelet.client import DirectoryWatch
from gpu_manager.adapters.kubelet.registration import SocketWatch
from tests.fakes.open_files import open_files
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[DirectoryWatch]:
    made = DirectoryWatch(tmp_path / "plugins")
    yield made
    made.close()


def ends_at_once(watch: DirectoryWatch) -> bool:
    started = time.monotonic()
    watch.wait(PATIENCE)
    return time.monotonic() - started < PATIENCE


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


def instances() -> int:
    """Return the inotify instances of this process."""
    return sum(target.endswith("inotify") for target in open_files())


def test_an_instance_is_held_only_while_a_directory_is_watched(tmp_path: Path) -> None:
    before = instances()
    watch = DirectoryWatch(tmp_path)
    assert instances() == before
    assert watch.arm()
    assert instances() == before + 1
    watch.close()
    assert instances() == before
    assert watch.arm(), "it can be had again"
    assert instances() == before + 1
    del watch
    assert instances() == before


def test_a_stopped_watch_of_sockets_gives_its_instance_back(tmp_path: Path) -> None:
    before = instances()
    looked = threading.Event()
    watch = SocketWatch(tmp_path, ["own.sock"], lambda change: looked.set())
    watch.start()
    assert looked.wait(PATIENCE)
    watch.stop()
    assert instances() == before


def test_a_wait_can_be_ended(watch: DirectoryWatch) -> None:
    watch.wake()
    assert ends_at_once(watch)
