"""``python -m tools.docs``: writes every page that is made from the code (``make reference``)."""

from __future__ import annotations

from pathlib import Path

from tools.docs import PAGES

DOCS = Path(__file__).parents[2] / "docs"

for name, page in PAGES.items():
    (DOCS / name).write_text(page(), encoding="utf-8")
