"""Lenient readers of untrusted JSON: a value of the wrong type counts as absent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; an empty list for any other value."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def text(value: object) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def timestamp(value: object) -> float | None:
    """Return an RFC 3339 time in seconds since 1970; None for anything else."""
    try:
        return dt.datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
