"""``kubectl vcuda resize``: give a running container another share of the card that it is on."""

from __future__ import annotations

import time
from typing import Annotated, Final

from gpu_manager.arguments import Argument, Option
from gpu_manager.cli.kubectl.login import Context, Kubeconfig, Login, Namespace, log_in, object_name
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, printable, quoted
from gpu_manager.domain.pod import Pod, parse_pod
from gpu_manager.domain.resize.owners import KINDS
from gpu_manager.domain.resize.progress import held_size
from gpu_manager.domain.resize.sizes import ResizeAnswer, answer_of, digest, with_size
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.untrusted import mapping

_LOOK_SECONDS: Final = 0.2
_PODS: Final = ("", "po", "pod", "pods")
_SHORT: Final = {"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet"}


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
        int | None, Option(min=1, max=99, help="Hundredths of a card; default: as in the spec.")
    ] = None,
    memory: Annotated[str, Option(metavar="QUANTITY", help="Such as 8Gi; default: as in the spec.")] = "",
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
    written into the workload's own metadata, never into its template. Needs get and patch on it.
    """
    from gpu_manager.adapters.kube.resize import request_size, running_pod  # noqa: PLC0415  # as in log_in

    if reset == bool(cores or memory):
        raise RequestInvalid("give --cores, --memory or both, or --reset to go back to the spec")
    with log_in(kubeconfig, context, namespace) as login:
        kind, _, owner = target.rpartition("/")
        if kind not in _PODS:
            print(_resize_workload(login, kind, object_name(owner, "NAME"), container, cores, memory, wait))
            return 0
        there = running_pod(login.connection, login.namespace, object_name(owner, "POD"))
        name = container or _only_fraction(there)
        wanted = _changed(there.annotations.get(RESIZE), name, cores, memory)
        former = answer_of(there)
        ends = time.monotonic() + wait
        there = request_size(login.connection, there, wanted, wait)
        while (told := _outcome(there, name, former)) is None and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)
            there = running_pod(login.connection, login.namespace, owner)
    print(told or _pending(there, name))
    return 0


def _resize_workload(
    login: Login, kind: str, name: str, container: str, cores: int | None, memory: str, wait: float
) -> str:
    """Write the size into the workload's metadata; returns what was written, for people."""
    from gpu_manager.adapters.kube.resize import request_workload_size, workload  # noqa: PLC0415  # as above

    short = _SHORT.get(kind, kind).lower()
    known = next((k for k in KINDS if short in (k.lower(), KINDS[k])), None)
    if known is None:
        kinds = ", ".join(k.lower() for k in KINDS)
        raise RequestInvalid(f"{quoted(kind)} has no size of its own: use {kinds}, or a pod's name alone")
    there = workload(login.connection, known, login.namespace, name)
    template = parse_pod(mapping(mapping(there.get("spec")).get("template")))
    asked = container or _only_fraction(template)
    before = mapping(mapping(there.get("metadata")).get("annotations")).get(RESIZE)
    wanted = _changed(before, asked, cores, memory)
    request_workload_size(login.connection, known, login.namespace, name, wanted, wait)
    who = f"container {quoted(asked)} of {known} {login.namespace}/{name}"
    if not cores and not memory:
        return f"{who}: its pods go back to the template's size"
    size = " and ".join(filter(None, (f"{cores} cores" if cores else "", memory)))
    return f"{who}: {size}; running pods follow in place, new ones start so; Events of each pod say how"


def _only_fraction(pod: Pod) -> str:
    names = [c.name for c in pod.containers if c.core is not None and 0 < c.core < 100]
    if len(names) != 1:
        raise RequestInvalid(
            f"{f'pod {pod.key}' if pod.uid else 'the template'} has {len(names)} containers with a fraction"
            f" of a card ({printable(', '.join(names)) or 'none'}): name one with --container"
        )
    return names[0]


def _changed(written: str | None, name: str, cores: int | None, memory: str) -> str | None:
    """The annotation with this size for that container; None if it then asks for nothing.

    Raises:
        RequestInvalid: the memory is no quantity.
    """
    size: dict[str, object] = {"cores": cores} if cores else {}
    if memory:
        parse_quantity(memory)
        size["memory"] = memory
    return with_size(written, name, size)


def _outcome(pod: Pod, name: str, former: ResizeAnswer | None) -> str | None:
    """What became of the request; None while that is open. ``former``: the answer before it was made.

    Without a request of its own the pod may have its owner's, which the answer then names.

    Raises:
        DoesNotFit: it is refused.
    """
    answer = answer_of(pod)
    if answer is None:
        return f"{pod.key} has the size of its spec" if RESIZE not in pod.annotations else None
    owners = RESIZE not in pod.annotations and answer != former
    if answer.asked != digest(pod) and not owners:
        return None
    if answer.refused:
        raise DoesNotFit(f"{pod.key} keeps its size: {answer.refused}")
    size = answer.sizes.get(name)
    held = held_size(pod, name)
    return f"container {quoted(name)} of {pod.key}: {held}" if held is not None and held == size else None


def _pending(pod: Pod, name: str) -> str:
    who = f"container {quoted(name)} of {pod.key}"
    answer = answer_of(pod)
    if answer is None or answer.asked != digest(pod):
        return f"{who}: the scheduler has not answered yet; kubectl describe pod shows its Events"
    booked = held_size(pod, name)
    return (
        f"{who}: the scheduler has reserved {answer.sizes.get(name)}, the agent has booked "
        f"{booked or 'none of it yet'}; less memory waits until the program frees it (Event VcudaResizeWaits)"
    )
