"""The pods of one namespace that ask an autoscaler for cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_manager.adapters.kube.connection import CONFLICT, Connection
from gpu_manager.adapters.kube.pod_paths import named_path, pods_path


class KubePlaceholders:
    """``admission.placeholders.keeper.PlaceholderApi``."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    def create(self, body: Mapping[str, Any]) -> None:
        """See ``PlaceholderApi.create``."""
        what = f"create a placeholder in namespace {self._namespace}"
        self._connection.write(what, "POST", pods_path(self._namespace), body, missed=(CONFLICT,))

    def delete(self, name: str, uid: str) -> None:
        """See ``PlaceholderApi.delete``."""
        what = f"delete the placeholder {self._namespace}/{name}"
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        }
        self._connection.write(what, "DELETE", named_path(self._namespace, name), body)
