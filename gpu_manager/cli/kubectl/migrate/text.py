"""Splits manifests into documents and changes their text; comments and anchors stay.

A changed document is patched in place (:mod:`~gpu_manager.cli.kubectl.migrate.patch`). If that is
impossible or does not yield the wanted value, the document is rewritten and its comments are lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.migrate.patch import patched
from gpu_manager.domain.errors import RequestInvalid

_WIDE = 1 << 20
_BLANKS = re.compile(r"\s*")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its number from 1 on, its text and its value."""

    number: int
    text: str
    value: Any
    is_json: bool = False


def documents(data: bytes) -> list[Document]:
    """Split a file into documents; their texts together are the file.

    Raises:
        RequestInvalid: the file is no Kubernetes manifest.
    """
    values = read_documents(data)
    text = data.decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        try:
            return list(_json_documents(text))
        except (ValueError, RecursionError):
            pass  # flow YAML
    events = [e for e in yaml.parse(text, Loader=_Loader) if isinstance(e, yaml.DocumentStartEvent)]
    starts = [event.start_mark.index for event in events if event.start_mark is not None]
    edges = [0, *starts[1:], len(text)]
    return [
        Document(number, text[edges[number - 1] : edges[number]], value)
        for number, value in enumerate(values, 1)
    ]


def _json_documents(text: str) -> Iterator[Document]:
    """Yield JSON documents. Raises ValueError or RecursionError if the text is no JSON or too deep."""
    decoder = json.JSONDecoder()
    start, number = len(text) - len(text.lstrip()), 1
    while start < len(text):
        value, end = decoder.raw_decode(text, start)
        yield Document(number, text[start:end], value, is_json=True)
        start, number = _BLANKS.match(text, end).end(), number + 1  # type: ignore[union-attr]  # always matches


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A document's new text and value. ``anew`` is true if it was rewritten, which loses its comments;
    ``comments`` are those that were removed with lines of it.
    """

    text: str
    value: Any
    anew: bool = False
    comments: tuple[str, ...] = ()


def rewrite(document: Document, new: Any, *, strict: bool = True) -> Rewritten:
    """Return the document with a new value.

    If only some aliases of a value change, all of them do, unless ``strict``: then the document is rewritten.
    """
    if document.is_json:
        return Rewritten(json_text(new), new)
    try:
        made = patched(document.text, document.value, new)
        [read] = read_documents(made.text.encode())
        if read == new or (not strict and made.is_meant(read)):
            return Rewritten(made.text, read, comments=made.comments)
    except RequestInvalid:  # not in place, or not as was meant
        pass
    head = "---\n" if document.text.lstrip().startswith("---") else ""
    text = yaml.safe_dump(new, sort_keys=False, allow_unicode=True, width=_WIDE)
    return Rewritten(head + str(text), new, anew="#" in document.text or "&" in document.text)


def json_text(value: Any) -> str:
    """Return JSON in the layout that the command writes, so that a diff shows only changed values."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
