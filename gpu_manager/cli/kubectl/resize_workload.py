"""``kubectl vcuda resize deployment/NAME``: a size in the workload's own metadata, and which pods follow.

Resizing a single pod (:mod:`gpu_manager.cli.kubectl.resize`) reads the requested size and reports the outcome
by the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.cluster.node_json import read_node, usual_unit
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import check_resize, held_size, past_limits
from gpu_manager.domain.resize.sizes import (
    ResizeAnswer,
    WantedSize,
    answer_of,
    digest,
    effective_request,
    read_wanted,
    was_made_for_another,
    with_size,
)
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.untrusted import annotations_of, at, text

_LOOK_SECONDS: Final = 0.5
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
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.resize import change_size, pods_of  # noqa: PLC0415  # as above

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
            time.sleep(_LOOK_SECONDS)
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
    from gpu_manager.adapters.kube.resize import namespace_limits  # noqa: PLC0415  # as in log_in

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
    from gpu_manager.adapters.kube.resize import delete_waiting  # noqa: PLC0415  # as in log_in

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
