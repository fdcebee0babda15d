"""Rows of the reference's tables, from options, and from metrics as their library describes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

from gpu_manager.runtime.arguments import Parameter

MADE: Final = "Made from the code by `make reference`; do not edit by hand."
_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def family_row(family: Any) -> tuple[str, ...]:
    """Name, type, labels, meaning of a metric."""
    # The client keeps the label names of a family to itself; the samples of one without labels name them.
    names = list(
        getattr(family, "_labelnames", ()) or {n: 0 for s in family.samples for n in s.labels if n != "le"}
    )
    labels = ", ".join(f"`{name}`" for name in names)
    return (
        f"`{family.name}{_SUFFIX.get(family.type, '')}`",
        str(family.type),
        labels,
        str(family.documentation),
    )


def option_row(option: Parameter) -> tuple[str, ...]:
    """Flag, default, environment, meaning of an option."""
    name = ", ".join(f"`{text}`" for text in (*option.names, *option.off))
    default = option.default.value if isinstance(option.default, Enum) else option.default
    default = "" if default is None else str(default)
    if option.convert is None:
        default = default.lower()
    return (
        name,
        f"`{default}`" if default else "",
        f"`{option.envvar}`" if option.envvar else "",
        (option.help or "").replace("<", "&lt;"),
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def made_page(title: str, *parts: str) -> str:
    """A page that is made from the code: title, a word that says so, and its parts."""
    return "\n\n".join((f"# {title}", MADE, *parts)) + "\n"
