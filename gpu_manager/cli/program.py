"""A program made of a table of commands: how one is found, called, completed, and how any of them ends.

A command is a function, in a module that is imported when the command is called and not before:
``gpu-manager check`` must not wait for gRPC. Its exit code is what the function returns, 0 for None.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from gpu_manager.domain.errors import RequestInvalid, VcudaError, printable
from gpu_manager.runtime.arguments import Command, completions, did_you_mean

# name → (place, summary). The place is ``module:function``, or a module whose function ``command`` it is; the
# module is named from ``ROOM``.
Commands = Mapping[str, tuple[str, str]]
ROOM: Final = "gpu_manager.cli."

_INTERRUPTED = 130


def load(program: str, name: str, place: str) -> Command:
    """The command at that place of the table."""
    module, _, function = place.partition(":")
    return Command(f"{program} {name}", getattr(import_module(ROOM + module), function or "command"))


def interrupt_on_termination() -> None:
    """Raise KeyboardInterrupt on SIGINT and SIGTERM. A shell starts a background job with SIGINT ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class LazyProgram:
    """``name`` as people type it (``kubectl vcuda``), ``what`` it is for in one sentence. ``names`` knows the
    names of a kind of things, after the words that were typed.
    """

    name: str
    what: str
    commands: Commands
    names: Callable[[str, Sequence[str]], Iterable[str]] = lambda *_: ()

    def run(self, arguments: Sequence[str]) -> int:
        """Run one command line and return its exit code: 2 for bad input, 1 for "no", 0 for "yes"."""
        try:
            result = self._run(list(arguments))
            sys.stdout.flush()
        except VcudaError as error:
            sys.stderr.write(f"{self.name}: {printable(str(error))}\n")
            return 2 if isinstance(error, RequestInvalid) else 1
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:
            # Whoever read us is gone; the interpreter must not complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return result

    def main(self) -> None:
        """The console script."""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal without UTF-8
        sys.exit(self.run(sys.argv[1:]))

    def _run(self, words: list[str]) -> int:
        if self.completion_variable in os.environ:
            print("\n".join(self.completions(words)))
            return 0
        if not words:
            print(self.help(), end="")
            return 2
        name, *rest = words
        if name in ("-h", "--help"):
            print(self.help(), end="")
            return 0
        if name == "--version":
            name, rest = "version", []
        if name not in self.commands:
            what = "option" if name.startswith("-") else "command"
            meant = did_you_mean(name, self.commands)
            raise RequestInvalid(
                f"there is no {what} {name!r}{meant}: {self.name} --help lists what there is"
            )
        result = load(self.name, name, self.commands[name][0]).call(rest)
        return result if isinstance(result, int) else 0

    def help(self) -> str:
        """Every command with its summary, which imports none of them."""
        width = max(map(len, self.commands))
        lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in self.commands.items()]
        return "\n".join(
            [
                f"Usage: {self.name} COMMAND [options]",
                "",
                self.what,
                "",
                "Commands:",
                *lines,
                "",
                f"{self.name} COMMAND --help says more of one. --version prints the version.",
                "",
            ]
        )

    @property
    def completion_variable(self) -> str:
        """Set by a shell that asks for completions."""
        return f"_{self.name.replace('-', '_').replace(' ', '_').upper()}_COMPLETE"

    def completions(self, words: Sequence[str]) -> list[str]:
        """What may stand in the place of the last of ``words``, which follow the program's name."""
        *before, begun = words or [""]
        if not before:
            return [word for word in (*self.commands, "--help", "--version") if word.startswith(begun)]
        name, *rest = before
        if name not in self.commands:
            return []
        command = load(self.name, name, self.commands[name][0])
        return list(completions(command.parameters, rest, begun, lambda kind: self.names(kind, rest)))
