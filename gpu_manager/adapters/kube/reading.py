"""One look at the cluster, for people's commands: lists in pages, and pages that are passed on by proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from gpu_manager.adapters.kube.connection import Connection

_PAGE: Final = "500"


def list_all(
    connection: Connection, what: str, path: str, query: Mapping[str, str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """Every object of a list, page by page. ``what`` completes "refused to …". Raises NodeUnready."""
    asked = {**(query or {}), "limit": _PAGE}
    while True:
        page = connection.request(what, "GET", path, query=asked)
        yield from (item for item in page.get("items") or () if isinstance(item, Mapping))
        metadata = page.get("metadata")
        more = metadata.get("continue") if isinstance(metadata, Mapping) else None
        if not isinstance(more, str) or not more:
            return
        asked["continue"] = more


def pod_path(namespace: str, name: str, port: int, page: str) -> str:
    """A page of a pod, through the API server (needs get on pods/proxy)."""
    return f"/api/v1/namespaces/{_safe(namespace)}/pods/{_safe(name)}:{port}/proxy{page}"


def service_path(namespace: str, name: str, port: int | str, page: str, scheme: str = "https") -> str:
    """A page of a service, through the API server (needs get on services/proxy)."""
    return f"/api/v1/namespaces/{_safe(namespace)}/services/{scheme}:{_safe(name)}:{port}/proxy{page}"


def _safe(part: str) -> str:
    return quote(part, safe="")
