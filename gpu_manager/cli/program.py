"""A program made of a table of commands: how one is found, called, completed, and how any of them ends.

Each command lives in a module of its own that exports a function ``command`` (and ``SETTINGS`` for typer's
``context_settings``, if it needs any), imported when it is called and not before: ``gpu-manager check``
must not wait for the Kubernetes client. A command's exit code is what it returns, 0 for None.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined] # re-exported
from typer.core import TyperCommand, TyperGroup

from gpu_manager.domain.errors import RequestInvalid, VcudaError, printable

# name → (module, summary): one line makes a command.
Commands = Mapping[str, tuple[str, str]]

_VERSION = "gpu_manager.cli.version"
_INTERRUPTED = 130
# UsageError, which typer does not export: click's own, or that of the click inside typer (0.20 on).
_USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__


def load(name: str, module: str) -> Any:
    """The command in that module, as typer makes it."""
    found = import_module(module)
    one = typer.Typer(add_completion=False)
    one.command(name, context_settings=getattr(found, "SETTINGS", None))(found.command)
    return typer.main.get_command(one)


@dataclass(frozen=True, slots=True)
class LazyProgram:
    """``name`` as people type it (``kubectl vcuda``), ``what`` it is for in one sentence."""

    name: str
    what: str
    commands: Commands

    def run(self, arguments: Sequence[str]) -> int:
        """Run one command line and return its exit code: 2 for bad input, 1 for "no", 0 for "yes"."""
        if self.completion_variable in os.environ:
            completion_init()  # the shells, which typer only knows of with options of its own for them
        try:
            result = self.group().main(
                list(arguments),
                prog_name=self.name,
                complete_var=self.completion_variable,
                standalone_mode=False,
            )
            sys.stdout.flush()
        except VcudaError as error:
            return self._say(str(error), 2 if isinstance(error, RequestInvalid) else 1)
        except _USAGE_ERRORS as error:
            text = getattr(error, "format_message", error.__str__)()
            return self._say(text.replace(": Value error, ", ": "), 2)  # pydantic's, inside typer
        except (KeyboardInterrupt, typer.Abort):
            return _INTERRUPTED
        except BrokenPipeError:
            # Whoever read us is gone; the interpreter must not complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return result if isinstance(result, int) else 0

    def main(self) -> None:
        """The console script."""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal without UTF-8
        sys.exit(self.run(sys.argv[1:]))

    @property
    def completion_variable(self) -> str:
        """Set by a shell that asks for completions."""
        return f"_{self.name.replace('-', '_').replace(' ', '_').upper()}_COMPLETE"

    def completions(self, words: Sequence[str]) -> list[str]:
        """What may stand in the place of the last of ``words``, which follow the program's name."""
        *before, begun = words or [""]
        completion_init()
        os.environ["COMP_WORDS"] = f"{shlex.join(['-', *before])} {shlex.quote(begun) if begun else ''}"
        os.environ["COMP_CWORD"] = str(len(before) + 1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            shell_complete(self.group(), {}, self.name, self.completion_variable, "complete_bash")
        return [line for line in said.getvalue().splitlines() if line]

    def group(self) -> Any:
        """The program as typer sees it."""
        app = typer.Typer(
            cls=_group_of(self.commands),
            help=self.what,
            no_args_is_help=True,
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        app.callback()(_root)
        return typer.main.get_command(app)

    def _say(self, text: str, code: int) -> int:
        if text:  # no_args_is_help has printed the help, and has nothing to add
            sys.stderr.write(f"{self.name}: {printable(text)}\n")
        return code


def _group_of(commands: Commands) -> type[TyperGroup]:
    """A group that knows every command by its summary, and imports the one that is called."""

    class Group(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            del ctx
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            del ctx
            return TyperCommand(cmd_name, help=commands[cmd_name][1]) if cmd_name in commands else None

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, found, rest = super().resolve_command(ctx, args)
            return (
                name,
                load(name, commands[name][0]) if name is not None and name in commands else found,
                rest,
            )

    return Group


def _show_version(wanted: bool) -> None:
    if wanted:
        import_module(_VERSION).command()
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    del version
