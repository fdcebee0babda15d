"""Changes a YAML document in place: only what differs is replaced, so that comments, anchors and layout stay.

The composed nodes know their positions in the text. A value with an anchor is changed where it is written,
for all its aliases at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpu_manager.domain.errors import RequestInvalid

_WIDE: Final = 1 << 20
_MERGE: Final = "tag:yaml.org,2002:merge"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX: Final = re.compile(r"(?:[&!]\S*\s+)*")  # an anchor or a tag before a value
_REFERENCE: Final = re.compile(r"(?:\s|#[^\n]*\n|[-:,])*\*[^\s,\]}]+")
_COMMENT: Final = re.compile(r"\s(#[^\n]*)")
Pairs = list[tuple[Any, Any]]


class Unpatchable(RequestInvalid):
    """The change cannot be made in place: the caller writes the document anew."""


@dataclass(frozen=True, slots=True)
class PatchedText:
    """The changed text of a document, and the comments that were removed with lines of it.

    ``is_meant`` says whether the value read from the text is the wanted one, apart from aliases of a value
    that was changed for another alias.
    """

    text: str
    comments: tuple[str, ...]
    is_meant: Callable[[Any], bool]


def patched(text: str, old: Any, new: Any) -> PatchedText:
    """Change the text of a document from ``old`` to ``new``. Raises Unpatchable if that cannot be done in
    place.
    """
    patch = _Patch(text if text.endswith("\n") else text + "\n")
    root = yaml.compose(patch.text, Loader=_Loader)
    patch.change(root, old, new)
    return PatchedText(
        patch.apply(), tuple(patch.comments.values()), lambda read: patch.is_meant(root, read, new)
    )


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    return str(
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDE)
    ).strip()


def _scalar(value: Any) -> str:
    return flow([value])[1:-1]


@dataclass(slots=True)
class _Patch:
    """Pieces of the text to replace: (start, end) → new text; what each node changed to; comments that go."""

    text: str
    pieces: dict[tuple[int, int], str] = field(default_factory=dict)
    meant: dict[int, list[Any]] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)

    def apply(self) -> str:
        made, at = [], 0
        for (start, end), new in sorted(self.pieces.items()):
            if start < at:
                raise Unpatchable
            made += [self.text[at:start], new]
            at = end
        return "".join([*made, self.text[at:]])

    def is_meant(self, node: Any, read: Any, new: Any) -> bool:
        """Whether the two are equal, but where the text refers to a value that another place changed too."""
        if read == new or read in self.meant.get(id(node), ()):
            return True
        if isinstance(node, yaml.MappingNode) and isinstance(read, dict) and isinstance(new, dict):
            nodes = dict(self._pairs_of(node))
            return read.keys() == new.keys() and all(
                self.is_meant(nodes.get(key), value, new[key]) for key, value in read.items()
            )
        if isinstance(node, yaml.SequenceNode) and isinstance(read, list) and isinstance(new, list):
            entries = node.value if len(node.value) == len(new) else [None] * len(new)
            return len(read) == len(new) and all(map(self.is_meant, entries, read, new))
        return False

    def _pairs_of(self, node: Any) -> Iterator[tuple[str, Any]]:
        """Keys and values, merged ones first, as the document reads them."""
        own, merged = _own_and_merged(node)
        for one in reversed(merged):
            yield from self._pairs_of(one)
        yield from ((key.value, value) for key, value in own)

    # What changed.

    def change(self, node: Any, old: Any, new: Any) -> None:
        if old == new:
            return
        self.meant.setdefault(id(node), []).append(new)
        if isinstance(node, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict):
            self._change_mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list):
            self._change_sequence(node, old, new)
        elif isinstance(node, yaml.ScalarNode) and node.style not in ("|", ">") and _is_scalar(new):
            start = int(node.start_mark.index)
            prefix = _PREFIX.match(self.text, start, node.end_mark.index)
            start = prefix.end() if prefix else start
            self._replace(start, node.end_mark.index, _scalar(new))
        else:
            raise Unpatchable

    def _change_mapping(self, node: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        own, merged = _own_and_merged(node)
        if len({key.value for key, _ in own}) < len(own) or not all(isinstance(k, str) for k in old):
            raise Unpatchable  # a key twice, a key that is no text
        for one in merged:
            self._change_merged(one, {key.value for key, _ in own}, old, new)
        for key, value in own:
            if key.value in new:
                self.change(value, old[key.value], new[key.value])
        gone = [index for index, (key, _) in enumerate(node.value) if _is_own(key) and key.value not in new]
        added = {key: value for key, value in new.items() if key not in old}
        if not gone and not added:
            return
        if node.flow_style:
            self._edit_flow(
                node, self._flow_pairs(node), gone, [flow({k: v})[1:-1] for k, v in added.items()]
            )
        else:
            self._edit_block(node, gone, added)

    def _change_merged(
        self, node: Any, hidden: set[str], old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> None:
        """What a mapping takes over by ``<<`` is changed where it is written."""
        own, deeper = _own_and_merged(node)
        keys = {key.value for key, _ in own} - hidden
        for key, value in own:
            if key.value in keys and key.value in new:
                self.change(value, old[key.value], new[key.value])
        gone = [i for i, (key, _) in enumerate(node.value) if _is_own(key) and key.value in keys - new.keys()]
        if gone and node.flow_style:
            self._edit_flow(node, self._flow_pairs(node), gone, [])
        elif gone:
            self._edit_block(node, gone, {})
        for one in deeper:
            self._change_merged(one, hidden | keys, old, new)

    def _change_sequence(self, node: Any, old: Sequence[Any], new: Sequence[Any]) -> None:
        if len(old) == len(new):
            for entry, before, after in zip(node.value, old, new, strict=True):
                self.change(entry, before, after)
            return
        if list(new[: len(old)]) == list(old):
            self._append(node, new[len(old) :])
            return
        gone, rest = [], list(new)
        for index, entry in enumerate(old):
            if rest and rest[0] == entry:
                rest.pop(0)
            else:
                gone.append(index)
        if rest or len(gone) == len(old):
            raise Unpatchable  # an entry that is new, or changed while others went
        if node.flow_style:
            places, at = [], node.start_mark.index
            for entry in node.value:
                start, at = self._begin(entry, at), self._end(entry, at)
                places.append((start, at))
            self._edit_flow(node, places, gone, [])
            return
        at = node.start_mark.index
        for index, entry in enumerate(node.value):
            end = self._end(entry, at)
            if index in gone:
                dash = self.text.rfind("-", 0, self._begin(entry, at))
                self._cut_lines(dash, end)
            at = end

    def _append(self, node: Any, added: Sequence[Any]) -> None:
        """New entries behind those that are there."""
        if node.flow_style or not node.value:
            places, at = [], node.start_mark.index
            for entry in node.value:
                start, at = self._begin(entry, at), self._end(entry, at)
                places.append((start, at))
            self._edit_flow(node, places, [], [flow(one) for one in added])
            return
        at = node.start_mark.index
        for entry in node.value:
            start, at = self._begin(entry, at), self._end(entry, at)
        dash = self.text.rfind("-", 0, start)
        indent = self.text[self._line(dash) : dash]
        if indent.strip():
            raise Unpatchable  # "- - one": lists in a list
        lines = (f"{indent}- {flow(one)}\n" for one in added)
        after = self._next_line(at)
        self._replace(after, after, "".join(lines))

    # Edits of the text.

    def _edit_flow(self, node: Any, places: list[tuple[int, int]], gone: list[int], added: list[str]) -> None:
        """Take entries out of ``{…}`` or ``[…]`` and put others in their place, or at the end."""
        kept = [index for index in range(len(places)) if index not in gone]
        if not kept:
            opened = (
                self.text.index("{" if isinstance(node, yaml.MappingNode) else "[", node.start_mark.index) + 1
            )
            start, end = (places[0][0], places[-1][1]) if places else (opened, opened)
            self._replace(start, end, ", ".join(added))
            return
        for index in gone:
            if index < kept[-1]:
                self._replace(places[index][0], places[index + 1][0], "")
        tail = "".join(f", {one}" for one in added)
        last = places[kept[-1]][1]
        if gone and gone[-1] > kept[-1]:
            self._replace(last, places[-1][1], tail)
        elif tail:
            self._replace(last, last, tail)

    def _edit_block(self, node: Any, gone: list[int], added: Mapping[str, Any]) -> None:
        """Take whole lines out, and put new ones where the first was, or at the end."""
        pairs: Pairs = node.value
        indent = " " * pairs[0][0].start_mark.column
        lines = yaml.safe_dump(dict(added), sort_keys=False, allow_unicode=True, width=_WIDE).splitlines()
        new = "".join(f"{indent}{line}\n" for line in lines) if added else ""
        if len(gone) == len(pairs) and not added:
            new = f"{indent}{{}}\n"
        for index in gone:
            key, value = pairs[index]
            start, end = key.start_mark.index, self._end(value, key.end_mark.index)
            if not self.text[self._line(start) : start].strip():
                self._cut_lines(start, end)
                self._replace(self._line(start), self._line(start), new)
                new = ""
            elif index + 1 < len(pairs) and index + 1 not in gone:  # "- key: …": the next takes its place
                self._replace(start, pairs[index + 1][0].start_mark.index, "")
            else:
                raise Unpatchable
        if new:
            key, value = pairs[-1]
            at = self._next_line(self._end(value, key.end_mark.index))
            self._replace(at, at, new)

    def _cut_lines(self, start: int, end: int) -> None:
        first = self._line(start)
        if self.text[first:start].strip():
            raise Unpatchable  # something else stands on the line
        after = self._next_line(end)
        self.comments |= {
            match.start(): match[1].strip() for match in _COMMENT.finditer(self.text, start, after)
        }
        self._replace(first, after, "")

    def _replace(self, start: int, end: int, new: str) -> None:
        if start == end and not new:
            return
        before = self.pieces.setdefault((start, end), new)
        if before == new:
            return
        if start != end:
            raise Unpatchable
        if new not in before:  # what is added to an inner value comes before what is added to the outer one
            self.pieces[start, end] = before + new

    # Where values stand.

    def _line(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def _next_line(self, index: int) -> int:
        end = self.text.find("\n", index)
        return len(self.text) if end < 0 else end + 1

    def _flow_pairs(self, node: Any) -> list[tuple[int, int]]:
        return [(key.start_mark.index, self._end(value, key.end_mark.index)) for key, value in node.value]

    def _begin(self, node: Any, after: int) -> int:
        """Where a value behind ``after`` begins; the node of a reference stands where its anchor is."""
        if node.start_mark.index >= after:
            return int(node.start_mark.index)
        return self.text.rindex("*", 0, self._end(node, after))

    def _end(self, node: Any, after: int) -> int:
        """The index behind the last character of a value, without blanks and comments that follow."""
        if node.start_mark.index < after:
            match = _REFERENCE.match(self.text, after)
            if match is None:
                raise Unpatchable
            return match.end()
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            at = int(node.start_mark.index)
            if isinstance(node, yaml.MappingNode):
                key, value = node.value[-1]
                return self._end(value, key.end_mark.index)
            for entry in node.value:
                at = self._end(entry, at)
            return at
        end = int(node.end_mark.index)
        while end > node.start_mark.index and self.text[end - 1].isspace():
            end -= 1
        return end


def _own_and_merged(node: Any) -> tuple[Pairs, list[Any]]:
    """A mapping's own pairs, and the mappings that it takes over, the one that counts most first."""
    own: Pairs = []
    merged: list[Any] = []
    for key, value in node.value:
        if _is_own(key):
            own.append((key, value))
        else:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return own, merged


def _is_own(key: Any) -> bool:
    return bool(key.tag != _MERGE)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)
