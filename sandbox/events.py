"""Events as the node's own parts tell them: the kubelet, the scheduler."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from sandbox.api import ApiError, StandInApi
from sandbox.statuses import timestamp

_LONGEST = 1024  # of an Event's message, as the API has it


def tell(
    api: StandInApi,
    component: str,
    pod: Mapping[str, Any],
    reason: str,
    message: str,
    *,
    warning: bool = False,
) -> None:
    """Post an Event about a pod; nothing if its namespace will not have it."""
    meta, now = pod["metadata"], timestamp(time.time())
    namespace = meta.get("namespace", "default")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name'][:230]}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta["uid"],
        },
        "reason": reason,
        "message": message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…",
        "type": "Warning" if warning else "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        api.create(event, namespace)
    except ApiError:
        return
