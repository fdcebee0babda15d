"""The program ``gpu-manager``: which commands there are, and how any of them ends.

Each command lives in a module of its own that exports a function ``command`` (and ``SETTINGS`` for typer's
``context_settings``, if it needs any), imported when it is called and not before: ``gpu-manager check``
must not wait for the Kubernetes client. A command's exit code is what it returns, 0 for None.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpu_manager.domain.errors import RequestInvalid, VcudaError, printable

# name → (module, summary): one line makes a command.
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("gpu_manager.cli.check", "Say whether manifests are legal, why not, and what would be."),
    "cordon": ("gpu_manager.cli.cordon", "Close cards to new shares."),
    "graph": ("gpu_manager.cli.graph", "Show the cards of the running agent, and who holds what of them."),
    "reference": ("gpu_manager.cli.reference", "Print a page of the reference: metrics, annotations, flags."),
    "run": ("gpu_manager.cli.run", "Run the agent of this node."),
    "sandbox": ("gpu_manager.cli.sandbox", "Keep a node with simulated cards up, on a laptop."),
    "status": ("gpu_manager.cli.status", "Say whether the running agent can serve pods."),
    "topology": ("gpu_manager.cli.topology", "Pick the best-joined cards of an nvidia-smi topo -m matrix."),
    "uncordon": ("gpu_manager.cli.uncordon", "Open cards that were closed."),
    "usage": ("gpu_manager.cli.usage", "Show what each container asked for and uses."),
    "version": ("gpu_manager.cli.version", "Print the version."),
}

_INTERRUPTED = 130
# UsageError, which typer does not export: click's own, or that of the click inside typer (0.20 on).
_USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__


class _Commands(TyperGroup):
    """Knows every command by its summary, and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else found, rest


def _load(name: str) -> Any:
    module = import_module(COMMANDS[name][0])
    one = typer.Typer(add_completion=False)
    one.command(name, context_settings=getattr(module, "SETTINGS", None))(module.command)
    return typer.main.get_command(one)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import_module(COMMANDS["version"][0]).command()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Share NVIDIA cards between Kubernetes pods: exact, measured, explained."""
    del version


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 2 for bad input, 1 for "no", 0 for "yes"."""
    try:
        result = typer.main.get_command(app).main(
            list(arguments), prog_name="gpu-manager", standalone_mode=False
        )
        sys.stdout.flush()
    except VcudaError as error:
        return _say(str(error), 2 if isinstance(error, RequestInvalid) else 1)
    except _USAGE_ERRORS as error:
        return _say(getattr(error, "format_message", error.__str__)(), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read us is gone; the interpreter must not complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0


def _say(text: str, code: int) -> int:
    if text:  # no_args_is_help has printed the help, and has nothing to add
        sys.stderr.write(f"gpu-manager: {printable(text)}\n")
    return code


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal without UTF-8
    sys.exit(run(sys.argv[1:]))
