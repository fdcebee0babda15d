"""``kubectl vcuda resize deployment/NAME``: a size in the workload's own metadata, and which pods follow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpu_manager.cli.kubectl.login import Login
from gpu_manager.cli.kubectl.resize_outcome import outcome, pending
from gpu_manager.cli.kubectl.resize_size import AskedSize
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.pod import Pod, parse_pod
from gpu_manager.domain.resize.owners import KINDS, effective_request
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.untrusted import mapping, text

PODS: Final = ("", "po", "pod", "pods")
"""How people write the kind of a pod."""

_LOOK_SECONDS: Final = 0.5
_MOST_TOLD: Final = 10  # pods by name; a workload may have thousands
_SHORT: Final = {"deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet"}
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """What was written, and of each pod that does not have it why. ``is_refused``: one has no room for it."""

    written: str
    others: tuple[str, ...] = ()
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class _Pods:
    """The running pods of a workload, by what became of its size."""

    having: int = 0
    open: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


def workload_kind(kind: str) -> str:
    """One of :data:`KINDS`, as people write it. Raises RequestInvalid."""
    short = _SHORT.get(kind.lower(), kind).lower()
    known = next((k for k in KINDS if short in (k.lower(), KINDS[k])), None)
    if known is None:
        kinds = ", ".join(k.lower() for k in KINDS)
        raise RequestInvalid(f"{quoted(kind)} has no size of its own: use {kinds}, or a pod's name alone")
    return known


def resize_workload(login: Login, kind: str, name: str, size: AskedSize, wait: float) -> WorkloadOutcome:
    """Write the size into the workload's metadata, and look for ``wait`` seconds which pods follow.

    Raises:
        NodeUnready, RequestInvalid: it was not written.
    """
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.resize import change_size, pods_of  # noqa: PLC0415  # as above

    def change(there: Mapping[str, Any]) -> str | None:
        template = parse_pod(mapping(mapping(there.get("spec")).get("template")))
        return size.written(_request(there), size.container_of(template))

    ends = time.monotonic() + wait
    there = change_size(login.connection, kind, login.namespace, name, change, wait)
    container = size.container_of(parse_pod(mapping(mapping(there.get("spec")).get("template"))))
    who = f"container {quoted(container)} of {kind} {login.namespace}/{name}"
    goes = "its pods go back to the template's size" if size.is_reset else size.shown
    try:
        while True:
            listed = pods_of(login.connection, there)
            pods = _by_outcome((pod for pod in listed if pod.workload == f"{kind}/{name}"), there, container)
            if not pods.open or time.monotonic() >= ends:
                break
            time.sleep(_LOOK_SECONDS)
    except NodeUnready as error:
        if isinstance(error, Refused) and error.code == _FORBIDDEN:  # it is written all the same
            return WorkloadOutcome(f"{who}: {goes}; running pods follow in place, as Events of each say")
        return WorkloadOutcome(f"{who}: {goes}; which pods follow cannot be seen: {error}")
    others = (*pods.refused, *pods.open, *pods.own)
    told = others[:_MOST_TOLD]
    more = (f"and {len(others) - len(told)} more",) if len(others) > len(told) else ()
    return WorkloadOutcome(
        f"{who}: {goes}; {_counted(pods)}, new ones start so", (*told, *more), bool(pods.refused)
    )


def _request(there: Mapping[str, Any]) -> str | None:
    return text(mapping(mapping(there.get("metadata")).get("annotations")).get(RESIZE)) or None


def _by_outcome(pods: Iterable[Pod], there: Mapping[str, Any], container: str) -> _Pods:
    having, still, refused, own = 0, list[str](), list[str](), list[str]()
    for pod in sorted(pods, key=lambda pod: pod.key):
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
    return _Pods(having, tuple(still), tuple(refused), tuple(own))


def _counted(pods: _Pods) -> str:
    total = pods.having + len(pods.open) + len(pods.refused) + len(pods.own)
    if not total:
        return "no pod of it runs now"
    verb = "has" if pods.having == 1 else "have"
    if pods.having == total:
        return f"{total} running pod{'' if total == 1 else 's'} {verb} it"
    return f"{pods.having} of {total} running pods {verb} it"
