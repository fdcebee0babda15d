"""Readers of untrusted JSON: lenient ones take what has the wrong type for absent, strict ones refuse it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_manager.domain.errors import RequestInvalid, quoted


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    # JSON's own type first: an abstract class is asked ten times as long.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; an empty list for any other value."""
    if not isinstance(value, list | tuple):
        return []
    return [one for one in value if type(one) is dict or isinstance(one, Mapping)]


def at(value: object, *path: str) -> Mapping[str, Any]:
    """Return the mapping at a path of keys; an empty one if there is none."""
    for key in path:
        value = mapping(value).get(key)
    return mapping(value)


def annotations_of(obj: object) -> Mapping[str, Any]:
    """Return the annotations of a Kubernetes object."""
    return at(obj, "metadata", "annotations")


def text(value: object) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def json_object(data: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def timestamp(value: object) -> float | None:
    """Return an RFC 3339 time in seconds since 1970; None for anything else."""
    try:
        return dt.datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def strict_mapping(value: object, where: str, wanted: str = "a map of fields") -> Mapping[str, Any]:
    """Return the mapping, an empty one for null. Raises RequestInvalid: it is something else."""
    if value is None or type(value) is dict or isinstance(value, Mapping):
        return value or {}
    raise RequestInvalid(f"{where} is {quoted(value)}, not {wanted}")


def strict_list(value: object, where: str, wanted: str = "a list") -> Sequence[Any]:
    """Return the list, an empty one for null. Raises RequestInvalid: it is something else."""
    if value is None or isinstance(value, list | tuple):
        return value or ()
    raise RequestInvalid(f"{where} is {quoted(value)}, not {wanted}")


def strict_text(value: object, where: str) -> str:
    """Return the text, an empty one for null. Raises RequestInvalid: it is something else."""
    if value is None or isinstance(value, str):
        return value or ""
    raise RequestInvalid(f"{where} is {quoted(value)}, not a text")
