"""How commands print: the forms of an answer, columns for people, and colour only where a person looks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.arguments import Option
from gpu_manager.domain.errors import printable


class Output(Enum):
    """The forms of an answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class WideOutput(Enum):
    """The same, where there is more to show than fits."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
Form = Annotated[Output, Option("--output", "-o", help="Form of the answer.")]
WideForm = Annotated[WideOutput, Option("--output", "-o", help="Form of the answer.")]


def for_program(output: Output | WideOutput) -> bool:
    """True for the forms that programs read."""
    return output.value in ("json", "yaml")


def emit(data: Mapping[str, Any] | Sequence[Any], output: Output | WideOutput) -> None:
    """Print one value for programs."""
    if output.value == "json":
        print(json.dumps(data, indent=1))
        return
    import yaml  # noqa: PLC0415  # only here

    print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip("\n"))


def columns(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, one line a row, as kubectl prints them. What others wrote cannot move the cursor."""
    lines = [list(titles), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def painted(text: str, colour: str) -> str:
    """The text in that colour, for a terminal."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def coloured(word: str, colour: str) -> str:
    """The word in that colour on a terminal; plain elsewhere and where NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return word
    return f"\x1b[1m{painted(word, colour)}"
