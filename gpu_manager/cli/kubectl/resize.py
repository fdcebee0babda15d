"""``kubectl vcuda resize``: give a running container another share of the card that it is on."""

from __future__ import annotations

import sys
import time
from enum import Enum
from typing import Annotated, Final

from gpu_manager.cli.kubectl.login import (
    BY_KUBECONFIG,
    Access,
    Login,
    Namespace,
    Selector,
    log_in,
)
from gpu_manager.cli.kubectl.names import NamedObject, read_target, selected
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
from gpu_manager.domain.kube.several_cards import MOST_PARTS
from gpu_manager.domain.resize.sizes import KINDS, answer_of
from gpu_manager.domain.resources import CORES_PER_CARD, parse_quantity
from gpu_manager.domain.untrusted import at, text
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
            metavar="[POD|KIND/NAME]",
            help="A pod that runs on a node, or a workload: deployment/, statefulset/ or daemonset/NAME.",
            complete="pods",
        ),
    ] = "",
    container: Annotated[
        str, Option("--container", "-c", help="Default: the only one with a fraction of a card.")
    ] = "",
    cores: Annotated[
        int | None,
        Option(
            min=1,
            max=MOST_PARTS * (CORES_PER_CARD - 1),
            help="Hundredths of a card, of parts of several cards the total; default: as asked for before.",
        ),
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
    selector: Selector = "",
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

    Of pods that are chosen by labels each is told of; those without room do not keep the others from it.

    Examples:
      kubectl vcuda resize train-0 --cores 60
      kubectl vcuda resize deployment/web -c server --memory 8Gi --dry-run=server
      kubectl vcuda resize deployment/web --reset
      kubectl vcuda resize -l app=train --cores 60
    """
    if reset == bool(cores or memory):
        raise RequestInvalid("give --cores, --memory or both, or --reset to go back to the spec")
    if memory:
        try:
            parse_quantity(memory)
        except RequestInvalid as error:
            raise RequestInvalid(f"--memory is {quoted(memory)}: write a quantity such as 8Gi") from error
    if bool(target) == bool(selector):
        raise RequestInvalid("name a pod or a workload, or choose pods by their labels with --selector")
    size, is_trial = AskedSize(container, cores, memory), dry_run is not DryRun.NONE
    named = [read_target(target, ("Pod", *KINDS), "POD")] if target else []
    with log_in(access, namespace) as login:
        named, place = named or _chosen(login, selector), login.namespace
        ends = time.monotonic() + wait
        told = [(one, _asked(login, one, size, ends, dry_run, goes_on=bool(selector))) for one in named]
        owners = {f"{one.kind}/{one.name}": its.request for one, its in told if one.kind != "Pod"}
        past = [] if is_trial else past_in(login, owners)
    for warning in past:
        print(printable(f"warning: {warning}"), file=sys.stderr)
    if printing.for_program:
        documents = [
            {"kind": one.kind, "namespace": place, "name": one.name, "outcome": its.written}
            | {"pods": list(its.others), "refused": its.is_refused, "dryRun": is_trial}
            for one, its in told
        ]
        printing.emit({"pods": documents} if selector else documents[0])
    else:
        print("\n".join(printable(line) for _, its in told for line in (its.written, *its.others)))
    return 1 if any(its.is_refused for _, its in told) else 0


def _asked(
    login: Login, named: NamedObject, size: AskedSize, ends: float, dry_run: DryRun, *, goes_on: bool
) -> WorkloadOutcome:
    """Ask for the size of one of them. With ``goes_on`` a refusal is told of, else raised as in
    :func:`_resize_pod`.
    """
    wait = max(0.0, ends - time.monotonic())
    try:
        if dry_run is not DryRun.NONE:
            return WorkloadOutcome(_tried(login, named, size, wait, dry_run))
        if named.kind == "Pod":
            return WorkloadOutcome(_resize_pod(login, named.name, size, wait))
        return resize_workload(login, named.kind, named.name, size, wait)
    except (DoesNotFit, RequestInvalid) as error:
        if not goes_on:
            raise
        return WorkloadOutcome(str(error), is_refused=True)


def _chosen(login: Login, selector: str) -> list[NamedObject]:
    """The pods with these labels that run on a node. Raises RequestInvalid: there is none."""
    there = selected(login, "pods", selector, everywhere=False)
    found = [at(pod, "metadata").get("name") for pod in there if at(pod, "spec").get("nodeName")]
    if not found:
        raise RequestInvalid(f"no pod with {selector} in namespace {login.namespace} runs on a node")
    return [NamedObject("Pod", text(name)) for name in found]


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
