"""The ring of recorded decisions on disk: bounded, private, whole after a kill."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpu_manager.adapters.record_ring import RecordRing, segments
from gpu_manager.domain.errors import NodeUnready

LINE = b"x" * 99  # 100 bytes with its end


def filled(ring: RecordRing, lines: int) -> None:
    for _ in range(lines):
        if ring.full:
            ring.begin((b"first",))
        ring.append((LINE,))


def test_all_segments_together_stay_within_the_limit_and_the_oldest_go(tmp_path: Path) -> None:
    ring = RecordRing(tmp_path / "records", 10_000)
    for _ in range(20):
        filled(ring, 20)
        assert sum(path.stat().st_size for path in segments(tmp_path / "records")) <= 10_000 + len(LINE)
    names = [path.name for path in segments(tmp_path / "records")]
    assert len(names) > 2
    assert "decisions-00000001.jsonl" not in names


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    directory = tmp_path / "records"
    directory.mkdir(mode=0o755)
    filled(RecordRing(directory, 10_000), 1)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in segments(directory)] == [0o600]


def test_every_line_is_with_the_kernel_once_it_was_added_and_a_new_process_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    filled(RecordRing(tmp_path, 10_000), 2)  # which is then killed: nobody closes it
    assert segments(tmp_path)[0].read_bytes().splitlines() == [b"first", LINE, LINE]
    filled(RecordRing(tmp_path, 10_000), 1)
    assert [path.name for path in segments(tmp_path)] == [
        "decisions-00000001.jsonl",
        "decisions-00000002.jsonl",
    ]


def test_a_beginning_of_more_than_the_limit_is_refused_with_the_flag_that_raises_it(tmp_path: Path) -> None:
    ring = RecordRing(tmp_path, 1000)
    with pytest.raises(NodeUnready, match="raise --record-mib"):
        ring.begin([LINE] * 11)


def test_a_segment_is_at_least_as_long_as_what_it_begins_with(tmp_path: Path) -> None:
    """Else a large cluster would write states alone."""
    ring = RecordRing(tmp_path, 10_000)
    ring.begin([LINE] * 40)
    filled(ring, 30)
    assert len(segments(tmp_path)) == 1


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, what: str) -> None:
    place = tmp_path / "records"
    if what == "a file":
        place.write_text("")
        with pytest.raises(NodeUnready, match="cannot be recorded"):
            RecordRing(place, 1000)
        return
    (tmp_path / "decisions-00000001.jsonl").symlink_to("/dev/null")
    ring = RecordRing(tmp_path, 1000)
    (tmp_path / "decisions-00000002.jsonl").symlink_to("/dev/null")
    with pytest.raises(NodeUnready, match="cannot be recorded"):
        ring.begin((LINE,))
