"""The program ``gpu-manager``: which commands there are; :mod:`gpu_manager.cli.program` runs them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from gpu_manager.cli.program import Commands, LazyProgram
from gpu_manager.runtime.arguments import Argument

# One line makes a command.
COMMANDS: Commands = {
    "check": ("check", "Say whether manifests are legal, why not, and what would be."),
    "completion": ("main:completion", "Print the script that completes commands in a shell."),
    "cordon": ("cards:cordon", "Close cards to new shares."),
    "doctor": ("doctor", "Find what is wrong on this machine, each with its cure."),
    "evict-marked": ("beside:evict_marked", "Evict the pods that agents mark, within a rate."),
    "forget": ("cards:forget", "Stop missing cards that have vanished for good."),
    "graph": ("ask:graph", "Show the cards of the running agent, and who holds what of them."),
    "keep": ("beside:keep", "Keep control pages open while the agent is away."),
    "replay": ("beside:replay", "Judge recorded decisions again: what differs under this release?"),
    "replay-node": ("replay_node", "Judge an agent's recorded decisions again."),
    "run": ("run", "Run the agent of this node."),
    "sandbox": ("beside:sandbox", "Keep a node with simulated cards up, on a laptop."),
    "status": ("ask:status", "Say whether the running agent can serve pods."),
    "topology": ("cards:topology", "Pick the best-joined cards of an nvidia-smi topo -m matrix."),
    "uncordon": ("cards:uncordon", "Open cards that were closed."),
    "usage": ("ask:usage", "Show what each container asked for and uses."),
    "version": ("kubectl.version:own", "Print the version."),
}

PROGRAM = LazyProgram(
    "gpu-manager", "Share NVIDIA cards between Kubernetes pods: exact, measured, explained.", COMMANDS
)


run = PROGRAM.run
main = PROGRAM.main  # the console script


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


def completion(shell: Annotated[Shell, Argument(help="Which shell.")]) -> None:
    """Print the script that completes gpu-manager's commands and options in that shell.

    bash: `source <(gpu-manager completion bash)` in ~/.bashrc; zsh the same in ~/.zshrc; fish:
    `gpu-manager completion fish | source`. kubectl completes `kubectl vcuda` by itself.

    Examples:
      gpu-manager completion bash
    """
    print(_SCRIPTS[shell].replace("VARIABLE", PROGRAM.completion_variable), end="")
