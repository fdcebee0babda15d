"""Command lines from the signatures of functions: an option is declared once, at the parameter that takes it.

A parameter is ``Annotated[type, Option(...)]`` or ``Annotated[type, Argument(...)]``; its type is ``str``,
``int``, ``float``, ``Path``, ``bool`` or an ``Enum``, one of these or ``None``, or a list of them. argparse
parses. Nothing here is compiled or slow to import: ``kubectl vcuda`` has to start as kubectl does.
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import parse_quantity


class Option:
    """An option. Without ``names`` it is called as the parameter is; a bool then has ``--no-…`` too."""

    def __init__(
        self,
        *names: str,
        help: str = "",  # noqa: A002  # the word of the field
        envvar: str = "",
        metavar: str = "",
        min: float = -math.inf,  # noqa: A002  # same
        max: float = math.inf,  # noqa: A002  # same
    ) -> None:
        self.names = names
        self.help = help
        self.envvar = envvar
        self.metavar = metavar
        self.bounds = min, max


class Argument(Option):
    """A word that stands by its place; a list takes all that are left."""


class Rest:
    """Marks the parameter (``list[str]``) for words that no option takes; without it they are refused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command. ``names`` are an option's, ``off`` what turns a flag off; ``convert`` reads
    one value and is None for a flag.
    """

    name: str
    names: tuple[str, ...]
    off: tuple[str, ...]
    help: str
    envvar: str
    metavar: str
    default: Any
    required: bool
    many: bool
    convert: Callable[[str], Any] | None
    choices: tuple[str, ...]

    @property
    def positional(self) -> bool:
        """True if it is no option."""
        return not self.names

    def fallback(self, environment: Mapping[str, str]) -> Any:
        """The value where the command line has none. Raises RequestInvalid: the variable's is not legal."""
        text = environment.get(self.envvar, "") if self.envvar else ""
        if not text or self.convert is None:
            return self.default
        try:
            return self.convert(text)
        except argparse.ArgumentTypeError as error:
            raise RequestInvalid(f"${self.envvar}: {error}") from error


class Command:
    """A function as a command. ``program`` is what people type before its arguments."""

    def __init__(self, program: str, function: Callable[..., Any]) -> None:
        self._program = program
        self._function = function
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters.values()
        self._rest = next((p.name for p in signature if _is_rest(hints[p.name])), "")
        self.parameters = tuple(_parameter(p, hints[p.name]) for p in signature if p.name != self._rest)

    def call(self, words: Sequence[str]) -> Any:
        """Call the function as the command line says; returns what it returns, 0 after ``--help``.

        Raises:
            RequestInvalid: the command line is wrong.
        """
        if "--help" in words or "-h" in words:
            print(self.help(), end="")  # noqa: T201  # what it is for
            return 0
        return self._function(**self.values(words))

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """The function's arguments by name. Raises RequestInvalid: the command line is wrong."""
        parser = self._parser()
        parsed, rest = parser.parse_known_intermixed_args(list(words))
        if rest and not self._rest:
            names = [name for p in self.parameters for name in (*p.names, *p.off)]
            meant = did_you_mean(rest[0].partition("=")[0], names) if rest[0].startswith("-") else ""
            raise RequestInvalid(f"unrecognized arguments: {' '.join(rest)}{meant}")
        given = {name: value for name, value in vars(parsed).items() if value not in (None, [])}
        absent = [p for p in self.parameters if p.name not in given]
        if missing := [p.metavar if p.positional else p.names[0] for p in absent if p.required]:
            raise RequestInvalid(
                f"{' and '.join(missing)} missing: {self._program} --help shows what it takes"
            )
        values = {p.name: p.fallback(os.environ) for p in absent}
        if self._rest:
            values[self._rest] = rest
        return values | given

    def help(self) -> str:
        """What ``--help`` prints."""
        return self._parser().format_help()

    def _parser(self) -> argparse.ArgumentParser:
        words = "".join(f" {p.metavar}" for p in self.parameters if p.positional)
        parser = _Parser(
            usage=f"{self._program} [options]{words}".replace("%", "%%"),
            description=inspect.getdoc(self._function),
            formatter_class=_Formatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )
        positional, options = (parser.add_argument_group(title) for title in ("arguments", "options"))
        options.add_argument("-h", "--help", action="store_true", help="Show this text.")
        for one in self.parameters:
            _add(positional if one.positional else options, one)
        return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RequestInvalid(message)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")


def _add(group: Any, one: Parameter) -> None:
    shown = one.default.value if isinstance(one.default, Enum) else one.default
    told = "" if shown in ("", None, False, True) else f" (default: {shown})"
    told += f" [${one.envvar}]" if one.envvar else ""
    words: dict[str, Any] = {"help": (one.help + told).replace("%", "%%")}
    if one.convert is None:
        group.add_argument(*one.names, dest=one.name, action="store_true", **words)
        if one.off:
            group.add_argument(*one.off, dest=one.name, action="store_false", help="The opposite.")
        return
    words |= {"metavar": one.metavar, "type": one.convert}
    if one.positional:
        group.add_argument(one.name, nargs="*" if one.many else "?", default=None, **words)
    else:
        group.add_argument(*one.names, dest=one.name, action="append" if one.many else "store", **words)


def _is_rest(hint: Any) -> bool:
    return get_origin(hint) is Annotated and any(m is Rest or isinstance(m, Rest) for m in get_args(hint)[1:])


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    kind, said = get_args(hint)[:2]
    many, kind = _one_of(kind)
    flag = kind is bool
    names: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    if not isinstance(said, Argument):
        word = parameter.name.replace("_", "-")
        names = said.names or (f"--{word}",)
        off = (f"--no-{word}",) if flag and not said.names else ()
    choices = tuple(str(member.value) for member in kind) if issubclass(kind, Enum) else ()
    required = parameter.default is inspect.Parameter.empty
    return Parameter(
        name=parameter.name,
        names=names,
        off=off,
        help=said.help,
        envvar=said.envvar,
        metavar=said.metavar
        or ("" if isinstance(said, Argument) else "|".join(choices))
        or parameter.name.upper(),
        default=None if required else parameter.default,
        required=required,
        many=many,
        convert=None if flag else _reader(kind, said.bounds),
        choices=choices,
    )


def _one_of(kind: Any) -> tuple[bool, Any]:
    """Whether it is a list, and the type of one value; ``None`` beside it does not count."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return (True, get_args(kind)[0]) if get_origin(kind) is list else (False, kind)


_NUMBERS: Final[Mapping[type, str]] = {int: "a whole number", float: "a number"}


def _reader(kind: Any, bounds: tuple[float, float]) -> Callable[[str], Any]:
    if issubclass(kind, Enum):
        return lambda text: _member(kind, text)
    if kind in _NUMBERS:
        return lambda text: _number(kind, text, *bounds)
    return _path if kind is Path else str


def _path(text: str) -> Path:
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no path: it contains a NUL")
    return Path(text)


def _member(kind: type[Enum], text: str) -> Enum:
    for member in kind:
        if member.value == text:
            return member
    *others, last = (str(member.value) for member in kind)
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(others)} or {last}")


def _number(kind: Callable[[str], float], text: str, least: float, most: float) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not {_NUMBERS[kind]}") from None  # type: ignore[index]  # a type
    if not least <= value <= most:
        allowed = f"{least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
        raise argparse.ArgumentTypeError(f"{text[:80]} is out of bounds: use {allowed}")
    return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, to be put behind the word; empty if none is like it."""
    from difflib import get_close_matches  # noqa: PLC0415  # only for who mistypes

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def completions(parameters: Sequence[Parameter], before: Sequence[str], begun: str) -> Iterator[str]:
    """What may stand in the place of ``begun``, after the words ``before``."""
    last = before[-1] if before else ""
    for one in parameters:
        if last in one.names and one.convert is not None:
            yield from (choice for choice in one.choices if choice.startswith(begun))
            return
    for one in parameters:
        offered = one.choices if one.positional else (*one.names, *one.off)
        if one.positional or begun.startswith("-"):
            yield from (word for word in offered if word.startswith(begun))


def whole_bytes(option: str, text: str, example: str = "256Mi") -> int:
    """Return the bytes that an option's value names.

    Raises:
        RequestInvalid: the value is not a whole number, or out of range.
    """
    wrong = RequestInvalid(f"{option} is {quoted(text)}: use whole bytes from 1Mi to 1Ti, such as {example}")
    try:
        size = parse_quantity(text)
    except RequestInvalid as error:
        raise wrong from error
    if size.denominator != 1 or not 1 << 20 <= size <= 1 << 40:
        raise wrong
    return int(size)
