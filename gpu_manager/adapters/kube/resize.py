"""Resize requests of running fractions, as annotations of pods and of their workloads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpu_manager.adapters.kube.connection import CONFLICT, Connection, Refused, named_path, pods_path, segment
from gpu_manager.adapters.kube.reading import labelled_pods, read_object
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resize.sizes import KINDS
from gpu_manager.domain.untrusted import mapping, mappings, text

_AWAY: Final = (429, 500, 502, 503, 504)  # 500: the API server could not ask the admission service
_PAUSE_SECONDS: Final = 0.5
_TRIES: Final = 7  # before the last: a pod is written by kubelet, scheduler and agent at once while it starts


class Overtaken(NodeUnready):
    """The object has changed since it was read: read it again."""


def running_pod(connection: Connection, namespace: str, name: str) -> Pod:
    """The pod's present object at the API server.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
        RequestInvalid: it cannot be read.
    """
    return parse_pod(
        connection.request(f"read the pod {namespace}/{name}", "GET", named_path(namespace, name))
    )


def workload(connection: Connection, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
    """The present object of a Deployment, StatefulSet or DaemonSet (``kind`` as in :data:`KINDS`), or a Pod.

    Raises:
        RequestInvalid: there is none.
        NodeUnready: the caller may not read it, or the API server is away.
    """
    found = read_object(connection, kind, namespace, name)
    if found is None:
        raise RequestInvalid(f"no {kind} {quoted(name)} in namespace {quoted(namespace)}; -n names another")
    return found


def annotate_workload(
    connection: Connection,
    kind: str,
    there: Mapping[str, Any],
    annotations: Mapping[str, str | None],
    patience: float,
    *,
    dry_run: bool = False,
) -> Mapping[str, Any]:
    """Write annotations of a workload or pod as it was read; returns it then. ``patience`` and ``dry_run``
    are as in :func:`change_size`.

    Raises:
        Overtaken: it has changed since it was read.
        NodeUnready: it was refused, or nobody answers.
    """
    meta = mapping(there.get("metadata"))
    namespace, name = text(meta.get("namespace")), text(meta.get("name"))
    body = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "annotations": dict(annotations)}}
    what = f"change the size that {kind} {namespace}/{name} asks for"
    query = {"dryRun": "All"} if dry_run else {}
    return _patch(connection, what, _path(kind, namespace, name), body, patience, query)


def change_size(
    connection: Connection,
    kind: str,
    namespace: str,
    name: str,
    change: Callable[[Mapping[str, Any]], str | None],
    patience: float,
    *,
    dry_run: bool = False,
) -> Mapping[str, Any]:
    """Write the size that a workload or pod asks for in its own metadata; returns the object then.

    ``change`` makes the annotation, None for none, of the object as it was read. If another writer comes in
    between, it is read and made anew, so that two requests for two containers both stand. While the admission
    service is away, as during its upgrade, it is tried again for ``patience`` seconds. With
    ``dry_run`` the API server judges it and stores nothing.

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or nobody answers.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(Overtaken):
            there = workload(connection, kind, namespace, name)
            return annotate_workload(
                connection, kind, there, {RESIZE: change(there)}, patience, dry_run=dry_run
            )
    there = workload(connection, kind, namespace, name)
    return annotate_workload(connection, kind, there, {RESIZE: change(there)}, patience, dry_run=dry_run)


def pods_of(connection: Connection, workload: Mapping[str, Any]) -> Iterator[Pod]:
    """The pods that the selector of a workload finds, and perhaps others of its namespace.

    Raises:
        NodeUnready: the caller may not list pods, or the API server is away.
    """
    for obj in labelled_pods(connection, workload):
        with contextlib.suppress(RequestInvalid):  # not of our making: it has no fraction that can be read
            yield parse_pod(obj)


def namespace_limits(connection: Connection, namespace: str) -> tuple[NamespaceLimits, tuple[Pod, ...]]:
    """The ResourceQuotas and LimitRanges of a namespace, and its pods; none that the caller may not list.

    Raises:
        NodeUnready: the API server is away.
    """
    pods: list[Pod] = []
    try:
        limits = limits_of(connection, namespace)
        if limits == NamespaceLimits([], []):
            return limits, ()
        listed = connection.request(f"list the pods of namespace {namespace}", "GET", pods_path(namespace))
    except Refused:
        return NamespaceLimits(), ()
    for obj in mappings(listed.get("items")):
        with contextlib.suppress(RequestInvalid):
            pods.append(parse_pod(obj))
    return limits, tuple(pods)


def limits_of(connection: Connection, namespace: str) -> NamespaceLimits:
    """The ResourceQuotas and LimitRanges of a namespace.

    Raises:
        NodeUnready: the caller may not list them, or the API server is away.
    """
    place = f"/api/v1/namespaces/{segment(namespace)}"
    found = (
        connection.request(f"list the {kind} of namespace {namespace}", "GET", f"{place}/{kind}")
        for kind in ("resourcequotas", "limitranges")
    )
    return NamespaceLimits(*(mappings(listed.get("items")) for listed in found))


def delete_waiting(connection: Connection, pod: Pod) -> bool:
    """Delete a pod that has no node, so that its workload makes it anew; False if it has one by now, or is
    gone.

    Raises:
        NodeUnready: the caller may not delete pods, or the API server is away.
    """
    if running_pod(connection, pod.namespace, pod.name).node:
        return False
    what, path = f"delete the pod {pod.key}, which waits", named_path(pod.namespace, pod.name)
    return connection.delete(what, path, {"uid": pod.api_uid})


def _patch(
    connection: Connection,
    what: str,
    path: str,
    body: Mapping[str, Any],
    patience: float,
    query: Mapping[str, str],
) -> Mapping[str, Any]:
    """Write the annotation: the same one again does no harm."""
    ends = time.monotonic() + patience
    while True:
        try:
            return connection.request(what, "PATCH", path, query=query, body=body)
        except Refused as refusal:
            if refusal.code == CONFLICT:
                raise Overtaken(str(refusal)) from refusal
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
    place = f"/apis/apps/v1/namespaces/{segment(namespace)}/{KINDS[kind]}"
    return f"{place}/{segment(name)}"
