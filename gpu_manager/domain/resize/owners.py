"""A size that a workload requests in its own metadata, for its running pods and for new ones.

``tencent.com/vcuda-resize`` on a Deployment, StatefulSet or DaemonSet, never in its template: a change of the
template would replace every pod. ``tencent.com/vcuda-template-size`` is written into a pod that was created
at its owner's size; it holds the template's size, so that the pod can return to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from gpu_manager.domain import contract
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resize.sizes import Sizes, WantedSize, read_wanted
from gpu_manager.domain.untrusted import text

KINDS: Mapping[str, str] = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
}
"""The kinds, all of group apps, and their resources."""


def workload_key(namespace: str, workload: str) -> str:
    """``namespace/kind/name``; ``workload`` as in :attr:`~gpu_manager.domain.kube.pod.Pod.workload`."""
    return f"{namespace}/{workload}"


def note_template(sizes: Sizes, owners: str) -> str:
    """The note in a pod that is created at the size of ``owners``, its owner's annotation."""
    containers = {n: {"cores": a.cores, "memory": a.memory} for n, a in sizes.items()}
    return json.dumps(
        {"v": contract.VERSION, "containers": containers, "of": _digest(owners)}, separators=(",", ":")
    )


def was_made_for_another(pod: Pod, owners: str) -> bool:
    """True if the pod was created at a size that its owner no longer requests; ``owners`` as below."""
    return contract.TEMPLATE_SIZE in pod.annotations and _made_at(pod) != _digest(owners)


def effective_request(pod: Pod, owners: str) -> str | None:
    """The resize request that counts for this pod: its own, else its owner's, else none.

    ``owners``: its owner's annotation, empty for none. A pod that was created at its owner's size returns to
    its template's once its owner requests nothing any more.
    """
    own = pod.annotations.get(contract.RESIZE)
    if own is not None:
        return own
    template = _template_sizes(pod)
    if template is None:
        return owners or None
    if not owners:
        return _written(template)
    if contract.RESIZED not in pod.annotations and _made_at(pod) == _digest(owners):
        return None  # it was created at that size
    try:
        wanted = read_wanted(owners)
    except RequestInvalid:
        return owners  # no pod follows it
    return _written({**template, **{n: _over(size, template.get(n)) for n, size in wanted.items()}})


def _over(size: WantedSize, template: WantedSize | None) -> WantedSize:
    base = template or WantedSize()
    cores = base.cores if size.cores is None else size.cores
    return WantedSize(cores, base.memory if size.memory is None else size.memory)


def _template_sizes(pod: Pod) -> Mapping[str, WantedSize] | None:
    written = pod.annotations.get(contract.TEMPLATE_SIZE)
    try:
        return None if written is None else read_wanted(written)
    except RequestInvalid:
        return None


def _made_at(pod: Pod) -> str:
    data = contract.versioned_json(pod.annotations.get(contract.TEMPLATE_SIZE), _LONGEST)
    return text(data.get("of")) if data else ""


def _written(sizes: Mapping[str, WantedSize]) -> str:
    containers = {
        name: {k: v for k, v in (("cores", size.cores), ("memory", size.memory)) if v is not None}
        for name, size in sorted(sizes.items())
    }
    return json.dumps({"v": contract.VERSION, "containers": containers}, separators=(",", ":"))


def _digest(owners: str) -> str:
    return hashlib.sha256(owners.encode("utf-8", "replace")).hexdigest()[:16]


_LONGEST = 16 << 10  # characters
