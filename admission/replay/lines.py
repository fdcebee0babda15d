"""The entries of a record: JSON objects, whose ``k`` says what they are. The format is number 1.

Each line of a file is an array of them: what was written at once, since encoding it so takes a third of the
time.

====== =======================================================================================================
ring   begins a segment: format, release, memory unit, smallest part of a card
pod    a pod under its number in this segment; what differs from number ``of``, if it has that
node   all that a node is built from, at a generation: only what differs from its last line; pods by number
names  names of nodes, which get the next numbers
epoch  the mix of requests and the stock of cards that costs follow from
filter, rank, bind: a decision, at a generation: input and answer
====== =======================================================================================================

kube-scheduler asks about nodes in another order for every pod: a question says the order of its nodes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeFacts
from admission.cluster.pod_view import PodView
from gpu_manager.domain.contract import OUR_PREFIX
from gpu_manager.domain.kube.constraints import OPEN
from gpu_manager.domain.kube.pod import MIRROR, Container, Pod
from gpu_manager.domain.records import changes, encode

FORMAT: Final = 1
Line = dict[str, Any]
Ints = npt.NDArray[np.int64]


_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_NARROW: Final = (1 << 16) - 1
_PRINTED: Final = bytes((value + ord("0")) % 256 for value in range(256))
_READ: Final = bytes((value - ord("0")) % 256 for value in range(256))
_UNREAD: Final = frozenset({"constraints", "said", "verdict", "gates", "pod"})
_UNREAD_OF_POD: Final = frozenset({"labels", "owner", "refused", "containers", "annotations"})
_UNREAD_OF_CONTAINER: Final = frozenset({"visible_devices", "runtime_id", "stuck", "claims"})


def text(entries: Sequence[Line]) -> bytes:
    """The line that holds these entries."""
    return _JSON.encode(entries).encode()


def whole(pod: PodView, containers: Sequence[Line]) -> Line:
    """The pod without what no judgement of the extender reads: its labels, its scheduler's words, others'
    annotations, and every value of an environment variable.
    """
    inner = encode(Pod, pod.pod, _UNREAD_OF_POD)
    inner["containers"] = containers
    if ours := _ours(pod.pod.annotations):
        inner["annotations"] = ours
    return {**encode(PodView, pod, _UNREAD), "pod": inner}


def differences(before: PodView, pod: PodView) -> Line:
    """What a pod's entry says, but for its containers, where another one has an earlier state of the pod."""
    was, now = before.pod, pod.pod
    inner = changes(Pod, was, now, _UNREAD_OF_POD)
    if was.annotations is not now.annotations and (ours := _ours(now.annotations)) != _ours(was.annotations):
        inner["annotations"] = ours
    return {**changes(PodView, before, pod, _UNREAD), "pod": inner}


def _ours(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(OUR_PREFIX) or key == MIRROR}


def containers_of(pod: Pod) -> list[Line]:
    """The pod's containers as its entry has them."""
    return [encode(Container, one, _UNREAD_OF_CONTAINER) for one in pod.containers]


def trimmed_facts(facts: NodeFacts) -> NodeFacts:
    """The facts without labels and taints, which kube-scheduler judges."""
    return replace(facts, constraints=OPEN, hardware=0)


def order(numbers: Ints) -> str:
    """The numbers of nodes in the order of a question, two bytes each, four if there are more."""
    wide = len(numbers) > 0 and int(numbers.max()) > _NARROW
    return ("w" if wide else "n") + base64.b64encode(
        numbers.astype("<u4" if wide else "<u2").tobytes()
    ).decode()


def of_order(found: str) -> list[int]:
    """The numbers of :func:`order`."""
    data = base64.b64decode(found[1:])
    numbers: list[int] = np.frombuffer(data, "<u4" if found[:1] == "w" else "<u2").tolist()
    return numbers


def packed(values: bytes) -> str | list[int]:
    """A small number for each node: value and count where all are equal, else a character for each."""
    if not values.strip(values[:1]):
        return [values[0], len(values)] if values else [0, 0]
    return values.translate(_PRINTED).decode()


def unpacked(found: str | Sequence[int]) -> bytes:
    """The bytes of :func:`packed`."""
    if isinstance(found, str):
        return found.encode().translate(_READ)
    return bytes([found[0]]) * found[1]
