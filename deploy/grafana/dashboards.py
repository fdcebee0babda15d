"""Writes the Grafana dashboards of the chart: cluster, node, card, pod, each a click from the one before.

``python -m deploy.grafana.dashboards`` writes ``deploy/helm/gpu-manager/files/dashboards``; a test keeps the
two equal, and asks a real Prometheus every query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.grafana.boards import card, cluster, node, pod
from deploy.grafana.panels import Panel

FILES = Path(__file__).parents[1] / "helm" / "gpu-manager" / "files" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "$datasource"}
BOARDS = {"cluster": cluster.BOARD, "node": node.BOARD, "card": card.BOARD, "pod": pod.BOARD}
WIDTH = 24
FULL = 0.9  # of a card: there is hardly room from here on
# Board → labels of a series that choose what it shows, in the order in which they are looked for.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "pod": ("namespace", "pod"),
    "card": ("node", "card"),
    "node": ("node",),
}


def dashboard(
    name: str, title: str, variables: Sequence[tuple[str, str]], panels: Sequence[Panel]
) -> dict[str, Any]:
    """A dashboard as Grafana reads it; panels flow from left to right and top to bottom."""
    placed, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, row = 0, y + row, 0
        placed.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, row = x + panel.width, max(row, panel.height)
    return {
        "uid": uid(name),
        "title": title,
        "tags": ["vcuda"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(name, metric) for name, metric in variables)]},
        "links": [
            {"type": "dashboards", "tags": ["vcuda"], "title": "Cards", "asDropdown": True, "keepTime": True}
        ],
        "panels": placed,
    }


def uid(name: str) -> str:
    """The same in every cluster, so that an address can be kept and sent."""
    return f"vcuda-{name}"


def link(name: str, values: Mapping[str, str]) -> dict[str, Any]:
    """To another board, over the same time, showing what ``values`` (variable → value) choose."""
    chosen = "".join(f"&var-{variable}={value}" for variable, value in values.items())
    url = f"/d/{uid(name)}?${{__url_time_range}}&var-datasource=${{datasource}}{chosen}"
    return {"title": f"Show the {name}", "url": url}


def _links(panel: Panel) -> list[dict[str, Any]]:
    """From a series to all boards that its legends' labels can choose."""
    legends = "".join(panel.queries)
    return [
        link(name, {label: f"${{__field.labels.{label}}}" for label in labels})
        for name, labels in TARGETS.items()
        if all(f"{{{{{label}}}}}" in legends for label in labels)
    ]


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, metric: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    if panel.kind == "row":
        return {
            "id": number,
            "title": panel.title,
            "type": "row",
            "collapsed": False,
            "gridPos": dict(place),
            "panels": [],
        }
    is_table, instant = panel.kind == "table", panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if is_table else {}),
        }
        for i, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        "targets": targets,
        **({"transformations": _table(panel)} if is_table else {}),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    # A card that is full is neither good nor bad: green is for what may be counted on.
    steps: list[dict[str, Any]] = [{"color": "blue" if panel.alarm is None else "green", "value": None}]
    if panel.kind == "bargauge":
        steps.append({"color": "orange", "value": FULL})
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind != "table" and (links := _links(panel)):
        defaults["links"] = links
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stack else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 30 if panel.stack else 0, "stacking": stacking}
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "bargauge":
        return {
            "orientation": "horizontal",
            "displayMode": "basic",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}}
    # Words are sorted by the value behind them, of which 0 is the worse one.
    by = panel.sort or next(iter(panel.queries))
    return {"sortBy": [{"displayName": by, "desc": by in panel.queries and by not in panel.words}]}


def _table(panel: Panel) -> list[dict[str, Any]]:
    """Keep the columns that are shown, join the queries by their labels, give the columns names.

    In this order: rows join only where all columns they share are equal, and metrics' names never are.
    """
    values = {f"Value #{chr(ord('A') + i)}": legend for i, legend in enumerate(panel.queries)}
    if len(values) == 1:
        values = {"Value": next(iter(panel.queries))}
    shown = {**panel.columns, **values}
    return [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(shown)}}},
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"renameByName": shown, "indexByName": {name: i for i, name in enumerate(shown)}},
        },
    ]


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """In a table bytes are shown as such and states as words, and names of things lead to them."""
    bytes_of = [
        {
            "matcher": {"id": "byName", "options": legend},
            "properties": [{"id": "unit", "value": "bytes"}],
        }
        for legend in panel.queries
        if panel.kind == "table" and "memory" in legend
    ]
    words = [
        {"matcher": {"id": "byName", "options": legend}, "properties": _words(meaning)}
        for legend, meaning in panel.words.items()
    ]
    return [*bytes_of, *words] + [
        {
            "matcher": {"id": "byName", "options": panel.columns[labels[-1]]},
            "properties": [{"id": "links", "value": [link(name, _fields(panel, labels))]}],
        }
        for name, labels in TARGETS.items()
        if panel.kind == "table" and set(labels) <= set(panel.columns)
    ]


def _words(meaning: Mapping[int, tuple[str, str]]) -> list[dict[str, Any]]:
    options = {
        str(value): {"text": word, "color": colour, "index": value}
        for value, (word, colour) in meaning.items()
    }
    return [
        {"id": "mappings", "value": [{"type": "value", "options": options}]},
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
    ]


def _fields(panel: Panel, labels: Sequence[str]) -> dict[str, str]:
    return {label: f'${{__data.fields["{panel.columns[label]}"]}}' for label in labels}


def texts() -> dict[str, str]:
    """The files by name."""
    return {
        f"{name}.json": json.dumps(dashboard(name, *board), indent=1) + "\n" for name, board in BOARDS.items()
    }


if __name__ == "__main__":
    for file_name, content in texts().items():
        (FILES / file_name).write_text(content, encoding="utf-8")
