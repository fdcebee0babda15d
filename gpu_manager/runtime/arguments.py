"""Command lines from the signatures of functions: an option is declared once, at the parameter that takes it.

A parameter is ``Annotated[type, Option(...)]`` or ``Annotated[type, Argument(...)]``; its type is ``str``,
``int``, ``float``, ``Path``, ``bool``, an ``Enum`` or a class with ``read(text)``, one of these or ``None``,
or a list of them. A parameter whose type is a dataclass of such fields stands for all of them, so that
commands share their options. argparse parses. Nothing here is compiled or slow to import: ``kubectl vcuda``
has to start as kubectl does.
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.features import Feature
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
        bare: str = "",
        complete: str = "",
        feature: Feature | None = None,
    ) -> None:
        """``bare``: the value of the option without one. ``complete``: what its values are names of.
        ``feature``: what it turns on or sets, whose stage its help says.
        """
        self.names = names
        self.help = help
        self.envvar = envvar
        self.metavar = metavar
        self.bounds = min, max
        self.bare = bare
        self.complete = complete
        self.feature = feature


class Argument(Option):
    """A word that stands by its place; a list takes all that are left."""


class Seconds(float):
    """A length of time as kubectl takes it: ``30``, ``30s``, ``1m30s``, ``500ms``."""

    CHOICES: tuple[str, ...] = ()
    METAVAR = "DURATION"

    @classmethod
    def read(cls, text: str) -> Seconds:
        """Raises RequestInvalid."""
        parts = _DURATION.fullmatch(text)
        if parts is None or not text:
            raise RequestInvalid(f"{text[:80]!r} is no length of time: write it like 30s, 2m or 1m30s")
        return cls(sum(float(part or 0) * unit for part, unit in zip(parts.groups(), _UNITS, strict=True)))

    def __str__(self) -> str:
        return f"{float(self):g}s"


_DURATION: Final = re.compile(
    r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m(?!s))?(?:([0-9]{1,6}(?:\.[0-9]{1,6})?)s?)?(?:([0-9]{1,6})ms)?"
)
_UNITS: Final = (3600, 60, 1, 0.001)


class Rest:
    """Marks the parameter (``list[str]``) for words that no option takes; without it they are refused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command. ``names`` are an option's, ``off`` what turns a flag off; ``convert`` reads
    one value and is None for a flag. ``shared`` is the title of options that several commands share; ``bare``
    and ``complete`` are as in :class:`Option`.
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
    shared: str = ""
    bare: str = ""
    complete: str = ""
    feature: Feature | None = None

    @property
    def positional(self) -> bool:
        """True if it is not an option."""
        return not self.names

    @property
    def usage(self) -> str:
        """How a usage line shows the argument: in brackets if it is optional."""
        return self.metavar if self.required or self.metavar.startswith("[") else f"[{self.metavar}]"

    def fallback(self, environment: Mapping[str, str]) -> Any:
        """The value if the command line has none. Raises RequestInvalid: the environment variable's is
        illegal.
        """
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
        self._groups = {p.name: hints[p.name] for p in signature if is_dataclass(hints[p.name])}
        found = (
            tuple(_grouped(p.name, hints[p.name]))
            if p.name in self._groups
            else (_parameter(p.name, p.default, hints[p.name]),)
            for p in signature
            if p.name != self._rest
        )
        self.parameters = tuple(sorted(chain(*found), key=lambda one: bool(one.shared)))

    def call(self, words: Sequence[str]) -> Any:
        """Call the function with the command line's values; returns its result, 0 after ``--help``.

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
        bare = {name: one.bare for one in self.parameters if one.bare for name in one.names}
        whole = [f"{word}={bare[word]}" if word in bare else word for word in words]
        parsed, rest = parser.parse_known_intermixed_args(whole)
        if rest and not self._rest:
            names = [name for p in self.parameters for name in (*p.names, *p.off)]
            meant = did_you_mean(rest[0].partition("=")[0], names) if rest[0].startswith("-") else ""
            cure = meant or f": {self._program} --help shows what it takes"
            raise RequestInvalid(f"unrecognized arguments: {' '.join(rest)}{cure}")
        given = {name: value for name, value in vars(parsed).items() if value not in (None, [])}
        absent = [p for p in self.parameters if p.name not in given]
        if missing := [p.metavar if p.positional else p.names[0] for p in absent if p.required]:
            raise RequestInvalid(
                f"{' and '.join(missing)} missing: {self._program} --help shows what it takes"
            )
        values = {p.name: p.fallback(os.environ) for p in absent}
        if self._rest:
            values[self._rest] = rest
        values |= given
        for name, group in self._groups.items():
            said = {f.name: f"{name}.{f.name}" for f in fields(group)}
            values[name] = group(**{f: values.pop(key) for f, key in said.items() if key in values})
        return values

    def help(self) -> str:
        """The text of ``--help``."""
        return self._parser().format_help()

    def _parser(self) -> argparse.ArgumentParser:
        needed = "".join(f" {p.names[0]} {p.metavar}" for p in self.parameters if p.names and p.required)
        words = needed + "".join(f" {p.usage}" for p in self.parameters if p.positional)
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
        titles = dict.fromkeys(one.shared for one in self.parameters if one.shared)
        shared = {title: parser.add_argument_group(title) for title in titles}
        for one in self.parameters:
            _add(positional if one.positional else shared.get(one.shared, options), one)
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
    if one.off:
        told += " (default: on)" if one.default else " (default: off)"
    words: dict[str, Any] = {"help": (one.help + told).replace("%", "%%")}
    if one.convert is None:
        group.add_argument(*one.names, dest=one.name, action="store_true", **words)
        if one.off:
            off = f"Turn {one.names[0]} off{', as it is without either' * (not one.default)}."
            group.add_argument(*one.off, dest=one.name, action="store_false", help=off)
        return
    words |= {"metavar": one.metavar, "type": one.convert}
    if one.positional:
        group.add_argument(one.name, nargs="*" if one.many else "?", default=None, **words)
    else:
        group.add_argument(*one.names, dest=one.name, action="append" if one.many else "store", **words)


def _is_rest(hint: Any) -> bool:
    return get_origin(hint) is Annotated and any(m is Rest or isinstance(m, Rest) for m in get_args(hint)[1:])


def _grouped(name: str, group: Any) -> Iterator[Parameter]:
    """The fields of a dataclass that stand for several options; its ``TITLE`` is theirs."""
    hints = get_type_hints(group, include_extras=True)
    for field in (one for one in fields(group) if get_origin(hints[one.name]) is Annotated):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        said = get_args(hints[field.name])[1]  # a field may have a shorter name than its option
        word = said.names[0].removeprefix("--").replace("-", "_") if said.names else field.name
        one = _parameter(word, default, hints[field.name])
        yield replace(one, name=f"{name}.{field.name}", shared=getattr(group, "TITLE", ""))


def _parameter(name: str, default: Any, hint: Any) -> Parameter:
    kind, said = get_args(hint)[:2]
    many, kind = _one_of(kind)
    flag = kind is bool
    names: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    if not isinstance(said, Argument):
        word = name.replace("_", "-")
        names = said.names or (f"--{word}",)
        off = (f"--no-{word}",) if flag and not said.names else ()
    choices: tuple[str, ...] = getattr(kind, "CHOICES", ())
    if issubclass(kind, Enum):
        choices = tuple(str(member.value) for member in kind)
    required = default is inspect.Parameter.empty
    words = getattr(kind, "METAVAR", "") or ("" if isinstance(said, Argument) else "|".join(choices))
    return Parameter(
        name=name,
        names=names,
        off=off,
        help=f"{said.feature.mark} {said.help}".strip() if said.feature else said.help,
        envvar=said.envvar,
        metavar=said.metavar or words or name.upper(),
        default=None if required else default,
        required=required,
        many=many,
        convert=None if flag else _reader(kind, said.bounds),
        choices=choices,
        bare=said.bare,
        complete=said.complete,
        feature=said.feature,
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
    if hasattr(kind, "read"):
        return lambda text: _read(kind, text)
    return _path if kind is Path else str


def _read(kind: Any, text: str) -> Any:
    try:
        return kind.read(text)
    except RequestInvalid as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _path(text: str) -> Path:
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no path: it contains a NUL")
    return Path(text)


def _member(kind: type[Enum], text: str) -> Enum:
    for member in kind:
        if member.value == text:
            return member
    *others, last = (str(member.value) for member in kind)
    known = f"none of {', '.join(others)} or {last}" if others else f"not {last}, which alone is known"
    raise argparse.ArgumentTypeError(f"{text!r} is {known}")


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
    """A hint at the name that was probably meant, to append to the word; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415  # only for who mistypes

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def completions(
    parameters: Sequence[Parameter],
    before: Sequence[str],
    begun: str,
    names: Callable[[str], Iterable[str]] = lambda _: (),
) -> Iterator[str]:
    """Completions of ``begun`` after the words ``before``; ``names`` returns the names of a kind of objects
    (:class:`Option`'s ``complete``).
    """
    last = before[-1] if before else ""
    for one in parameters:
        if last in one.names and one.convert is not None and not one.bare:
            yield from _begun((*one.choices, *names(one.complete)), begun)
            return
    for one in parameters:
        if one.positional and not begun.startswith("-"):
            yield from _begun((*one.choices, *names(one.complete)), begun)
        elif begun.startswith("-"):
            yield from _begun((*one.names, *one.off), begun)


def _begun(words: Iterable[str], begun: str) -> Iterator[str]:
    return (word for word in words if word.startswith(begun))


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
