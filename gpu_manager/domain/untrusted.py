"""Parts of an untrusted object, for those who refuse nothing: what is not what it should be is absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """A map of fields; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The maps of a list; none for anything else."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def text(value: object) -> str:
    """A text; an empty one for anything else."""
    return value if isinstance(value, str) else ""
