"""The pictures in README and docs show the console and the dashboards as they are."""

from __future__ import annotations

from tests.deploy.picture_sources import DRAWN_FROM, sources


def test_no_picture_is_older_than_what_it_shows() -> None:
    how = "draw them again: PYTHONPATH=. python -m tests.deploy.pictures, and look at them"
    assert DRAWN_FROM.read_text(encoding="utf-8") == sources(), how
