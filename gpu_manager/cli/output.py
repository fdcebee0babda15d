"""How commands print: the forms of an answer, jsonpath and custom columns, colour only on a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Any, ClassVar, Final

from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.runtime.arguments import Option

# Templates of `-o jsonpath=` and `-o custom-columns=`, as kubectl documents them.
# https://kubernetes.io/docs/reference/kubectl/jsonpath/ describes the language; of it there are fields,
# `['quoted']` fields, indices, slices, `*`, `..`, unions, filters of one comparison, `range` … `end` and
# quoted text.


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


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What ``-o`` chooses: the form of an answer, and the template of those that have one."""

    kind: str = "table"
    template: str = ""
    CHOICES: ClassVar[tuple[str, ...]] = (
        "table", "wide", "name", "csv", "json", "yaml", "jsonpath=", "custom-columns=",
    )  # fmt: skip
    METAVAR: ClassVar[str] = "FORM"

    @classmethod
    def read(cls, text: str) -> AnswerForm:
        """Raises RequestInvalid: there is no such form, or its template is malformed."""
        kind, equals, template = text.partition("=")
        if (f"{kind}=" if equals else kind) not in cls.CHOICES:
            shapes = "jsonpath=TEMPLATE or custom-columns=TITLE:.FIELD,…"
            raise RequestInvalid(f"{text[:80]!r} is none of table, wide, name, csv, json, yaml, {shapes}")
        if kind == "jsonpath":
            read_template(template)
        elif kind == "custom-columns":
            read_columns(template)
        return cls(kind, template)

    def __str__(self) -> str:
        return self.kind

    @property
    def wide(self) -> bool:
        """True if columns that do not fit on each screen are wanted too."""
        return self.kind == "wide"


@dataclass(frozen=True, slots=True)
class Printing:
    """How an answer is printed: as the command's table, or cut from its document."""

    TITLE: ClassVar[str] = "output"
    form: Annotated[
        AnswerForm,
        Option(
            "--output",
            "-o",
            help="table, wide, name, csv, json, yaml, jsonpath=TEMPLATE or custom-columns=TITLE:.FIELD,…",
        ),
    ] = AnswerForm()
    no_headers: Annotated[bool, Option("--no-headers", help="Leave the titles of tables out.")] = False

    @property
    def for_program(self) -> bool:
        """True for the forms that are cut from the document."""
        return self.form.kind not in ("table", "wide")

    def columns(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        """The table for people."""
        table = columns(titles, rows)
        return table.partition("\n")[2] if self.no_headers else table

    def emit(self, data: Mapping[str, Any] | Sequence[Any]) -> None:
        """Print the document in the form for programs. Raises RequestInvalid: nothing in it has a name."""
        kind, template = self.form.kind, self.form.template
        if kind == "json":
            print(json.dumps(data, indent=1))
        elif kind == "yaml":
            import yaml  # noqa: PLC0415  # only here

            print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip("\n"))
        elif kind == "csv":
            _csv(_entries(data))
        elif kind == "jsonpath":
            print(read_template(template)(data))
        elif kind == "name":
            names = dict.fromkeys(map(_name, _entries(data)))
            print("\n".join(map(printable, names)), end="\n" * bool(names))
        else:
            titles, paths = read_columns(template)
            rows = [
                [",".join(map(shown, find(path, one))) or "<none>" for path in paths]
                for one in _entries(data)
            ]
            print(self.columns(titles, rows))


TABLE: Final = Printing()


def _entries(data: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
    """The rows of a document: its first list of objects, or itself if it has none."""
    if not isinstance(data, Mapping):
        return data
    lists = (one for one in data.values() if isinstance(one, list))
    return next((one for one in lists if not one or isinstance(one[0], Mapping)), [data])


def _csv(rows: Sequence[Any]) -> None:
    import csv  # noqa: PLC0415  # only here

    titles = dict.fromkeys(key for row in rows for key in row)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(titles)
    for row in rows:
        cells = ("" if row.get(key) is None else shown(row[key]) for key in titles)
        writer.writerow(map(_plain, cells))


def _plain(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: tenants choose names and labels."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _name(entry: Any) -> str:
    """A row's name as kubectl would write it: KIND/NAME. Raises RequestInvalid."""
    if "kind" in entry and "name" in entry:
        return f"{str(entry['kind']).lower()}/{entry['name']}"
    if "workload" in entry:
        return str(entry["workload"][:1].lower() + entry["workload"][1:])
    for kind in ("pod", "node", "namespace", "check"):
        if kind in entry:
            return f"{kind}/{str(entry[kind]).rpartition('/')[2]}"
    raise RequestInvalid("-o name: this answer names no object; use -o json or jsonpath=")


Watch = Annotated[bool, Option("--watch", "-w", help="Go on, and print what changes, until Ctrl+C.")]


def repeat(show: Callable[[], int], *, watch: bool, pause: Callable[[float], None] = time.sleep) -> int:
    """Print what ``show`` prints; with ``watch`` again and again, each time the lines that are new."""
    if not watch:
        return show()
    before: tuple[set[str], set[str]] = set(), set()
    while True:
        with redirect_stdout(StringIO()) as answer, redirect_stderr(StringIO()) as remarks:
            show()
        texts = answer.getvalue().splitlines(), remarks.getvalue().splitlines()
        for lines, known, stream in zip(texts, before, (sys.stdout, sys.stderr), strict=True):
            print(
                "".join(f"{line}\n" for line in lines if line not in known), end="", file=stream, flush=True
            )
        before = set(texts[0]), set(texts[1])
        pause(WATCH_SECONDS)


WATCH_SECONDS: Final = 2.0


def columns(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, one line a row, as kubectl prints them. What others wrote cannot move the cursor."""
    lines = [list(titles), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}


def painted(text: str, colour: str) -> str:
    """The text in that colour, for a terminal."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def coloured(word: str, colour: str) -> str:
    """The word in that colour on a terminal; plain elsewhere and where NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return word
    return f"\x1b[1m{painted(word, colour)}"
