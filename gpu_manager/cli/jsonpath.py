"""Templates of ``-o jsonpath=`` and ``-o custom-columns=``, as kubectl documents them.

https://kubernetes.io/docs/reference/kubectl/jsonpath/ describes the language; of it there are fields,
``['quoted']`` fields, indices, slices, ``*``, ``..``, unions, filters of one comparison,
``range`` … ``end`` and quoted text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpu_manager.domain.errors import RequestInvalid, quoted

Step = Callable[[Any], Iterator[Any]]
Path = Sequence[Step]
_NAME: Final = r"[A-Za-z0-9_/\-]+(?:\\\.[A-Za-z0-9_/\-]+)*"
_STEP: Final = re.compile(
    rf"(?P<deep>\.\.)(?P<below>{_NAME}|\*)?|\.(?P<field>{_NAME}|\*)|\[(?P<inside>[^\]]*(?:'[^']*'[^\]]*)*)\]"
)
_FILTER: Final = re.compile(
    r"\?\(\s*@(?P<path>[^\s=!<>]*)\s*(?:(?P<how>==|!=|<=|>=|<|>)\s*(?P<than>.+?))?\s*\)"
)
_BRACES: Final = re.compile(r"""\{((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^{}"'])*)\}""")
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def read_path(text: str) -> Path:
    """A path such as ``.cards[*].uuid``, with or without ``$`` before it. Raises RequestInvalid."""
    rest = text.strip().removeprefix("$").removeprefix("@")
    rest = f".{rest}" if rest and rest[0] not in ".[" else rest
    steps: list[Step] = []
    while rest and rest != ".":
        found = _STEP.match(rest)
        if found is None:
            raise RequestInvalid(f"{quoted(text)} is no path at {quoted(rest)}: write it like .cards[0].uuid")
        steps += _steps(found, text)
        rest = rest[found.end() :]
    return steps


def find(path: Path, value: Any) -> list[Any]:
    """Everything that the path leads to; nothing where a part of it is absent."""
    found = [value]
    for step in path:
        found = [one for each in found for one in step(each)]
    return found


def _steps(found: re.Match[str], whole: str) -> Iterator[Step]:
    if found["deep"]:
        yield _everything
        if found["below"]:
            yield _field(found["below"])
    elif found["field"]:
        yield _field(found["field"])
    else:
        yield _inside(found["inside"].strip(), whole)


def _everything(value: Any) -> Iterator[Any]:
    yield value
    for one in _members(value):
        yield from _everything(one)


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _field(name: str) -> Step:
    if name == "*":
        return _members
    key = name.replace("\\.", ".")
    return lambda value: iter([value[key]] if isinstance(value, Mapping) and key in value else ())


def _inside(text: str, whole: str) -> Step:
    """The step in brackets. Raises RequestInvalid."""
    if text == "*":
        return _members
    if (wanted := _FILTER.fullmatch(text)) is not None:
        return _filter(wanted)
    if re.fullmatch(r"-?\d{0,6}(:-?\d{0,6}){1,2}", text):
        part = slice(*(int(number) if number else None for number in text.split(":")))
        return lambda value: iter(value[part] if isinstance(value, list) else ())
    steps = [_member(word.strip(), whole) for word in text.split(",")]
    return lambda value: (one for step in steps for one in step(value))


def _member(word: str, whole: str) -> Step:
    if re.fullmatch(r"-?\d{1,6}", word):
        at = int(word)
        return lambda value: iter(value[at : at + 1 or None] if isinstance(value, list) else ())
    if re.fullmatch(r"'[^']*'|\"[^\"]*\"", word):
        return _field(word[1:-1].replace(".", "\\."))
    raise RequestInvalid(
        f"{quoted(whole)}: {quoted(f'[{word}]')} is no index, 'field', slice, * or ?(@.field==…)"
    )


def _filter(wanted: re.Match[str]) -> Step:
    path, how, than = read_path(wanted["path"]), wanted["how"], _literal(wanted["than"] or "")

    def holds(entry: Any) -> bool:
        found = find(path, entry)
        if how is None:
            return bool(found)
        try:
            return any(_COMPARED[how](one, than) for one in found)
        except TypeError:  # a number beside a text
            return False

    return lambda value: (entry for entry in _members(value) if holds(entry))


def _literal(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def shown(value: Any) -> str:
    """A value as text, objects and lists as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def read_template(template: str) -> Callable[[Any], str]:
    """What fills a jsonpath template in. Raises RequestInvalid: it is malformed."""
    whole = template if "{" in template else f"{{{template}}}"  # kubectl takes a bare path too
    pieces: list[tuple[str, Any]] = []
    at = 0
    for found in _BRACES.finditer(whole):
        pieces += [("text", whole[at : found.start()]), _piece(found[1].strip())]
        at = found.end()
    pieces.append(("text", whole[at:]))
    if any("{" in text or "}" in text for kind, text in pieces if kind == "text"):
        raise RequestInvalid(
            f"jsonpath {quoted(template)}: a brace is open; write it like {{.nodes[*].node}}"
        )
    body, rest = _nested(pieces, 0, template)
    if rest < len(pieces):
        raise RequestInvalid(f"jsonpath {quoted(template)}: {{end}} without {{range}}")
    return body


def _piece(text: str) -> tuple[str, Any]:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return "text", text[1:-1].replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    word, _, rest = text.partition(" ")
    if word == "range":
        return "range", read_path(rest)
    return ("end", None) if text == "end" else ("path", read_path(text))


def _nested(pieces: Sequence[tuple[str, Any]], at: int, template: str) -> tuple[Callable[[Any], str], int]:
    """What the pieces up to the ``end`` that closes them print, and the place of that ``end``."""
    parts: list[Callable[[Any], str]] = []
    while at < len(pieces) and pieces[at][0] != "end":
        kind, what = pieces[at]
        if kind == "range":
            body, at = _nested(pieces, at + 1, template)
            if at == len(pieces):
                raise RequestInvalid(f"jsonpath {quoted(template)}: {{range}} without {{end}}")
            parts.append(_repeated(what, body))
        else:
            parts.append(_filled(what) if kind == "path" else _always(what))
        at += 1
    return lambda value: "".join(part(value) for part in parts), at


def _repeated(path: Path, body: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "".join(map(body, find(path, value)))


def _always(text: str) -> Callable[[Any], str]:
    return lambda _: text


def _filled(path: Path) -> Callable[[Any], str]:
    return lambda value: " ".join(map(shown, find(path, value)))


def read_columns(template: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Titles and paths of ``TITLE:.path,…``. Raises RequestInvalid."""
    titles, paths = [], []
    for column in template.split(","):
        title, colon, path = column.partition(":")
        if not title or not colon or not path:
            raise RequestInvalid(
                f"custom-columns {quoted(column)}: write TITLE:.field, such as POD:.pod,UUID:.uuid"
            )
        titles.append(title)
        paths.append(read_path(path))
    return tuple(titles), tuple(paths)
