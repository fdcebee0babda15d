"""Requests for another size of running fractions, as annotations of pods and of what makes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection, Refused
from gpu_manager.adapters.kube.pod_paths import named_path, pod_path
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.pod import Pod, parse_pod
from gpu_manager.domain.resize.owners import KINDS
from gpu_manager.domain.untrusted import mapping, text

_AWAY: Final = (429, 500, 502, 503, 504)  # 500: the API server could not ask the admission service
_PAUSE_SECONDS: Final = 0.5


def running_pod(connection: Connection, namespace: str, name: str) -> Pod:
    """The pod as the API server has it.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
        RequestInvalid: it cannot be read.
    """
    return parse_pod(
        connection.request(f"read the pod {namespace}/{name}", "GET", named_path(namespace, name))
    )


def request_size(connection: Connection, pod: Pod, wanted: str | None, patience: float) -> Pod:
    """Write what the pod asks for, or take it away (None); returns the pod then. While the admission service
    is away, as during its upgrade, it is tried again for ``patience`` seconds.

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or nobody answers.
    """
    body = {"metadata": {"uid": pod.uid, "annotations": {RESIZE: wanted}}}
    what = f"change the size that {pod.key} asks for"
    return parse_pod(_patch(connection, what, pod_path(pod), body, patience))


def workload(connection: Connection, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
    """A Deployment, StatefulSet or DaemonSet as the API server has it (``kind`` as in :data:`KINDS`), or a
    Pod.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
    """
    return connection.request(f"read {kind} {namespace}/{name}", "GET", _path(kind, namespace, name))


def annotate_workload(
    connection: Connection,
    kind: str,
    there: Mapping[str, Any],
    annotations: Mapping[str, str | None],
    patience: float,
) -> None:
    """Write annotations of a workload as it was read; ``patience`` as in :func:`request_size`.

    Raises:
        NodeUnready: it was refused, it has changed since it was read, or nobody answers.
    """
    meta = mapping(there.get("metadata"))
    namespace, name = text(meta.get("namespace")), text(meta.get("name"))
    body = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "annotations": dict(annotations)}}
    what = f"change the size that {kind} {namespace}/{name} asks for"
    _patch(connection, what, _path(kind, namespace, name), body, patience)


def request_workload_size(
    connection: Connection, kind: str, namespace: str, name: str, wanted: str | None, patience: float
) -> None:
    """Write into the workload's own metadata what its pods are to have, or take it away (None); with
    ``patience`` as in :func:`request_size`.

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or nobody answers.
    """
    what = f"change the size that {kind} {namespace}/{name} asks for"
    body = {"metadata": {"annotations": {RESIZE: wanted}}}
    _patch(connection, what, _path(kind, namespace, name), body, patience)


def _patch(
    connection: Connection, what: str, path: str, body: Mapping[str, Any], patience: float
) -> Mapping[str, Any]:
    """Write the annotation: the same one again does no harm."""
    ends = time.monotonic() + patience
    while True:
        try:
            return connection.request(what, "PATCH", path, body=body, content_type=MERGE_PATCH)
        except Refused as refusal:
            if refusal.code not in _AWAY:
                raise
            if time.monotonic() + _PAUSE_SECONDS > ends:
                raise NodeUnready(
                    f"{refusal}; tried for {patience:g} s. Is the admission service up? "
                    "`kubectl vcuda doctor` says what it lacks"
                ) from refusal
        time.sleep(_PAUSE_SECONDS)


def _path(kind: str, namespace: str, name: str) -> str:
    if kind == "Pod":
        return named_path(namespace, name)
    place = f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/{KINDS[kind]}"
    return f"{place}/{quote(name, safe='')}"
