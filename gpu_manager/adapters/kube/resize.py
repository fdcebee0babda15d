"""Requests for another size of running fractions, as annotations of pods and of what makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection
from gpu_manager.adapters.kube.pod_paths import named_path, pod_path
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.pod import Pod, parse_pod
from gpu_manager.domain.resize.owners import KINDS


def running_pod(connection: Connection, namespace: str, name: str) -> Pod:
    """The pod as the API server has it.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
        RequestInvalid: it cannot be read.
    """
    return parse_pod(
        connection.request(f"read the pod {namespace}/{name}", "GET", named_path(namespace, name))
    )


def request_size(connection: Connection, pod: Pod, wanted: str | None) -> Pod:
    """Write what the pod asks for, or take it away (None); returns the pod then.

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or the API server is away.
    """
    body = {"metadata": {"uid": pod.uid, "annotations": {RESIZE: wanted}}}
    what = f"change the size that {pod.key} asks for"
    return parse_pod(connection.request(what, "PATCH", pod_path(pod), body=body, content_type=MERGE_PATCH))


def workload(connection: Connection, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
    """A Deployment, StatefulSet or DaemonSet as the API server has it; ``kind`` as in :data:`KINDS`.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
    """
    return connection.request(f"read {kind} {namespace}/{name}", "GET", _path(kind, namespace, name))


def request_workload_size(
    connection: Connection, kind: str, namespace: str, name: str, wanted: str | None
) -> None:
    """Write into the workload's own metadata what its pods are to have, or take it away (None).

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or the API server is away.
    """
    what = f"change the size that {kind} {namespace}/{name} asks for"
    body = {"metadata": {"annotations": {RESIZE: wanted}}}
    connection.request(what, "PATCH", _path(kind, namespace, name), body=body, content_type=MERGE_PATCH)


def _path(kind: str, namespace: str, name: str) -> str:
    place = f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/{KINDS[kind]}"
    return f"{place}/{quote(name, safe='')}"
