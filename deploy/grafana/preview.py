"""Pictures of the dashboards for the documentation: ``python -m deploy.grafana.preview URL DIRECTORY``.

Every panel's own query is asked of a Prometheus, as Grafana would ask it over the dashboard's range, and the
answer is drawn in the panel's place. Not Grafana's drawing: no colours, fonts or pixels of it are claimed.
:mod:`tests.deploy.pictures` makes a Prometheus that has something to show.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from matplotlib.transforms import Bbox
from PIL import Image

from deploy.grafana.dashboards import FILES, WIDTH

Series = tuple[str, Sequence[float], Sequence[float]]  # legend, times, values

INK, FAINT, PAPER, GRID = "#1f2328", "#59636e", "#ffffff", "#d8dee4"
GOOD, BAD = "#1a7f37", "#cf222e"
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7d4e00", "#0a6f85", "#cf222e")
_CELL: Final = (0.72, 0.36)  # inches of a grid cell
_MOST_ROWS: Final = 12
_LETTERS: Final = 13  # that fit into an inch of the table's font
_ROW: Final = 0.25  # inches of a table's row
_NAMED: Final = 6  # series that a legend names; there is no room below a panel for more


class Asked:
    """A Prometheus, the range that is looked at, and what the dashboard's variables stand for."""

    def __init__(self, url: str, seconds: float, chosen: Mapping[str, str]) -> None:
        self._url, self._seconds, self.chosen = url, seconds, chosen
        self._end = time.time()
        whole = f"{max(1, round(seconds))}"
        self._variables = {"$__range_s": whole, "$__range": f"{whole}s"}
        self._variables |= {
            f"${name}": chosen.get(name, ".*") for name in ("node", "card", "namespace", "pod")
        }

    def _get(self, path: str, **query: str) -> Any:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def _text(self, query: str) -> str:
        for variable, value in self._variables.items():
            query = query.replace(variable, value)
        return query

    def now(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        """The vector at the end of the range."""
        found = self._get("query", query=self._text(query), time=str(self._end))
        return [(one["metric"], float(one["value"][1])) for one in found]

    def over(self, query: str) -> list[tuple[Mapping[str, str], list[float], list[float]]]:
        """(labels, times, values) over the range."""
        step = str(max(1.0, self._seconds / 240))
        found = self._get(
            "query_range",
            query=self._text(query),
            start=str(self._end - self._seconds),
            end=str(self._end),
            step=step,
        )
        return [
            (one["metric"], [float(t) for t, _ in one["values"]], [float(v) for _, v in one["values"]])
            for one in found
        ]


def legend(text: str, labels: Mapping[str, str]) -> str:
    """A legend with its labels filled in."""
    filled = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)
    return " ".join(filled.split()) if text != "__auto" else ""


def shown(value: float, unit: str) -> str:
    """A figure with its unit, as people read it."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "bytes":
        for suffix, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if abs(value) >= size:
                return f"{value / size:.3g} {suffix}"
        return f"{value:.0f} B"
    if unit == "s":
        return f"{1000 * value:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _unit(panel: Mapping[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"]["unit"])


def _now(asked: Asked, panel: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [
        (legend(target["legendFormat"], labels), value)
        for target in panel["targets"]
        for labels, value in asked.now(target["expr"])
    ]


def draw_stat(axes: Axes, asked: Asked, panel: Mapping[str, Any]) -> None:
    """One figure."""
    axes.axis("off")
    found = _now(asked, panel)
    alarms = [s["value"] for s in panel["fieldConfig"]["defaults"]["thresholds"]["steps"] if s["value"]]
    colour = BAD if found and alarms and found[0][1] >= alarms[0] else GOOD
    text = shown(found[0][1], _unit(panel)) if found else "no data"
    axes.text(0.5, 0.45, text, ha="center", va="center", size=22, color=colour if found else FAINT)


def draw_bars(axes: Axes, asked: Asked, panel: Mapping[str, Any]) -> None:
    """A bar a series, all on one scale."""
    found = _now(asked, panel)[:_MOST_ROWS]
    most = panel["fieldConfig"]["defaults"].get("max") or max((v for _, v in found), default=1.0)
    places = range(len(found))
    axes.barh(places, [most] * len(found), color="#eaeef2", height=0.7)
    axes.barh(places, [min(value, most) for _, value in found], color=COLOURS[0], height=0.7)
    for place, (_, value) in zip(places, found, strict=True):
        axes.text(most * 1.02, place, shown(value, _unit(panel)), va="center", size=8, color=INK)
    axes.set_yticks(list(places), [name for name, _ in found], size=8)
    axes.set_xlim(0, most * 1.15)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(length=0)


def draw_table(axes: Axes, asked: Asked, panel: Mapping[str, Any]) -> None:
    """Rows that share all labels, joined, as the panel's transformations say."""
    axes.axis("off")
    names: Mapping[str, str] = next(t for t in panel["transformations"] if t["id"] == "organize")["options"][
        "renameByName"
    ]
    labels = [name for name in names if not name.startswith("Value")]
    properties = {o["matcher"]["options"]: o["properties"][0] for o in panel["fieldConfig"]["overrides"]}
    units = {name: one["value"] for name, one in properties.items() if one["id"] == "unit"}
    words = {name: one["value"][0]["options"] for name, one in properties.items() if one["id"] == "mappings"}
    (by,) = panel["options"]["sortBy"]
    titles = [names[name] for name in names]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    order: dict[tuple[str, ...], float] = {}
    for target in panel["targets"]:
        for metric, value in asked.now(target["expr"]):
            title, who = target["legendFormat"], tuple(metric.get(label, "") for label in labels)
            word = words.get(title, {}).get(f"{value:g}", {}).get("text")
            rows.setdefault(who, {})[title] = word or shown(value, units.get(title, "short"))
            if title == by["displayName"]:
                order[who] = -value if by["desc"] else value
    cells = [
        [*who, *(figures.get(title, "") for title in titles[len(labels) :])]
        for who, figures in sorted(rows.items(), key=lambda one: (order.get(one[0], 0.0), one[0]))
    ]
    _table(axes, titles, cells[:_MOST_ROWS])


def _table(axes: Axes, titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    if not cells:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT)
        return
    longest = [max(len(row[i]) for row in (titles, *cells)) + 2 for i in range(len(titles))]
    room = _width(axes) * _LETTERS
    cut = max(8, max(longest) - max(0, round(sum(longest) - room)))
    cells = [[text if len(text) <= cut else f"{text[: cut - 2]}…" for text in row] for row in cells]
    widths = [min(cut, length) for length in longest]
    high = (len(cells) + 1) * _ROW / _height(axes)
    table = axes.table(
        cellText=[list(row) for row in cells],
        colLabels=list(titles),
        colWidths=[width / sum(widths) for width in widths],
        cellLoc="left",
        colLoc="left",
        bbox=Bbox.from_bounds(0, 1 - high, 1, high),
    )
    table.auto_set_font_size(value=False)
    table.set_fontsize(8)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor(GRID)
        cell.visible_edges = "B"
        cell.get_text().set_color(FAINT if row == 0 else INK)


def _width(axes: Axes) -> float:
    """Inches."""
    return axes.get_window_extent().width / axes.figure.dpi


def _height(axes: Axes) -> float:
    """Inches."""
    return axes.get_window_extent().height / axes.figure.dpi


def draw_lines(axes: Axes, asked: Asked, panel: Mapping[str, Any]) -> None:
    """A line a series over time, or layers."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = _unit(panel)
    found: list[Series] = [
        (legend(target["legendFormat"], labels) or panel["title"], times, values)
        for target in panel["targets"]
        for labels, times, values in asked.over(target["expr"])
    ]
    found = sorted(found, key=lambda one: -max(one[2]))[:_MOST_ROWS]
    if defaults["custom"]["stacking"]["mode"] == "normal" and found:
        _layers(axes, found)
    else:
        for (name, times, values), colour in zip(found, COLOURS * 2, strict=False):
            axes.plot(times, values, label=name, lw=1.4, color=colour)
    axes.set_ylim(0, defaults.get("max"))
    if defaults.get("max") is None and all(max(values) == 0 for _, _, values in found):
        axes.set_ylim(0, 1)
    if unit == "bytes":
        top = axes.get_ylim()[1]
        step = 2.0 ** math.ceil(math.log2(max(top, 5.0) / 5))
        axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.xaxis.set_major_locator(MaxNLocator(max(2, round(_width(axes) / 1.4))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"))
    axes.grid(axis="y", color=GRID, lw=0.6)
    axes.tick_params(labelsize=8, colors=FAINT, length=0)
    if found:
        drawn, names = axes.get_legend_handles_labels()
        axes.legend(
            drawn[:_NAMED],
            [*names[: _NAMED - 1], f"and {len(names) - _NAMED + 1} more"] if len(names) > _NAMED else names,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.1),
            ncols=2,
            fontsize=7,
            frameon=False,
        )
    else:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT, transform=axes.transAxes)


def _layers(axes: Axes, found: Sequence[Series]) -> None:
    """Stacked; what is missing at a time adds nothing there."""
    every = sorted({t for _, times, _ in found for t in times})
    heights = [
        [dict(zip(times, values, strict=True)).get(t, 0.0) for t in every] for _, times, values in found
    ]
    names = [name for name, _, _ in found]
    axes.stackplot(every, heights, labels=names, colors=(COLOURS * 2)[: len(found)], alpha=0.75)


KINDS: Final[Mapping[str, Callable[[Axes, Asked, Mapping[str, Any]], None]]] = {
    "stat": draw_stat,
    "bargauge": draw_bars,
    "table": draw_table,
    "timeseries": draw_lines,
}


def picture(board: Mapping[str, Any], asked: Asked, path: Path) -> None:
    """Draw a dashboard into a PNG file."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    wide, high = WIDTH * _CELL[0], height * _CELL[1] + 0.5
    mpl.rcParams.update({"font.family": "DejaVu Sans", "axes.edgecolor": GRID, "text.color": INK})
    figure = plt.figure(figsize=(wide, high), facecolor=PAPER)
    chosen = ", ".join(f"{name} {value}" for name, value in asked.chosen.items())
    title = f"{board['title']}   {chosen}"
    figure.text(0.1 / wide, 1 - 0.3 / high, title, size=15, weight="bold", va="center")
    for panel in board["panels"]:
        at, kind = panel["gridPos"], panel["type"]
        left, top = at["x"] * _CELL[0], 0.5 + at["y"] * _CELL[1]
        width, tall = at["w"] * _CELL[0], at["h"] * _CELL[1]
        is_row = kind == "row"
        figure.text(
            (left + 0.1) / wide,
            1 - (top + 0.16) / high,
            f"▾ {panel['title']}" if is_row else panel["title"],
            size=11 if is_row else 9,
            weight="bold",
            va="center",
        )
        if is_row:
            continue
        in_left = {"timeseries": 0.65, "bargauge": 1.3}.get(kind, 0.1)
        below = {"timeseries": 0.62}.get(kind, 0.1)
        axes = figure.add_axes(
            (
                (left + in_left) / wide,
                1 - (top + tall - below) / high,
                (width - in_left - 0.15) / wide,
                (tall - below - 0.38) / high,
            )
        )
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        if kind == "bargauge":
            axes.spines["bottom"].set_visible(False)
        KINDS[kind](axes, asked, panel)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=72)
    plt.close(figure)
    # Lines and letters need few colours: a third of the size.
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def pictures(
    url: str, directory: Path, seconds: float, chosen: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """All dashboards over the last seconds, as ``dashboard-<name>.png``.

    ``chosen``: by dashboard what its variables stand for, as regular expressions; all, where nothing is said.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mpl.use("agg")
    for path in sorted(FILES.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        asked = Asked(url, seconds, (chosen or {}).get(path.stem, {}))
        picture(board, asked, directory / f"dashboard-{path.stem}.png")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a Prometheus that scrapes agents and admission")
    parser.add_argument("directory", type=Path, help="where the pictures go")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how far back they look")
    asked = parser.parse_args()
    pictures(asked.url, asked.directory, asked.seconds)


if __name__ == "__main__":
    main()
