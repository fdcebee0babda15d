"""Lists as ``kubectl get`` prints them: the server makes the columns (meta.k8s.io/v1 Table)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.api.kinds import Resource

Obj = Mapping[str, Any]
WIDE = 1  # priority of columns that only -o wide shows


@dataclass(frozen=True, slots=True)
class Column:
    """A column and what an object has in it, given the time."""

    name: str
    cell: Callable[[Obj, dt.datetime], str]
    priority: int = 0


def wants_table(accept: str) -> bool:
    """True if the client would rather have a table than objects."""
    return "as=Table" in accept.partition(",")[0]


def table(resource: Resource, obj: Obj, now: dt.datetime) -> dict[str, Any]:
    """A table of an object or a list of the resource."""
    columns = _COLUMNS.get(resource.plural, _PLAIN)
    items: Sequence[Obj] = obj["items"] if str(obj.get("kind")).endswith("List") else [obj]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": (obj.get("metadata") or {}).get("resourceVersion", "")},
        "columnDefinitions": [
            {
                "name": c.name,
                "type": "string",
                "format": "name" if c.name == "Name" else "",
                "description": "",
                "priority": c.priority,
            }
            for c in columns
        ],
        "rows": [
            {
                "cells": [c.cell(item, now) for c in columns],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": item["metadata"],
                },
            }
            for item in items
        ],
    }


def age(text: Any, now: dt.datetime) -> str:
    """``5s``, ``12m``, ``3h``, ``2d`` since a timestamp."""
    try:
        then = dt.datetime.fromisoformat(str(text))
    except ValueError:
        return "<unknown>"
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def pod_word(pod: Obj) -> str:
    """The STATUS column of a pod."""
    status = pod.get("status") or {}
    word = str(status.get("reason") or status.get("phase") or "")
    init = status.get("initContainerStatuses") or ()
    for place, row in enumerate(init):
        reason = _reason(row)
        if row.get("ready") or ("running" in (row.get("state") or {}) and row.get("started")):
            continue
        word = f"Init:{reason}" if reason else f"Init:{place}/{len(init)}"
        break
    else:
        reasons = [r for r in map(_reason, status.get("containerStatuses") or ()) if r]
        word = reasons[-1] if reasons and not status.get("reason") else word
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else word


def _reason(row: Obj) -> str:
    state = row.get("state") or {}
    for kind in ("waiting", "terminated"):
        if kind in state:
            return str((state[kind] or {}).get("reason") or "")
    return ""


def _ready(pod: Obj, _now: dt.datetime) -> str:
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return f"{sum(bool(r.get('ready')) for r in rows)}/{len(pod['spec'].get('containers') or ())}"


def _restarts(pod: Obj, _now: dt.datetime) -> str:
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return str(sum(int(r.get("restartCount") or 0) for r in rows))


def _node_word(node: Obj, _now: dt.datetime) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    cordoned = ",SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else ""
    return f"{'Ready' if ready else 'NotReady'}{cordoned}"


def _about(event: Obj, _now: dt.datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _text(*path: str) -> Callable[[Obj, dt.datetime], str]:
    def cell(obj: Obj, _now: dt.datetime) -> str:
        found: Any = obj
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return str(found) if found not in (None, "") else "<none>"

    return cell


_NAME = Column("Name", _text("metadata", "name"))
_AGE = Column("Age", lambda obj, now: age(obj["metadata"].get("creationTimestamp"), now))
_PLAIN = (_NAME, _AGE)
_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "pods": (
        _NAME,
        Column("Ready", _ready),
        Column("Status", lambda pod, _now: pod_word(pod)),
        Column("Restarts", _restarts),
        _AGE,
        Column("IP", _text("status", "podIP"), WIDE),
        Column("Node", _text("spec", "nodeName"), WIDE),
    ),
    "nodes": (
        _NAME,
        Column("Status", _node_word),
        _AGE,
        Column("Version", _text("status", "nodeInfo", "kubeletVersion")),
    ),
    "events": (
        Column("Last Seen", lambda event, now: age(event.get("lastTimestamp"), now)),
        Column("Type", _text("type")),
        Column("Reason", _text("reason")),
        Column("Object", _about),
        Column("Message", _text("message")),
    ),
}
