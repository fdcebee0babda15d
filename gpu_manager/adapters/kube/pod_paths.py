"""Paths of pods, their Events, and pages behind the API server's proxies, with each name as one segment."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_manager.domain.errors import RequestInvalid, quoted

if TYPE_CHECKING:
    from gpu_manager.domain.kube.pod import Pod


def pod_path(pod: Pod) -> str:
    """Path of the pod in the API."""
    return named_path(pod.namespace, pod.name)


def named_path(namespace: str, name: str) -> str:
    """Path of the pod of that name; quoted, so that no name can point elsewhere."""
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


def pods_path(namespace: str) -> str:
    """Path of a namespace's pods in the API."""
    return f"/api/v1/namespaces/{segment(namespace)}/pods"


def events_path(namespace: str) -> str:
    """Path of a namespace's Events in the API."""
    return f"/api/v1/namespaces/{segment(namespace)}/events"


def pod_page(namespace: str, name: str, port: int, page: str, scheme: str = "") -> str:
    """Path of a pod's page through the API server (needs get on pods/proxy); by http without a scheme."""
    pod = f"{scheme}:{segment(name)}" if scheme else segment(name)
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{pod}:{port}/proxy{page}"


def service_page(namespace: str, name: str, port: int | str, page: str, scheme: str = "https") -> str:
    """Path of a service's page through the API server (needs get on services/proxy)."""
    return f"/api/v1/namespaces/{segment(namespace)}/services/{scheme}:{segment(name)}:{port}/proxy{page}"


def segment(name: str) -> str:
    """The name, quoted so that it cannot point elsewhere.

    Raises:
        RequestInvalid: it is ``.`` or ``..``, which clients and servers take for other places.
    """
    if name in {".", ".."}:
        raise RequestInvalid(f"{quoted(name)} is no name")
    return quote(name, safe="")
