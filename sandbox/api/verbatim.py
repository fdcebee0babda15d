"""What an API server sends byte for byte as it was written: ``managedFields``, parameters of claims.

They may nest deeper than Python decodes, and hold bytes that are no UTF-8. Here such a part is a string of
base64 after a character that marks it, so it outlives every copy of its object.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gpu_manager.adapters.kube.objects import shallow

_FIELD: Final = re.compile(r'(?<!\\)"(?:managedFields|parameters)"\s*:\s*(?=[\[{])')
_SHALLOW: Final = 100
_BRACKET: Final = re.compile(rb"([\[{])|[\]}]")
_MARK: Final = "\ue000"  # json.dumps writes it as \ue000
_KEPT: Final = re.compile(rb'"\\ue000([A-Za-z0-9+/=]*)"')


def read(body: bytes) -> Any:
    """What the body holds, with the parts that cannot be decoded kept as they are.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        _must_be_shallow(body)
        return json.loads(body.decode())  # of bytes it would take surrogates, too
    except (ValueError, RecursionError):
        text, at = body.decode("latin-1"), 0
        pieces: list[str] = []
        while found := _FIELD.search(text, at):
            begin, end = found.end(), shallow(text, found.end())[1]
            kept = base64.b64encode(text[begin:end].encode("latin-1")).decode()
            pieces += (text[at:begin], json.dumps(_MARK + kept))
            at = end
        if not pieces:
            raise
        return json.loads("".join((*pieces, text[at:])).encode("latin-1"))


def written(obj: Mapping[str, Any]) -> bytes:
    """The object's JSON text."""
    text = json.dumps(obj, separators=(",", ":")).encode()
    return _KEPT.sub(lambda found: base64.b64decode(found[1]), text) if b'"\\ue000' in text else text


def _must_be_shallow(body: bytes) -> None:
    """Raise RecursionError where it nests too deep to be copied, however deep this process decodes."""
    if body.count(b"{") + body.count(b"[") <= _SHALLOW:
        return
    depth = 0
    for found in _BRACKET.finditer(body):
        depth += 1 if found[1] else -1
        if depth > _SHALLOW:
            raise RecursionError
