"""``kubectl vcuda resize``: give a running container another share of the card that it is on."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl.login import Context, Kubeconfig, Login, Namespace, log_in, object_name
from gpu_manager.cli.kubectl.resize_workload import (
    PODS,
    AskedSize,
    WorkloadOutcome,
    outcome,
    past_in,
    pending,
    resize_workload,
    workload_kind,
)
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, printable
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.runtime.arguments import Argument, Option

_LOOK_SECONDS: Final = 0.2
_STANDS: Final = (
    "The request stands, and is judged again every ten seconds: ask for a size that fits, or --reset"
)


def command(
    target: Annotated[
        str,
        Argument(
            metavar="POD|KIND/NAME",
            help="A pod that runs on a node, or a workload: deployment/, statefulset/ or daemonset/NAME.",
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
    wait: Annotated[float, Option(min=0, metavar="SECONDS", help="How long to wait for it.")] = 30.0,
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Change the share of a running container in place. Needs get and patch on pods.

    The card of the container and the quota of its namespace must have room for what is more. Less memory is
    in force as fast as the program frees it. A pod that replaces this one has the size of its spec.

    A workload's pods follow in place, each as its card has room, and new ones start at that size. It is
    written into the workload's own metadata, never into its template. Needs get and patch on it, and list on
    pods to tell which follow. Exit code 1 if a pod has no room for it. A size that no card of the cluster
    has is refused. With --reset pods that wait at the former size are deleted, so that their workload makes
    them anew: needs delete on pods.
    """
    if reset == bool(cores or memory):
        raise RequestInvalid("give --cores, --memory or both, or --reset to go back to the spec")
    if memory:
        parse_quantity(memory)
    size = AskedSize(container, cores, memory)
    told: WorkloadOutcome | None = None
    with log_in(kubeconfig, context, namespace) as login:
        kind, _, owner = target.rpartition("/")
        if kind.lower() in PODS:
            print(_resize_pod(login, object_name(owner, "POD"), size, wait))
            past = past_in(login, {})
        else:
            kind, owner = workload_kind(kind), object_name(owner, "NAME")
            told = resize_workload(login, kind, owner, size, wait)
            past = past_in(login, {f"{kind}/{owner}": told.request})
    for warning in past:
        print(printable(f"warning: {warning}"), file=sys.stderr)
    if told is None:
        return 0
    for line in (told.written, *told.others):
        print(printable(line))
    return 1 if told.is_refused else 0


def _resize_pod(login: Login, name: str, size: AskedSize, wait: float) -> str:
    """Write the size into the pod's metadata, and wait for it; returns what is told of it.

    Raises:
        DoesNotFit, NodeUnready, RequestInvalid: it was refused, or not written.
    """
    from gpu_manager.adapters.kube.resize import change_size, running_pod  # noqa: PLC0415  # as in log_in

    def change(there: Mapping[str, Any]) -> str | None:
        pod = parse_pod(there)
        own, answer, name = pod.annotations.get(RESIZE), answer_of(pod), size.container_of(pod)
        given = answer.sizes.get(name) if answer and own is None else None
        return size.written(own, name, given)

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
