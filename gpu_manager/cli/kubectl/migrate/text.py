"""Manifests as text: taken apart into documents, and changed where they changed, comments and all.

A changed document is patched line by line. Where that cannot be done (the change lies below an anchor, a list
lost an entry), or would not read as what was meant, the document is written anew and its comments are lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_manager.adapters.manifests import read_documents
from gpu_manager.domain.errors import RequestInvalid

_WIDE = 1 << 20
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, counted from 1: its text, and what it says."""

    number: int
    text: str
    value: Any
    is_json: bool = False


def documents(data: bytes) -> list[Document]:
    """Take a file apart; the texts together are the file.

    Raises:
        RequestInvalid: this is no Kubernetes manifest.
    """
    values = read_documents(data)
    text = data.decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        try:
            return [Document(1, text, json.loads(text), is_json=True)]
        except (ValueError, RecursionError):
            pass  # flow YAML
    events = [e for e in yaml.parse(text, Loader=_Loader) if isinstance(e, yaml.DocumentStartEvent)]
    starts = [event.start_mark.index for event in events if event.start_mark is not None]
    if len(starts) != len(values):
        raise RequestInvalid("several JSON documents in a row: separate them with lines of ---")
    edges = [0, *starts[1:], len(text)]
    return [
        Document(number, text[edges[number - 1] : edges[number]], value)
        for number, value in enumerate(values, 1)
    ]


def rewrite(document: Document, new: Any) -> tuple[str, bool]:
    """The document's text with what changed, and whether its comments were kept."""
    if document.is_json:
        return json_text(new), True
    try:
        patched = _patched(document, new)
        if read_documents(patched.encode()) == [new]:
            return patched, True
    except (_Unpatchable, RequestInvalid):
        pass
    head = "---\n" if document.text.lstrip().startswith("---") else ""
    return head + _written(document, new), "#" not in document.text


def json_text(value: Any) -> str:
    """JSON as the command writes it: a difference then shows what differs."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


class _Unpatchable(Exception):  # noqa: N818  # says what the document is; never leaves this module
    pass


@dataclass(slots=True)
class _Patch:
    """Pieces of the text to replace: (start, end) → new text."""

    text: str
    pieces: dict[tuple[int, int], str] = field(default_factory=dict)

    def replace(self, start: int, end: int, new: str) -> None:
        if self.pieces.setdefault((start, end), new) != new:
            raise _Unpatchable

    def apply(self) -> str:
        made, at = [], 0
        for (start, end), new in sorted(self.pieces.items()):
            if start < at:
                raise _Unpatchable
            made += [self.text[at:start], new]
            at = end
        return "".join([*made, self.text[at:]])

    def line_start(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def line_end(self, index: int) -> int:
        """Where the next line begins."""
        end = self.text.find("\n", index)
        return len(self.text) if end < 0 else end + 1


def _patched(document: Document, new: Any) -> str:
    patch = _Patch(document.text if document.text.endswith("\n") else document.text + "\n")
    _change(patch, yaml.compose(patch.text, Loader=_Loader), document.value, new)
    return patch.apply()


def _change(patch: _Patch, node: Any, old: Any, new: Any) -> None:
    if old == new:
        return
    if isinstance(node, yaml.SequenceNode) and isinstance(new, list) and len(new) == len(node.value):
        for entry, before, after in zip(node.value, old, new, strict=True):
            _change(patch, entry, before, after)
    elif isinstance(node, yaml.MappingNode) and isinstance(new, dict):
        if node.flow_style:
            patch.replace(node.start_mark.index, node.end_mark.index, _flow(new))
        else:
            _change_block(patch, node, old, new)
    elif (
        isinstance(node, yaml.ScalarNode)
        and not isinstance(new, dict | list)
        and node.style not in ("|", ">")
    ):
        patch.replace(node.start_mark.index, node.end_mark.index, _flow([new])[1:-1])
    else:
        raise _Unpatchable


def _change_block(patch: _Patch, node: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    pairs = list(node.value)
    keys = [key.value for key, _ in pairs]
    if set(keys) != set(old) or not pairs:  # a merge key, a key twice, a key that is no text
        raise _Unpatchable
    gone_at = None
    for i, (key, value) in enumerate(pairs):
        if key.value in new:
            _change(patch, value, old[key.value], new[key.value])
            continue
        start = patch.line_start(key.start_mark.index)
        if not patch.text[start : key.start_mark.index].strip():
            patch.replace(start, patch.line_end(_end(patch, value)), "")
            gone_at = start if gone_at is None else gone_at
        elif i + 1 < len(pairs) and pairs[i + 1][0].value in new:  # "- key: …", and the next takes its place
            patch.replace(key.start_mark.index, pairs[i + 1][0].start_mark.index, "")
        else:
            raise _Unpatchable
    added = {key: value for key, value in new.items() if key not in old}
    if added:
        indent = " " * pairs[0][0].start_mark.column
        at = patch.line_end(_end(patch, pairs[-1][1])) if gone_at is None else gone_at
        lines = yaml.safe_dump(added, sort_keys=False, allow_unicode=True, width=_WIDE).splitlines()
        patch.replace(at, at, "".join(f"{indent}{line}\n" for line in lines))


def _end(patch: _Patch, node: Any) -> int:
    """The index behind the last character of a value, without blanks and comments that follow."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(patch, last[1] if isinstance(last, tuple) else last)
    end = int(node.end_mark.index)
    while end > node.start_mark.index and patch.text[end - 1].isspace():
        end -= 1
    return end


def _flow(value: Any) -> str:
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDE)
    ).strip()


def _written(document: Document, new: Any) -> str:
    """The document written anew; scalars that did not change stay as they were written."""
    root = _merged(yaml.compose(document.text, Loader=_Loader), document.value, new)
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=_WIDE))


def _merged(node: Any, old: Any, new: Any) -> Any:
    if isinstance(node, yaml.MappingNode) and isinstance(new, dict) and isinstance(old, dict):
        olds = {key.value: (key, value) for key, value in node.value}
        if set(olds) == set(old):
            pairs = [
                (olds[k][0], _merged(olds[k][1], old[k], v)) if k in olds else (_node(k), _node(v))
                for k, v in new.items()
            ]
            return yaml.MappingNode(node.tag, pairs, flow_style=node.flow_style)
    if isinstance(node, yaml.SequenceNode) and isinstance(new, list):
        nodes = list(_matched(node.value, old, new))
        return yaml.SequenceNode(node.tag, nodes, flow_style=node.flow_style)
    if isinstance(node, yaml.ScalarNode) and old == new:
        return yaml.ScalarNode(node.tag, node.value, style=node.style)
    return _node(new)


def _matched(nodes: list[Any], old: list[Any], new: list[Any]) -> Iterator[Any]:
    """Entries of a list: where some were taken out, each that stayed with its own node."""
    at = 0
    for entry in new:
        if len(new) < len(old):
            while at < len(old) and old[at] != entry:
                at += 1
        yield _merged(nodes[at], old[at], entry) if at < len(old) else _node(entry)
        at += 1


def _node(value: Any) -> Any:
    made: Any = yaml.compose(_flow([value]), Loader=_Loader)
    return made.value[0]
