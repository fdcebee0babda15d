"""How commands print: the forms of an answer, columns, and colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Any, ClassVar, Final

from gpu_manager.cli import jsonpath
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.runtime.arguments import Option


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
            jsonpath.read_template(template)
        elif kind == "custom-columns":
            jsonpath.read_columns(template)
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
            print(jsonpath.read_template(template)(data))
        elif kind == "name":
            names = dict.fromkeys(map(_name, _entries(data)))
            print("\n".join(map(printable, names)), end="\n" * bool(names))
        else:
            titles, paths = jsonpath.read_columns(template)
            rows = [
                [",".join(map(jsonpath.shown, jsonpath.find(path, one))) or "<none>" for path in paths]
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
        cells = ("" if row.get(key) is None else jsonpath.shown(row[key]) for key in titles)
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
