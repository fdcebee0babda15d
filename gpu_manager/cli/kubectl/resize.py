"""``kubectl vcuda resize``: give a running container another share of the card that it is on."""

from __future__ import annotations

import sys
import time
from enum import Enum
from typing import Annotated, Final

from gpu_manager.cli.kubectl.login import BY_KUBECONFIG, Access, Login, Namespace, log_in
from gpu_manager.cli.kubectl.names import NamedObject, read_target
from gpu_manager.cli.kubectl.resize_workload import (
    AskedSize,
    WorkloadOutcome,
    change_of,
    outcome,
    past_in,
    pending,
    resize_workload,
    template_of,
)
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.owners import KINDS
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.runtime.arguments import Argument, Option, Seconds

_LOOK_SECONDS: Final = 0.2
_STANDS: Final = (
    "The request stands, and is judged again every ten seconds: ask for a size that fits, or --reset"
)


_USUAL_WAIT: Final = Seconds(30)


class DryRun(Enum):
    """Who judges a change that is not made."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


def command(
    target: Annotated[
        str,
        Argument(
            metavar="POD|KIND/NAME",
            help="A pod that runs on a node, or a workload: deployment/, statefulset/ or daemonset/NAME.",
            complete="pods",
        ),
    ],
    container: Annotated[
        str, Option("--container", "-c", help="Default: the only one with a fraction of a card.")
    ] = "",
    cores: Annotated[
        int | None, Option(min=1, max=99, help="Hundredths of a card; default: as asked for before.")
    ] = None,
    memory: Annotated[
        str, Option(metavar="QUANTITY", help="Such as 8Gi; default: as asked for before.")
    ] = "",
    reset: Annotated[bool, Option("--reset", help="Go back to the size of the spec.")] = False,
    wait: Annotated[Seconds, Option(help="How long to wait for it.")] = _USUAL_WAIT,
    dry_run: Annotated[
        DryRun,
        Option(
            "--dry-run", bare="server", help="Change nothing: judged here (client), or by the API server."
        ),
    ] = DryRun.NONE,
    namespace: Namespace = "",
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Change the share of a running container in place. Needs get and patch on pods.

    The card of the container and the quota of its namespace must have room for what is more. Less memory is
    in force as fast as the program frees it. A pod that replaces this one has the size of its spec.

    A workload's pods follow in place, each as its card has room, and new ones start at that size. It is
    written into the workload's own metadata, never into its template. Needs get and patch on it, and list on
    pods to tell which follow. Exit code 1 if a pod has no room for it. A size that no card of the cluster
    has is refused. With --reset pods that wait at the former size are deleted, so that their workload makes
    them anew: needs delete on pods.

    Examples:
      kubectl vcuda resize train-0 --cores 60
      kubectl vcuda resize deployment/web -c server --memory 8Gi --dry-run=server
      kubectl vcuda resize deployment/web --reset
    """
    if reset == bool(cores or memory):
        raise RequestInvalid("give --cores, --memory or both, or --reset to go back to the spec")
    if memory:
        try:
            parse_quantity(memory)
        except RequestInvalid as error:
            raise RequestInvalid(f"--memory is {quoted(memory)}: write a quantity such as 8Gi") from error
    size, named = AskedSize(container, cores, memory), read_target(target, ("Pod", *KINDS), "POD")
    with log_in(access, namespace) as login:
        if dry_run is not DryRun.NONE:
            told = WorkloadOutcome(_tried(login, named, size, wait, dry_run))
            past = []
        elif named.kind == "Pod":
            told = WorkloadOutcome(_resize_pod(login, named.name, size, wait))
            past = past_in(login, {})
        else:
            told = resize_workload(login, named.kind, named.name, size, wait)
            past = past_in(login, {f"{named.kind}/{named.name}": told.request})
        place = login.namespace
    for warning in past:
        print(printable(f"warning: {warning}"), file=sys.stderr)
    if printing.for_program:
        pods, is_trial = list(told.others), dry_run is not DryRun.NONE
        outcome_of = {"outcome": told.written, "pods": pods, "refused": told.is_refused, "dryRun": is_trial}
        printing.emit({"kind": named.kind, "namespace": place, "name": named.name, **outcome_of})
    else:
        print("\n".join(map(printable, (told.written, *told.others))))
    return 1 if told.is_refused else 0


def _tried(login: Login, named: NamedObject, size: AskedSize, wait: float, how: DryRun) -> str:
    """What would be asked for, judged here or by the API server. Raises as :func:`_resize_pod`."""
    from gpu_manager.adapters.kube.resize import change_size, workload  # noqa: PLC0415  # as in log_in

    kind, change = named.kind, change_of(login, named.kind, size)
    if how is DryRun.SERVER:
        there = change_size(login.connection, kind, login.namespace, named.name, change, wait, dry_run=True)
    else:
        there = workload(login.connection, kind, login.namespace, named.name)
        change(there)
    container = size.container_of(template_of(kind, there))
    goes = "would go back to the spec" if size.is_reset else f"would ask for {size.shown}"
    by = "the API server" if how is DryRun.SERVER else "this program, without the card's room and the quota"
    who = f"{kind.lower()} {login.namespace}/{named.name}"
    return f"container {quoted(container)} of {who} {goes}: nothing was changed (judged by {by})"


def _resize_pod(login: Login, name: str, size: AskedSize, wait: float) -> str:
    """Write the size into the pod's metadata, and wait for it; returns what is told of it.

    Raises:
        DoesNotFit, NodeUnready, RequestInvalid: it was refused, or not written.
    """
    from gpu_manager.adapters.kube.resize import change_size, running_pod  # noqa: PLC0415  # as in log_in

    change = change_of(login, "Pod", size)
    ends = time.monotonic() + wait
    there = parse_pod(change_size(login.connection, "Pod", login.namespace, name, change, wait))
    container, former = size.container_of(there), answer_of(there)
    try:
        while (told := outcome(there, container, former)) is None and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)
            there = running_pod(login.connection, login.namespace, name)
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}. {_STANDS}") from error
    return told or pending(there, container)
