"""The command of the sandbox: a whole node on a laptop, with simulated cards, or orders to one that runs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog

from gpu_manager.adapters.manifests import read_objects
from gpu_manager.cli.files import load
from gpu_manager.cli.program import interrupt_on_termination
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.runtime.arguments import Option

if TYPE_CHECKING:
    from sandbox.control import SandboxOrder
    from sandbox.simulated_cluster import Sandbox, SandboxSettings

_HELP_FAULTS = (
    "Break something in the running sandbox: 'card 3 XID 79', 'card 3 silent', 'card 3 gone', 'card 3 ok', "
    "'agent kill', 'admission kill', 'kubelet restart', 'api away 5' (seconds)."
)


def command(
    profile: Annotated[
        str,
        Option(
            help="Cards: a100x8, dgx1-v100, h200x8, mig-a100, mig-b200, mig-h100, mig-h200, mixed, one, "
            "t4x4; a YAML file; nvidia-smi topo -m (.txt)."
        ),
    ] = "a100x8",
    port: Annotated[int, Option(min=0, max=65535, help="Port of metrics; 0 for a free one.")] = 0,
    directory: Annotated[
        Path | None,
        Option(help="Where it lives. Default: $XDG_RUNTIME_DIR/gpu-manager-sandbox, or one below /tmp."),
    ] = None,
    apply: Annotated[
        list[str] | None, Option(metavar="FILE", help="Manifests to apply; - reads standard input.")
    ] = None,
    delete: Annotated[
        list[str] | None,
        Option(metavar="NAMESPACE/NAME", help="A pod of the running sandbox to delete."),
    ] = None,
    fault: Annotated[list[str] | None, Option(metavar="TEXT", help=_HELP_FAULTS)] = None,
    scheduler: Annotated[bool, Option(help="Run a scheduler; off: one of your own does it.")] = True,
    admission: Annotated[
        bool, Option(help="Run the admission service: webhooks, quota, extender, explanations.")
    ] = True,
    native: Annotated[
        Path | None,
        Option(help="Another build of the library and stand-in driver than the installed one."),
    ] = None,
    topology_policy: Annotated[
        str, Option(help="The kubelet's: none, best-effort, restricted or single-numa-node.")
    ] = "none",
    nvidia_resource: Annotated[  # the way to a flag
        bool, Option("--nvidia-resource", help="Whole cards as nvidia.com/gpu too, as with the agent's flag.")
    ] = False,
    front: Annotated[
        str,
        Option(
            help="Cards by extended resources (plugin), by ResourceClaims (dra), or half by each (split)."
        ),
    ] = "plugin",
    demo: Annotated[bool, Option("--demo", help="Show what it does, check it, and end.")] = False,
) -> int:
    """Keep a node with simulated cards up until Ctrl-C: the real agent and admission around stand-ins.

    While one runs, the same command with --apply, --delete or --fault in another terminal reaches it. kubectl
    works with the kubeconfig that is printed. A container's command runs as a
    process of yours: no image, no isolation, but the limits of its share.

    Examples:
      gpu-manager sandbox
      gpu-manager sandbox --profile t4x4 --apply pod.yaml
      gpu-manager sandbox --fault "card 3 XID 79"
    """
    if Path(profile).is_file():
        profile = str(Path(profile).resolve())  # the agent runs elsewhere
    if demo:
        if apply or delete or fault:
            raise RequestInvalid("--demo applies its own pods: leave out --apply, --delete and --fault")
        from sandbox.demo import run  # noqa: PLC0415  # only where it is needed

        _quiet()
        interrupt_on_termination()
        return run(profile, port or None, directory, native, admission=admission)
    objects = [obj for name in apply or () for _, obj in load(name, read_objects)]
    from sandbox.control import SandboxOrder, send  # noqa: PLC0415  # gRPC, only where it is needed
    from sandbox.kubelet import NumaPolicy  # noqa: PLC0415  # as above
    from sandbox.simulated_cluster import SandboxSettings, default_directory  # noqa: PLC0415  # as above

    if topology_policy not in {policy.value for policy in NumaPolicy}:
        known = ", ".join(policy.value for policy in NumaPolicy)
        raise RequestInvalid(f"--topology-policy {printable(topology_policy)}: one of {known}")
    place = (directory or default_directory()).absolute()
    if front not in {one.value for one in Front}:
        raise RequestInvalid(f"--front {printable(front)}: one of {', '.join(one.value for one in Front)}")
    order = SandboxOrder(objects, list(delete or ()), list(fault or ()))
    if order:
        if send(place, order, _tell):
            return 0
        if delete or fault:
            raise RequestInvalid(f"no sandbox runs in {place}: start one with gpu-manager sandbox")
    settings = SandboxSettings(
        place,
        profile,
        port,
        scheduler,
        admission,
        native,
        numa=NumaPolicy(topology_policy),
        nvidia_resource=nvidia_resource,
        front=Front(front),
    )
    return _keep(settings, order)


def _keep(settings: SandboxSettings, order: SandboxOrder) -> int:
    from rich.console import Console  # noqa: PLC0415  # as above

    from sandbox.control import ControlServer, obey  # noqa: PLC0415  # as above
    from sandbox.picture import look  # noqa: PLC0415  # as above
    from sandbox.simulated_cluster import Sandbox  # noqa: PLC0415  # as above
    from sandbox.table import show  # noqa: PLC0415  # as above

    _quiet()
    stop = threading.Event()
    interrupt_on_termination()
    try:
        with Sandbox(settings) as sandbox:
            control = ControlServer(sandbox)
            control.start()
            try:
                for line in obey(sandbox, order):
                    _tell(line)
                show(lambda: look(sandbox), stop, Console(), _heading(sandbox))
            finally:
                control.stop()
    except KeyboardInterrupt:
        print("the sandbox has ended")
    return 0


def _tell(line: str) -> None:
    print(printable(line), flush=True)


def _heading(sandbox: Sandbox) -> str:
    left_out = "" if sandbox.native.complete else " (without a stand-in driver: commands see no card)"
    return "\n".join(
        (
            f"node {sandbox.node.name}: {len(sandbox.cards)} cards, {_models(sandbox)}{left_out}",
            f"  kubeconfig  {sandbox.kubeconfig}",
            f"  metrics     {sandbox.metrics_url}",
            *_admission(sandbox),
            f"  logs        {sandbox.agent_log}, {sandbox.directory / 'logs'}",
            "  Ctrl-C ends it",
        )
    )


def _admission(sandbox: Sandbox) -> list[str]:
    from sandbox.admission import LEFT_OUT  # noqa: PLC0415  # as above
    from sandbox.api import ADMIN_TOKEN  # noqa: PLC0415  # as above

    if sandbox.admission is not None:
        return [f"  admission   {sandbox.admission.url}/ui (token {ADMIN_TOKEN})"]
    if sandbox.settings.admission:
        return [f"  admission   {LEFT_OUT}"]
    return []


def _models(sandbox: Sandbox) -> str:
    return ", ".join(dict.fromkeys(card.model for card in sandbox.cards))


def _quiet() -> None:
    """The sandbox's own parts speak only of what is wrong: the screen belongs to the table."""
    import logging  # noqa: PLC0415  # the other commands do without

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # as it is when the line is written
    )
