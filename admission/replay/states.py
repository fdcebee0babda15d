"""The lines of a record, and the states that its decisions were judged by, built from one segment's lines."""

from __future__ import annotations

import base64
import json
import secrets
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from admission.cluster.node_view import KeptFor, NodeFacts
from admission.cluster.nodes import OnNode
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.fragmentation_score import Epoch
from admission.extender.many_nodes import FITS, chosen
from admission.extender.node_rooms import NodeRooms
from admission.extender.wire import NodeNames, Victims
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.node_books import added
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    OUR_PREFIX,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
    RESIZE,
    TerminatingShare,
)
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.constraints import OPEN
from gpu_manager.domain.kube.evictions import DisruptionBudget
from gpu_manager.domain.kube.pod import MIRROR, Container, Pod, PodUid
from gpu_manager.domain.records import changes, decode, encode
from gpu_manager.domain.resize.sizes import ResizeAnswer
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.score.fragmentation import RollOutRoutine
from gpu_manager.domain.score.request_mix import Mix, Stock
from gpu_manager.domain.score.scorer import Scorer

# The entries of a record: JSON objects, whose `k` says what they are. The format is number 1. Each line of a
# file is an array of them: what was written at once, since encoding it so takes a third of the time.
#
# ring   begins a segment: format, release, memory unit, smallest part of a card, terms of the webhooks
# pod    a pod under its number in this segment; what differs from number `of`, if it has that
# node   all that a node is built from, at a generation: only what differs from its last line; pods by number
# names  names of nodes, which get the next numbers
# epoch  the mix of requests and the stock of cards that costs follow from
# filter, rank, bind, preempt, resize: one decision, its input and its answer, at a generation of the state
# gang: places that were sought for the members of a gang, and those that were found
# review: an answer of a webhook, with what its checks of the cluster's state returned
#
# kube-scheduler asks about nodes in another order for every pod: a question says the order of its nodes.


FORMAT: Final = 1
Line = dict[str, Any]
Numbers = npt.NDArray[Any]


PLAIN: Final = secrets.token_hex(16)  # nobody can have named anything so
_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_NARROW, _WIDE = np.dtype("<u2"), np.dtype("<u4")
_PRINTED: Final = bytes((value + ord("0")) % 256 for value in range(256))
_READ: Final = bytes((value - ord("0")) % 256 for value in range(256))
_UNREAD: Final = frozenset({"constraints", "said", "verdict", "gates", "pod"})
_UNREAD_OF_POD: Final = frozenset({"labels", "owner", "refused", "containers", "annotations"})
_PLACED: Final = (ALLOCATION, PREDICATE_NODE, PREDICATE_TIME, PREDICATE_INDEX)
_UNBOOKED: Final = (ASSIGNED, "false")  # as if it were absent
_UNREAD_OF_CONTAINER: Final = frozenset({"visible_devices", "runtime_id", "stuck", "claims"})


def text(entries: Sequence[Line], plain: Sequence[str] = ()) -> bytes:
    """The line that holds these entries. ``plain``: values that need no escape, in the order in which
    :data:`PLAIN` stands for them in the entries; the encoder would look at each of their characters twice.
    """
    parts = _JSON.encode(entries).split(PLAIN)
    return "".join(chain.from_iterable(zip(parts, (*plain, ""), strict=True))).encode()


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
    """This project's annotations, but for those that say where the pod lies: they have been read. A request
    for another size is judged by them.
    """
    read = () if RESIZE in annotations else _PLACED
    return {
        key: value
        for key, value in annotations.items()
        if (key.startswith(OUR_PREFIX) and not key.startswith(read) and (key, value) != _UNBOOKED)
        or key == MIRROR
    }


def victims_of(asked: Mapping[str, Victims]) -> list[Line]:
    """Pods to evict, by node."""
    return [
        {"node": name, "uids": list(victims.pods), "violations": victims.violations}
        for name, victims in asked.items()
    ]


def resize_answer(answer: ResizeAnswer) -> Line:
    """The answer to a request for another size, without the digest of the request."""
    sizes = {"sizes": encode(dict[str, Amount], answer.sizes)}
    return {**sizes, "refusal": answer.refused} if answer.refused else sizes


@dataclass(frozen=True, slots=True)
class RecordedBudget(DisruptionBudget):
    """A budget with the UIDs of the pods that it covers."""

    uids: frozenset[str] = frozenset()

    def selects(self, pod: Pod) -> bool:
        """See :class:`DisruptionBudget`."""
        return pod.uid in self.uids


def containers_of(pod: Pod) -> list[Line]:
    """The pod's containers as its entry has them."""
    return [encode(Container, one, _UNREAD_OF_CONTAINER) for one in pod.containers]


def trimmed_facts(facts: NodeFacts) -> NodeFacts:
    """The facts without labels and taints, which kube-scheduler judges."""
    return replace(facts, constraints=OPEN, hardware=0)


def width(count: int) -> np.dtype[Any]:
    """The type for the numbers of so many nodes: two bytes each, four if there are more."""
    return _NARROW if count <= 1 << 16 else _WIDE


def order(numbers: Numbers) -> str:
    """The numbers of nodes, of a type by :func:`width`, in the order of a question."""
    found = b2a_base64(numbers.tobytes(), newline=False).decode()
    return f"n{found}" if numbers.dtype == _NARROW else f"w{found}"


def of_order(found: str) -> list[int]:
    """The numbers of :func:`order`."""
    data = base64.b64decode(found[1:])
    numbers: list[int] = np.frombuffer(data, _WIDE if found[:1] == "w" else _NARROW).tolist()
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


class RecordedStates:
    """``turn`` is the generation of the state at present; ``rooms`` are cached results for its nodes.

    ``pseudonyms``: names were replaced, also in texts.
    """

    def __init__(self, ring: Line) -> None:
        """``ring``: the line that begins the segment."""
        self.pseudonyms = bool(ring.get("pseudonyms"))
        self.unit = int(ring.get("unit", DEFAULT_UNIT))
        self.minimum_cores = int(ring.get("minimum_cores", 1))
        self.terms = ring.get("terms", {})
        self.turn = int(ring.get("turn", 0))
        self.cluster = ClusterState(self.unit)
        self.rooms = NodeRooms()
        self._raw: dict[int, Line] = {}  # each pod's fields, by its number
        self._pods: dict[int, PodView] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._on: dict[str, OnNode] = {}
        self._reserved: dict[str, list[PodView]] = {}
        self._names: list[str] = []
        self._epochs: dict[int, Line] = {}
        self._epoch: tuple[int, Epoch] | None = None

    def take(self, line: Line) -> None:
        """Take in a line that is no decision. Raises RequestInvalid: it cannot be read."""
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestInvalid(f"a line of the kind {quoted(line['k'])} is malformed: {error!r}") from error

    def _take(self, line: Line) -> None:
        kind = line["k"]
        if kind == "pod":
            raw, base = line["v"], self._raw.get(line.get("of", 0), {})
            raw = self._raw[line["n"]] = {**base, **raw, "pod": {**base.get("pod", {}), **raw["pod"]}}
            self._pods[line["n"]] = decode(PodView, raw)
        elif kind == "names":
            self._names += line["add"]
        elif kind == "epoch":
            self._epochs[line["n"]] = line
        elif kind == "node":
            self._take_node(line)

    def pod(self, line: Line) -> PodView:
        """The pod that a decision is about."""
        return self._pods[line["pod"]]

    def names(self, line: Line) -> NodeNames:
        """The nodes that a decision was asked about."""
        if (offered := line.get("offered")) is None:
            return NodeNames(map(self._names.__getitem__, of_order(line["names"])))
        answer = offered["answer"]
        fits = unpacked(answer["fits"]) if "fits" in answer else chosen(unpacked(answer["codes"]), FITS)
        return self.names(offered).among(fits)

    def snapshot(self, line: Line) -> Snapshot:
        """The cluster by which a decision was judged."""
        found = self.cluster.snapshot()
        held = {pod.uid: name for name, pods in self._reserved.items() for pod in pods}
        namespace, claimed = self.pod(line).pod.namespace, line.get("claimed")
        if claimed is None:
            return replace(found, reserved=held)
        used, protected = ({namespace: decode(dict[str, Amount], one)} for one in claimed)
        return replace(
            found,
            reserved=held,
            used=added(found.used, used),
            protected=added(found.protected, protected),
        )

    def epoch(self, line: Line, routine: RollOutRoutine | None) -> Epoch:
        """The scorer that a decision was priced by."""
        number = line["epoch"]
        if self._epoch is None or self._epoch[0] != number:
            if number not in self._epochs:
                raise RequestInvalid("the prices that it was judged by are not in the record")
            known = self._epochs[number]
            mix, stock = decode(Mix, known["mix"]), decode(dict[str, Stock], known["stock"])
            self._epoch = number, Epoch(Scorer(mix, stock, routine=routine), self.rooms)
        return self._epoch[1]

    def _take_node(self, line: Line) -> None:
        name = line["name"]
        if line.get("gone"):
            self._facts.pop(name, None)
        elif "facts" in line:
            self._facts[name] = decode(NodeFacts, line["facts"])
        pods = [self._pods[number] for number in line["pods"]]
        on_node = OnNode(
            pods,
            line.get("cpu", 0),
            tuple(decode(TerminatingShare, one) for one in line.get("deleted", ())),
            tuple(decode(KnownClaim, one) for one in line.get("claims", ())),
            decode(KeptFor, line["kept"]) if "kept" in line else None,
            line.get("away", False),
        )
        self._build(name, on_node)
        self.turn = max(self.turn, line["turn"])

    def copy(self) -> RecordedStates:
        """An independent copy of the present state, in which :meth:`put` and :meth:`remove` change pods."""
        other = copy(self)
        other.cluster = self.cluster.copy()
        other._on, other._reserved = self._on.copy(), self._reserved.copy()  # noqa: SLF001  # its own class
        return other

    def put(self, node: str, pod: PodView) -> None:
        """The pod is counted on the node."""
        here = self._on[node]
        self._build(node, here._replace(pods=[*here.pods, pod]))

    def remove(self, uids: frozenset[PodUid]) -> None:
        """These pods are counted on no node."""
        for name, here in list(self._on.items()):
            if not uids.isdisjoint(pod.uid for pod in here.pods):
                self._build(name, here._replace(pods=[pod for pod in here.pods if pod.uid not in uids]))

    def _build(self, name: str, on_node: OnNode) -> None:
        self._on[name] = on_node
        self.cluster.rebuild({name: (self._facts.get(name), on_node)})
        self._reserved.pop(name, None)
        if held := [pod for pod in on_node.pods if pod.reserved and pod.pod.node == name]:
            self._reserved[name] = held
