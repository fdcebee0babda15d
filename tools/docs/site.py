"""Hooks of mkdocs (`hooks` in mkdocs.yml): the chart's page in the site, and the weights of pages in search.

Pages that users read come before lists that are made from the code, and those before how the project is made:
a word that stands in a heading there would else hide the page that answers the question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

CHART: Final = "reference/chart.md"
_CHART_README: Final = Path(__file__).parents[2] / "deploy/helm/gpu-manager/README.md"
_WEIGHTS: Final = {
    "adr/": 0.02,
    "internals/": 0.05,
    "architecture.md": 0.05,
    "benchmarks.md": 0.02,
    "real-card.md": 0.05,
    "contributing.md": 0.05,
    "how-to-add.md": 0.05,
    "releasing.md": 0.05,
    "errors.md": 0.3,
    "doctor.md": 0.3,
    "reference/": 0.3,
    "migration/gpushare": 0.2,  # its name begins with a word of every second question
    "migration/": 0.7,
    "zh/": 0.3,  # Latin words in them are those of the English pages
}
"""Beginning of a page's path → its weight; 1 where none is given."""


def on_files(files: Any, config: Any) -> Any:
    """Add the chart's README, which is made from its values, as a page."""
    files.append(File.generated(config, CHART, content=_CHART_README.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Give the page its weight, as front matter would."""
    for beginning, weight in _WEIGHTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta.setdefault("search", {"boost": weight})
    return markdown
