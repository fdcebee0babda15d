"""``kubectl vcuda resize``: give a running container another share of the card that it is on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl.names import NamedObject, read_target, selected
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, Namespace, Selector, log_in
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.cluster.node_json import read_node, usual_unit
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.kube.several_cards import MOST_PARTS
from gpu_manager.domain.resize.judgement import check_resize, held_size, past_limits
from gpu_manager.domain.resize.sizes import (
    KINDS,
    ResizeAnswer,
    WantedSize,
    answer_of,
    digest,
    effective_request,
    read_wanted,
    was_made_for_another,
    with_size,
)
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT, Amount, parse_quantity
from gpu_manager.domain.untrusted import annotations_of, at, text
from gpu_manager.runtime.arguments import Argument, Option, Seconds

# `kubectl vcuda resize deployment/NAME`: a size in the workload's own metadata, and which pods follow.
# Resizing a single pod (:mod:`gpu_manager.cli.kubectl.resize`) reads the requested size and reports the
# outcome by the same functions.


_CHECK_SECONDS: Final = 0.5
_MOST_TOLD: Final = 10  # pods by name; a workload may have thousands
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """What was written, and of each pod that does not have it why. ``is_refused``: one has no room for it.
    ``request`` is the workload's annotation then, empty for none.
    """

    written: str
    others: tuple[str, ...] = ()
    is_refused: bool = False
    request: str = ""


@dataclass(frozen=True, slots=True)
class _Pods:
    """The running pods of a workload, by what became of its size."""

    having: int = 0
    open: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    waiting: tuple[Pod, ...] = ()


def template_of(kind: str, there: Mapping[str, Any]) -> Pod:
    """The pod itself, or the pod of a workload's template."""
    return parse_pod(there if kind == "Pod" else at(there, "spec", "template"))


def change_of(login: Login, kind: str, size: AskedSize) -> Callable[[Mapping[str, Any]], str | None]:
    """What makes the annotation with this size of the object as it is read.

    It raises RequestInvalid, before anything is sent, where the webhook would refuse the size as illegal.
    """

    def change(there: Mapping[str, Any]) -> str | None:
        pod, own = template_of(kind, there), _request(there)
        name, answer = size.container_of(pod), answer_of(pod)
        is_followed = kind == "Pod" and answer is not None and own is None
        given = answer.sizes.get(name) if is_followed and answer else None
        written = size.written(own, name, given)
        if written is not None:
            asking = replace(pod, annotations={**pod.annotations, RESIZE: written})
            if faults := check_resize(asking, _unit(login, pod.node)):
                raise RequestInvalid(
                    "; ".join(fault.message.removeprefix(f"annotation {RESIZE}: ") for fault in faults)
                )
        return written

    return change


def _unit(login: Login, node: str) -> int:
    """Bytes of one unit of memory, of that node or of most; 1, which judges nothing, if nodes are hidden."""
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.reading import list_nodes  # noqa: PLC0415  # as above

    try:
        return usual_unit(map(read_node, list_nodes(login.connection, node)))
    except Refused:
        return 1


def resize_workload(login: Login, kind: str, name: str, size: AskedSize, wait: float) -> WorkloadOutcome:
    """Write the size into the workload's metadata, and look for ``wait`` seconds which pods follow.

    Raises:
        NodeUnready, RequestInvalid: it was not written.
    """
    from gpu_manager.adapters.kube.changes import change_size, pods_of  # noqa: PLC0415  # as above
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in

    ends = time.monotonic() + wait
    change = change_of(login, kind, size)
    there = change_size(login.connection, kind, login.namespace, name, change, wait)
    container = size.container_of(template_of(kind, there))
    who = f"container {quoted(container)} of {kind} {login.namespace}/{name}"
    goes = "its pods go back to the template's size" if size.is_reset else size.shown
    mended: dict[str, None] = {}
    try:
        while True:
            listed = pods_of(login.connection, there)
            pods = _by_outcome((pod for pod in listed if pod.workload == f"{kind}/{name}"), there, container)
            mended |= dict.fromkeys(_mended(login, pods.waiting, is_reset=size.is_reset))
            if not (pods.open or (size.is_reset and pods.waiting)) or time.monotonic() >= ends:
                break
            time.sleep(_CHECK_SECONDS)
    except NodeUnready as error:
        if isinstance(error, Refused) and error.code == _FORBIDDEN:  # it is written all the same
            return WorkloadOutcome(f"{who}: {goes}; running pods follow in place, as Events of each say")
        return WorkloadOutcome(f"{who}: {goes}; which pods follow cannot be seen: {error}")
    others = (*mended, *pods.refused, *pods.open, *pods.own)
    told = others[:_MOST_TOLD]
    more = (f"and {len(others) - len(told)} more",) if len(others) > len(told) else ()
    return WorkloadOutcome(
        f"{who}: {goes}; {_counted(pods)}, new ones start so",
        (*told, *more),
        bool(pods.refused),
        _request(there) or "",
    )


def past_in(login: Login, owners: Mapping[str, str]) -> list[str]:
    """What resized pods of the namespace go past of Kubernetes' own limits; ``owners``: requests of workloads
    that their pods may not have yet.
    """
    from gpu_manager.adapters.kube.changes import namespace_limits  # noqa: PLC0415  # as in log_in

    limits, pods = namespace_limits(login.connection, login.namespace)
    asking = []
    for pod in pods:
        request = effective_request(pod, owners[pod.workload]) if pod.workload in owners else None
        asking.append(
            pod if request is None else replace(pod, annotations={**pod.annotations, RESIZE: request})
        )
    return list(past_limits(limits, asking, DEFAULT_UNIT))


def _mended(login: Login, waiting: Sequence[Pod], *, is_reset: bool) -> Iterator[str]:
    """Pods that wait at the size asked for before: their spec is fixed, so a reset has them made anew."""
    from gpu_manager.adapters.kube.changes import delete_waiting  # noqa: PLC0415  # as in log_in

    for pod in waiting:
        told = f"{pod.key} waits at the size that was asked for before"
        if not is_reset:
            yield f"{told}: delete it, and it is made anew"
            continue
        try:
            if delete_waiting(login.connection, pod):
                yield f"{pod.key} waited at the size that was asked for before: deleted, to be made anew"
        except NodeUnready as error:
            yield f"{told}: delete it, and it is made anew ({error})"


def _request(there: Mapping[str, Any]) -> str | None:
    return text(annotations_of(there).get(RESIZE)) or None


def _by_outcome(pods: Iterable[Pod], there: Mapping[str, Any], container: str) -> _Pods:
    having, still, refused, own = 0, list[str](), list[str](), list[str]()
    waiting: list[Pod] = []
    for pod in sorted(pods, key=lambda pod: pod.key):
        if not pod.node and not pod.deleting and was_made_for_another(pod, _request(there) or ""):
            waiting.append(pod)
        if not pod.node or pod.terminal or pod.deleting:
            continue
        if RESIZE in pod.annotations:
            own.append(f"{pod.key} has a request of its own, which stands over its workload's")
            continue
        request = effective_request(pod, _request(there) or "")
        asking = pod if request is None else replace(pod, annotations={**pod.annotations, RESIZE: request})
        try:
            done = outcome(asking, container, answer_of(asking))
        except DoesNotFit as error:
            refused.append(str(error))
            continue
        having += done is not None
        if done is None:
            still.append(pending(asking, container))
    return _Pods(having, tuple(still), tuple(refused), tuple(own), tuple(waiting))


def _counted(pods: _Pods) -> str:
    total = pods.having + len(pods.open) + len(pods.refused) + len(pods.own)
    if not total:
        return "no pod of it runs now"
    verb = "has" if pods.having == 1 else "have"
    if pods.having == total:
        return f"{total} running pod{'' if total == 1 else 's'} {verb} it"
    return f"{pods.having} of {total} running pods {verb} it"


def outcome(pod: Pod, name: str, former: ResizeAnswer | None) -> str | None:
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


def pending(pod: Pod, name: str) -> str:
    """How far an open request is."""
    who = f"container {quoted(name)} of {pod.key}"
    answer = answer_of(pod)
    if answer is None or answer.asked != digest(pod):
        return f"{who}: the scheduler has not answered yet; kubectl describe pod shows its Events"
    booked = held_size(pod, name)
    return (
        f"{who}: the scheduler has reserved {answer.sizes.get(name)}, the agent has booked "
        f"{booked or 'none of it yet'}; less memory waits until the program frees it (Event VcudaResizeWaits)"
    )


@dataclass(frozen=True, slots=True)
class AskedSize:
    """What was typed: the container, empty for the only one; hundredths of a card and a quantity of memory,
    None and empty where nothing was said. Neither means the size of the spec.
    """

    container: str
    cores: int | None
    memory: str

    @property
    def is_reset(self) -> bool:
        """True if the size of the spec is asked for."""
        return not self.cores and not self.memory

    @property
    def shown(self) -> str:
        """What was typed, for people."""
        return " and ".join(filter(None, (f"{self.cores} cores" if self.cores else "", self.memory)))

    def container_of(self, pod: Pod) -> str:
        """The container to resize. Raises RequestInvalid: none is named, and the pod has several."""
        if self.container:
            return self.container
        names = [c.name for c in pod.containers if c.is_part]
        who = f"pod {pod.key}" if pod.uid else "the template"
        if not names:
            raise RequestInvalid(
                f"{who} has no container with a part of a card, and nothing else changes its size"
            )
        if len(names) > 1:
            raise RequestInvalid(
                f"{who} has {len(names)} containers with a part of a card ({printable(', '.join(names))}): "
                "name one with --container"
            )
        return names[0]

    def written(self, before: str | None, container: str, given: Amount | None = None) -> str | None:
        """The annotation with this size: what was not typed stays as it was asked for ``before``, else as it
        was ``given`` for the workload's sake, else it is as in the spec. None if it then asks for nothing.
        """
        if self.is_reset:
            return with_size(before, container, {})
        try:
            asked = (read_wanted(before) if before else {}).get(container, WantedSize())
        except RequestInvalid:
            asked = WantedSize()
        if given is not None and asked == WantedSize():
            asked = WantedSize(given.cores, given.memory)
        size = {"cores": self.cores or asked.cores, "memory": self.memory or asked.memory}
        return with_size(before, container, {key: value for key, value in size.items() if value is not None})


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
    from gpu_manager.adapters.kube.changes import change_size, workload  # noqa: PLC0415  # as in log_in

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
    from gpu_manager.adapters.kube.changes import change_size, running_pod  # noqa: PLC0415  # as in log_in

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
