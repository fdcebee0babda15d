"""What differs by kind when an object is created or changed, and what may never change."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from sandbox.api import pods
from sandbox.api.kinds import Resource, Target
from sandbox.api.status import bad_request, invalid

Obj = dict[str, Any]


def prepare_create(resource: Resource, obj: Obj, *, judge: bool = False) -> None:
    """Defaults, in place; with ``judge`` also validation. Called before and, judging, after the hooks."""
    meta, name = obj["metadata"], str(obj["metadata"]["name"])
    for key in ("labels", "annotations"):
        values = meta.get(key)
        if values is not None and not all(isinstance(v, str) for v in values.values()):
            raise bad_request(f"cannot unmarshal {resource.plural}: metadata.{key} are not all text")
    if resource.plural == "pods":
        pods.set_defaults(obj)
        if judge:
            pods.validate(obj)
    elif resource.plural == "secrets":
        _encode_secret(obj)
    elif resource.plural == "namespaces":
        obj.setdefault("spec", {"finalizers": ["kubernetes"]})
        obj["status"] = {"phase": "Active"}
        meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = name
    elif resource.plural == "events" and judge:
        about = (obj.get("involvedObject") or {}).get("namespace") or ""
        if about not in ("", meta["namespace"]) or (
            not about and meta["namespace"] not in ("default", "kube-system")
        ):
            raise invalid(
                "Event", name, "involvedObject.namespace", "Invalid value: does not match event.namespace"
            )


def _encode_secret(obj: Obj) -> None:
    plain = obj.pop("stringData", None) or {}
    data = obj["data"] = dict(obj.get("data") or {})
    for key, text in plain.items():
        data[key] = base64.b64encode(str(text).encode()).decode()
    obj.setdefault("type", "Opaque")


_KEPT = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "managedFields",
)


def check_identity(target: Target, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """A patch that names a UID is about that object alone. Raises 422 where a PUT would be a conflict."""
    uid = (new.get("metadata") or {}).get("uid")
    if uid != old["metadata"]["uid"]:
        why = f'Invalid value: "{uid or ""}": field is immutable'
        raise invalid(target.resource.kind, target.name, "metadata.uid", why)


def prepare_update(target: Target, old: Mapping[str, Any], new: Obj) -> Obj:
    """What a PUT or PATCH to ``target`` makes of ``old``: identity kept, spec or status, not both.

    Raises:
        ApiError: 409 for another UID or version, 400 for another name, 422 for what may not change.
    """
    was, now = old["metadata"], dict(new.get("metadata") or {})
    plural, name = target.resource.plural, target.name
    if now.get("name", name) != name or now.get("namespace", target.namespace) != target.namespace:
        raise bad_request("the name of the object does not match the name on the URL")
    pods.check_preconditions(plural, name, was, now)
    for key in _KEPT:
        if key in was:
            now[key] = was[key]
        else:
            now.pop(key, None)
    now["name"] = name
    now["resourceVersion"] = was["resourceVersion"]
    if target.namespace:
        now["namespace"] = target.namespace
    for key in ("labels", "annotations"):
        if not all(isinstance(value, str) for value in (now.get(key) or {}).values()):
            raise bad_request(f"cannot unmarshal {plural}: metadata.{key} are not all text")
    if target.subresource == "status":
        # As in the API server, a status update may also change labels and annotations.
        return {**old, "metadata": now, "status": new.get("status") or {}}
    result = {**new, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": now}
    if "status" in target.resource.subresources:
        result["status"] = old.get("status") or {}
    if plural == "pods":
        pods.judge_update(old, result)
    elif plural == "secrets":
        _encode_secret(result)
    return result
