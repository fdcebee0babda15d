"""``gpu-manager completion SHELL``: the script by which a shell completes its commands and options."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from gpu_manager.runtime.arguments import Argument


class Shell(Enum):
    """The shells there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Each asks the program itself, by the variable, for what may stand in the place of the last word.
_SCRIPTS: Final = {
    Shell.BASH: """\
_gpu_manager() {
    local IFS=$'\\n'
    COMPREPLY=($(VARIABLE=1 gpu-manager "${COMP_WORDS[@]:1:COMP_CWORD}"))
}
complete -o default -F _gpu_manager gpu-manager
""",
    Shell.ZSH: """\
_gpu_manager() {
    local -a found
    found=(${(f)"$(VARIABLE=1 gpu-manager "${(@)words[2,CURRENT]}")"})
    compadd -a found || _files
}
compdef _gpu_manager gpu-manager
""",
    Shell.FISH: """\
function __gpu_manager
    set -l words (commandline -opc)
    VARIABLE=1 gpu-manager $words[2..-1] (commandline -ct | string collect --allow-empty)
end
complete -c gpu-manager -a '(__gpu_manager)'
""",
}


def command(shell: Annotated[Shell, Argument(help="Which shell.")]) -> None:
    """Print the script that completes gpu-manager's commands and options in that shell.

    bash: `source <(gpu-manager completion bash)` in ~/.bashrc; zsh the same in ~/.zshrc; fish:
    `gpu-manager completion fish | source`. kubectl completes `kubectl vcuda` by itself.

    Examples:
      gpu-manager completion bash
    """
    from gpu_manager.cli.main import PROGRAM  # noqa: PLC0415  # which names this module

    print(_SCRIPTS[shell].replace("VARIABLE", PROGRAM.completion_variable), end="")
