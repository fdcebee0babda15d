"""The lines of a record: JSON objects, whose ``k`` says what they are. The format is number 1.

====== =======================================================================================================
ring   begins a segment: format, release, memory unit, smallest part of a card
pod    a pod under its number in this segment; what differs from number ``of``, if it has that
node   all that a node is built from, at a generation: only what differs from its last line; pods by number
names  names of nodes, which get the next numbers
epoch  the mix of requests and the stock of cards that costs follow from
filter, rank, bind: a decision, at a generation: input and answer
====== =======================================================================================================

Lists over nodes are runs, for a scheduler asks about nodes in the same order again and again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import NodeFacts
from admission.cluster.pod_view import PodView
from gpu_manager.domain.contract import OUR_PREFIX
from gpu_manager.domain.kube.constraints import ANYWHERE, OPEN
from gpu_manager.domain.kube.pod import MIRROR, Container, Pod
from gpu_manager.domain.records import changes, encode

FORMAT: Final = 1
Line = dict[str, Any]
Ints = npt.NDArray[np.int64]


_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_FEW: Final = 2048  # nodes: to compress less would cost more than it saves
_PRINTED: Final = bytes((value + ord("0")) % 256 for value in range(256))
_READ: Final = bytes((value - ord("0")) % 256 for value in range(256))
_UNREAD: Final = frozenset({"constraints", "said", "verdict", "gates", "pod"})
_UNREAD_OF_POD: Final = frozenset({"labels", "owner", "refused", "containers", "annotations"})


def text(line: Line) -> bytes:
    """The line as it is written."""
    return _JSON.encode(line).encode()


def trimmed(pod: PodView) -> PodView:
    """The pod without what no judgement of the extender reads: its labels, its scheduler's words, others'
    annotations, and every value of an environment variable.
    """
    plain = pod.pod
    small = replace(
        plain,
        annotations=_ours(plain.annotations),
        labels={},
        containers=_containers(plain),
        owner="",
        refused="",
    )
    return replace(pod, pod=small, constraints=ANYWHERE, said="", verdict=0, gates=())


def differences(before: PodView, pod: PodView) -> Line:
    """What a pod's line says where another line has an earlier state of the pod."""
    was, now = before.pod, pod.pod
    inner = changes(Pod, was, now, _UNREAD_OF_POD)
    if was.containers is not now.containers and was.containers != now.containers:
        inner["containers"] = encode(tuple[Container, ...], _containers(now))
    if was.annotations is not now.annotations and (ours := _ours(now.annotations)) != _ours(was.annotations):
        inner["annotations"] = ours
    return {**changes(PodView, before, pod, _UNREAD), "pod": inner}


def _ours(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(OUR_PREFIX) or key == MIRROR}


def _containers(pod: Pod) -> tuple[Container, ...]:
    return tuple(replace(c, visible_devices="", runtime_id="", stuck="", claims=()) for c in pod.containers)


def trimmed_facts(facts: NodeFacts) -> NodeFacts:
    """The facts without labels and taints, which kube-scheduler judges."""
    return replace(facts, constraints=OPEN, hardware=0)


def runs(numbers: Sequence[int] | Ints) -> list[list[int]]:
    """Numbers as runs of consecutive ones: the first, and how many."""
    given = np.asarray(numbers, np.int64)
    if not len(given):
        return []
    begins = np.concatenate(([0], np.flatnonzero(np.diff(given) != 1) + 1))
    counts = np.diff(np.concatenate((begins, [len(given)])))
    return np.column_stack((given[begins], counts)).tolist()  # type: ignore[no-any-return]


def of_runs(found: Sequence[Sequence[int]]) -> Ints:
    """The numbers of :func:`runs`."""
    parts = [np.arange(first, first + count, dtype=np.int64) for first, count in found]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def packed(values: bytes) -> str | list[int]:
    """A small number for each node: value and count where all are equal, a character for each of a few, else
    compressed.
    """
    if not values.strip(values[:1]):
        return [values[0], len(values)] if values else [0, 0]
    if len(values) <= _FEW:
        return f"={values.translate(_PRINTED).decode()}"
    return base64.b64encode(zlib.compress(values, 1)).decode()


def unpacked(found: str | Sequence[int]) -> bytes:
    """The bytes of :func:`packed`."""
    if isinstance(found, str) and found.startswith("="):
        return found[1:].encode().translate(_READ)
    if isinstance(found, str):
        return zlib.decompress(base64.b64decode(found))
    return bytes([found[0]]) * found[1]
