"""The two annotations of a resize: the size that a user requests, and the scheduler's answer.

``tencent.com/vcuda-resize``, written by users:
``{"v":1,"containers":{"train":{"cores":50,"memory":"8Gi"}}}``. ``memory`` is bytes or a Kubernetes quantity;
omitted amounts are as in the pod's spec. ``tencent.com/vcuda-resized``, written by the scheduler: the sizes
that it has reserved for this pod, in bytes. The agent applies these, and the spec's to any container that the
answer does not name.

``tencent.com/vcuda-resize`` may stand on a Deployment, StatefulSet or DaemonSet too, for its running pods and
for new ones; never in its template: a change of the template would replace every pod.
``tencent.com/vcuda-template-size`` is written into a pod that was created at its owner's size; it holds the
template's size, so that the pod can return to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_manager.domain import contract
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.kube.several_cards import MOST_PARTS
from gpu_manager.domain.resources import CORES_PER_CARD, LARGEST_COUNT, Amount, parse_quantity
from gpu_manager.domain.untrusted import mapping, text

Sizes = Mapping[str, Amount]
"""Container → cores and bytes; the totals of a container with equal parts of several cards."""

EXAMPLE: Final = '{"v":1,"containers":{"train":{"cores":50,"memory":"8Gi"}}}'
_LONGEST: Final = 16 << 10  # characters of each annotation
_FIELDS: Final = frozenset({"cores", "memory"})


@dataclass(frozen=True, slots=True)
class WantedSize:
    """The requested size of one container: cores, bytes; None for the spec's amount."""

    cores: int | None = None
    memory: int | None = None

    def over(self, spec: Amount) -> Amount:
        """The complete size, with missing amounts from ``spec``."""
        return Amount(
            spec.cores if self.cores is None else self.cores,
            spec.memory if self.memory is None else self.memory,
        )


@dataclass(frozen=True, slots=True)
class ResizeAnswer:
    """The scheduler's answer: ``sizes`` that the pod with this UID may have now.

    ``asked`` is the digest of the answered request; ``refused`` is why the request is not ``sizes``.
    """

    pod: str
    asked: str
    sizes: Sizes = field(default_factory=dict)
    refused: str = ""


def read_wanted(written: str) -> Mapping[str, WantedSize]:
    """The requested sizes, by container.

    Raises:
        RequestInvalid: the annotation cannot be read; the text names the place.
    """
    data = contract.versioned_json(written, _LONGEST)
    if data is None:
        raise RequestInvalid(f"it is not JSON of version {contract.VERSION}")
    containers = data.get("containers")
    if not isinstance(containers, dict) or not containers:
        raise RequestInvalid("it names no container")
    return {name: _read_size(name, size) for name, size in containers.items()}


def digest(pod: Pod) -> str:
    """A digest of the pod's present request; empty if it has none."""
    written = pod.annotations.get(contract.RESIZE)
    return "" if written is None else hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:16]


def spec_sizes(pod: Pod, unit: int) -> Sizes:
    """The size in the spec of each container that can be resized: app containers and sidecars with a
    fraction of a card, or of each of several. ``unit`` is bytes of one unit of memory.
    """
    return {
        c.name: Amount(int(c.core), int(c.memory_units or 0) * unit)
        for c in pod.containers
        if c.core is not None and c.core.denominator == 1 and c.is_part and c.kind is not ContainerKind.INIT
    }


def with_size(written: str | None, container: str, size: Mapping[str, object]) -> str | None:
    """The value of :data:`~gpu_manager.domain.contract.RESIZE` with ``size`` (``cores``, ``memory``, both or
    none) for the container and the others unchanged; None if nothing is requested then. An unreadable
    annotation counts as empty.
    """
    try:
        before = {} if written is None else read_wanted(written)
    except RequestInvalid:
        before = {}
    others: dict[str, Mapping[str, object]] = {
        n: {k: v for k, v in (("cores", s.cores), ("memory", s.memory)) if v is not None}
        for n, s in before.items()
        if n != container
    }
    asked = {**others, **({container: size} if size else {})}
    return json.dumps({"v": contract.VERSION, "containers": asked}, separators=(",", ":")) if asked else None


def encode_answer(answer: ResizeAnswer) -> str:
    """The value of :data:`~gpu_manager.domain.contract.RESIZED`."""
    return json.dumps(
        {
            "v": contract.VERSION,
            "pod": answer.pod,
            "asked": answer.asked,
            "containers": {n: {"cores": a.cores, "memory": a.memory} for n, a in answer.sizes.items()},
            **({"refused": answer.refused} if answer.refused else {}),
        },
        separators=(",", ":"),
    )


def answer_of(pod: Pod) -> ResizeAnswer | None:
    """The scheduler's answer on the pod; None if there is none that is readable and for this pod."""
    data = contract.versioned_json(pod.annotations.get(contract.RESIZED), _LONGEST)
    if data is None or data.get("pod") != pod.api_uid:
        return None
    try:
        sizes = {n: _answered(mapping(size)) for n, size in mapping(data.get("containers")).items()}
    except RequestInvalid:
        return None
    return ResizeAnswer(pod.api_uid, text(data.get("asked")), sizes, text(data.get("refused")))


def _read_size(name: str, size: object) -> WantedSize:
    if not isinstance(size, dict) or not size or not _FIELDS.issuperset(size):
        raise RequestInvalid(f"container {quoted(name)} is not cores, memory or both")
    return WantedSize(
        None if "cores" not in size else _cores(name, size["cores"]),
        None if "memory" not in size else _memory(name, size["memory"]),
    )


def _answered(size: Mapping[str, Any]) -> Amount:
    cores, memory = _cores("", size.get("cores")), _memory("", size.get("memory"))
    if not 0 < cores < MOST_PARTS * CORES_PER_CARD or not 0 < memory <= LARGEST_COUNT:
        raise RequestInvalid("not a fraction")
    return Amount(cores, memory)


def _cores(name: str, value: object) -> int:
    if type(value) is not int:
        raise RequestInvalid(f"container {quoted(name)}: cores is {quoted(value)}, not a whole number")
    return value


def _memory(name: str, value: object) -> int:
    try:
        quantity = parse_quantity(value)
    except RequestInvalid as error:
        raise RequestInvalid(f"container {quoted(name)}: memory is {error}") from error
    if quantity.denominator != 1:
        raise RequestInvalid(f"container {quoted(name)}: memory is {quoted(value)}, not whole bytes")
    return int(quantity)


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
