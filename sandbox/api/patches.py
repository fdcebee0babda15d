"""The three patch formats, applied to plain JSON values. Nothing given is changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sandbox.api.status import ApiError, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

# Lists that a strategic merge patch merges by key instead of replacing (core/v1's patchMergeKey tags).
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "conditions": "type",
    "addresses": "type",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "webhooks": "name",
}


def apply_patch(obj: Mapping[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    """Return ``obj`` as ``patch`` wants it.

    Raises:
        ApiError: 400 for a patch of the wrong shape, 415 for an unknown format, 422 where a JSON patch
            names a place that is not there.
    """
    if content_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise bad_request("a JSON patch is a list of operations")
        result: Any = json_patch(copy.deepcopy(dict(obj)), patch)
    elif content_type in (MERGE, STRATEGIC):
        if not isinstance(patch, dict):
            raise bad_request("a merge patch is an object")
        result = merge(obj, patch, strategic=content_type == STRATEGIC)
    else:
        formats = f"{JSON_PATCH}, {MERGE}, {STRATEGIC}"
        raise ApiError(
            415, "UnsupportedMediaType", f"the body of the request was in an unknown format: use {formats}"
        )
    if not isinstance(result, dict):
        raise bad_request("the patch leaves no object")
    return result


def merge(target: Any, patch: Any, *, strategic: bool = False) -> Any:
    """RFC 7386; with ``strategic`` also the lists that Kubernetes merges by key, and finalizers as a set."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, _MERGE_KEYS[key])
        elif strategic and key == "finalizers" and isinstance(value, list):
            result[key] = list(dict.fromkeys([*(result.get(key) or []), *value]))
        elif strategic and key.startswith("$"):
            continue
        else:
            result[key] = merge(result.get(key), value, strategic=strategic)
    return result


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = {entry.get(key): entry for entry in target if isinstance(entry, dict)}
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise bad_request(f"each entry of this list needs the merge key {key}")
        if entry.get("$patch") == "delete":
            result.pop(entry[key], None)
        else:
            result[entry[key]] = merge(result.get(entry[key]), entry, strategic=True)
    return list(result.values())


def json_patch(obj: Any, operations: list[Any]) -> Any:
    """RFC 6902, on ``obj`` in place (the whole document can be replaced, so use what is returned)."""
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request("each operation of a JSON patch has op and path")
        op, path = operation.get("op"), operation["path"]
        if op in ("add", "replace", "test") and "value" not in operation:
            raise bad_request(f"the operation {op} needs a value")
        if op == "test":
            if _read(obj, path) != operation["value"]:
                raise _no_place(f"the test at {path} failed")
        elif op == "remove":
            _remove(obj, path)
        elif op in ("add", "replace"):
            if op == "replace":
                _read(obj, path)
            obj = _write(obj, path, copy.deepcopy(operation["value"]), insert=op == "add")
        elif op in ("copy", "move"):
            value = copy.deepcopy(_read(obj, str(operation.get("from"))))
            if op == "move":
                _remove(obj, str(operation["from"]))
            obj = _write(obj, path, value, insert=True)
        else:
            raise bad_request(f"unknown JSON patch operation {op!r}")
    return obj


def _no_place(message: str) -> ApiError:
    return ApiError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {message}"
    )


def _steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise bad_request(f"{path!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _walk(obj: Any, steps: list[str], path: str) -> Any:
    for step in steps:
        try:
            obj = obj[int(step)] if isinstance(obj, list) else obj[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _no_place(f"there is nothing at {path}") from None
    return obj


def _read(obj: Any, path: str) -> Any:
    return _walk(obj, _steps(path), path)


def _remove(obj: Any, path: str) -> None:
    *parents, last = _steps(path) or [""]
    _read(obj, path)
    parent = _walk(obj, parents, path)
    del parent[int(last) if isinstance(parent, list) else last]


def _write(obj: Any, path: str, value: Any, *, insert: bool) -> Any:
    steps = _steps(path)
    if not steps:
        return value
    parent = _walk(obj, steps[:-1], path)
    last = steps[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif (
        isinstance(parent, list) and insert and (last == "-" or (last.isdigit() and int(last) <= len(parent)))
    ):
        parent.insert(len(parent) if last == "-" else int(last), value)
    elif isinstance(parent, list) and last.isdigit():
        parent[int(last)] = value
    else:
        raise _no_place(f"there is no place for {path}")
    return obj
