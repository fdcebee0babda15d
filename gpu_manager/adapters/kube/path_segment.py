"""A name as one segment of a path of the Kubernetes API."""

from __future__ import annotations

from urllib.parse import quote

from gpu_manager.domain.errors import RequestInvalid, quoted


def segment(name: str) -> str:
    """The name, quoted so that it cannot point elsewhere.

    Raises:
        RequestInvalid: it is ``.`` or ``..``, which clients and servers take for other places.
    """
    if name in {".", ".."}:
        raise RequestInvalid(f"{quoted(name)} is no name")
    return quote(name, safe="")
