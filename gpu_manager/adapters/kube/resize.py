"""A running pod's request for another size, as the annotation that its owner writes."""

from __future__ import annotations

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection
from gpu_manager.adapters.kube.pod_paths import named_path, pod_path
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.pod import Pod, parse_pod


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
