"""``managedFields`` as their author wrote them: an API server keeps them, and sends them byte for byte.

They may nest deeper than Python decodes, and hold bytes that are no UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gpu_manager.adapters.kube.objects import decode, shallow

_FIELD: Final = re.compile(rb'(?<!\\)"managedFields"\s*:\s*(?=\[)')
_PLACE: Final = "managedFields as they were written"


class Verbatim(str):
    """JSON text, a character for each byte."""

    __slots__ = ()


def read(body: bytes) -> Any:
    """What the body holds; ``managedFields`` that cannot be decoded are :class:`Verbatim`.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        found, obj = _FIELD.search(body), decode(body)
        if found is None or not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
            raise
        text = body.decode("latin-1")
        obj["metadata"]["managedFields"] = Verbatim(text[found.end() : shallow(text, found.end())[1]])
        return obj


def written(obj: Mapping[str, Any]) -> bytes:
    """The object's JSON text."""
    meta = obj.get("metadata")
    fields = meta.get("managedFields") if isinstance(meta, Mapping) else None
    if meta is None or not isinstance(fields, Verbatim):
        return json.dumps(obj, separators=(",", ":")).encode()
    text = json.dumps({**obj, "metadata": {**meta, "managedFields": _PLACE}}, separators=(",", ":")).encode()
    return text.replace(json.dumps(_PLACE).encode(), fields.encode("latin-1"), 1)
