"""``gpu-manager completion SHELL``: the script by which a shell completes its commands and options."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # re-exported


class Shell(Enum):
    """The shells there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print the script that completes gpu-manager's commands and options in that shell.

    bash: `source <(gpu-manager completion bash)` in ~/.bashrc; zsh the same in ~/.zshrc; fish:
    `gpu-manager completion fish | source`. kubectl completes `kubectl vcuda` by itself.
    """
    from gpu_manager.cli.main import PROGRAM  # noqa: PLC0415  # which names this module

    typer.echo(
        get_completion_script(
            prog_name=PROGRAM.name, complete_var=PROGRAM.completion_variable, shell=shell.value
        )
    )
