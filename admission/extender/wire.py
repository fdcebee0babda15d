"""The scheduler extender's JSON: kube-scheduler's Go names exactly, null where Go has null.

Requests are read regardless of the case of their names (as Go does, and the predecessor's schedulers wrote
them in lower case); answers have the Go names. The domain reads the pod inside. A scheduler asks next about
the node names that filter has just offered, so these are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from json.encoder import encode_basestring
from operator import add
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import strict_list, strict_mapping, strict_text


class NodeNames(tuple[str, ...]):  # noqa: SLOT001 - what is worked out lies in its __dict__
    """Names in the order of a question."""

    @cached_property
    def plain(self) -> bool:
        """True if no name needs an escape in JSON."""
        joined = "".join(self)
        return joined.isprintable() and "\\" not in joined and '"' not in joined

    @cached_property
    def json(self) -> bytes:
        """The names as a JSON array; where none needs an escape, at a third of the cost."""
        if self and self.plain:
            joined = '","'.join(self)
            return f'["{joined}"]'.encode()
        return f"[{','.join(map(encode_basestring, self))}]".encode("utf-8", "replace")

    def least(self, places: npt.NDArray[np.int64]) -> int:
        """Of these places (at least one), the first one with the least name."""
        return int(min(places.tolist(), key=self.__getitem__))

    def among(self, chosen: bytes) -> NodeNames:
        """The names whose byte is not 0."""
        if 0 not in chosen:
            return self
        found = NodeNames(compress(self, chosen))
        if self.plain:
            found.plain = True
        return found


class LastQuestion:
    """What need not be parsed again: a scheduler asks twice about each pod, the second time about the nodes
    that it was offered.

    ``head`` is the text before the names in the last question, and the object parsed from it; ``offered`` the
    last answer of filter.
    """

    head: tuple[bytes, Mapping[str, Any]] | None = None
    offered: NodeNames | None = None

    def find(self, text: bytes) -> NodeNames | None:
        """The names in this JSON array, if they are those that were offered."""
        return self.offered if self.offered is not None and self.offered.json == text else None


Obj = Mapping[str, Any]
_NAMES_LAST: Final = b',"NodeNames":['
_SCORED: Final = [f'","Score":{score}}}' for score in range(11)]
LARGEST_BODY: Final = 64 << 20  # bytes: 5,000 full Node objects are some 50 MB


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod and its candidate nodes: ``names`` always, ``nodes`` too if the caller sent the objects.

    ``listed`` is the NodeList as it came, for an answer of the same form.
    """

    pod: Obj
    names: NodeNames
    nodes: tuple[Obj, ...] | None = None
    listed: Obj | None = None


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A pod, and the node chosen by the scheduler."""

    name: str
    namespace: str
    uid: PodUid
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from a node, and how many of them break a disruption budget."""

    pods: tuple[PodUid, ...]
    violations: int


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod, and for each node the pods that the scheduler would evict; the lists may be empty."""

    pod: Obj
    victims: Mapping[str, Victims]


def read_args(body: bytes, last: LastQuestion | None = None) -> ExtenderArgs:
    """Parse the body of filter or prioritize. Raises RequestInvalid: malformed.

    The pod of the ``last`` question is not parsed again, nor are the names that were offered for it, if they
    are last in the body, where kube-scheduler writes them.
    """
    if last is not None and (found := _as_last(body, last)) is not None:
        return found
    data = _object(body, "ExtenderArgs")
    pod = _map(data.get("pod"), "Pod")
    names, listed = data.get("nodenames"), data.get("nodes")
    if names is not None:
        return ExtenderArgs(pod, NodeNames(_names(names)))
    if listed is None:
        return ExtenderArgs(pod, NodeNames())
    items = _map(listed, "Nodes").get("items")
    nodes = tuple(_map(item, "a node") for item in strict_list(items, "Nodes.items"))
    offered = NodeNames(
        strict_text(_map(node.get("metadata"), "metadata").get("name"), "a node's name") for node in nodes
    )
    return ExtenderArgs(pod, offered, nodes, listed)


def _as_last(body: bytes, last: LastQuestion) -> ExtenderArgs | None:
    """Parse the body in two parts; None if it does not have that form or is malformed."""
    # A comma, a quotation mark and a letter: in JSON the mark begins a text, here a key of the object that
    # ends with the body.
    at = body.rfind(_NAMES_LAST)
    if at < 0 or not body.endswith(b"]}") or len(body) > LARGEST_BODY:
        return None
    text = body[at + len(_NAMES_LAST) - 1 : -1]
    names, head, before = last.find(text), body[:at], last.head
    try:
        data = before[1] if before is not None and before[0] == head else json.loads(head + b"}")
        if names is None:
            names = NodeNames(_names(json.loads(text)))
    except (ValueError, RecursionError, RequestInvalid):
        return None  # parsing the whole body finds the error
    if not isinstance(data, dict) or "nodenames" in (lowered := _lower(data)) or not data:
        return None
    last.head = head, data
    return ExtenderArgs(_map(lowered.get("pod"), "Pod"), names)


def read_binding(body: bytes) -> BindingArgs:
    """Parse the body of bind. Raises RequestInvalid: malformed."""
    data = _object(body, "ExtenderBindingArgs")
    found = {
        key: strict_text(data.get(key.lower()), key) for key in ("PodName", "PodNamespace", "PodUID", "Node")
    }
    if empty := [key for key, value in found.items() if not value]:
        raise RequestInvalid(f"ExtenderBindingArgs has no {', '.join(empty)}")
    return BindingArgs(found["PodName"], found["PodNamespace"], PodUid(found["PodUID"]), found["Node"])


def read_preemption(body: bytes) -> PreemptionArgs:
    """Parse the body of preempt, in either form. Raises RequestInvalid: malformed."""
    data = _object(body, "ExtenderPreemptionArgs")
    pod = _map(data.get("pod"), "Pod")
    meta, full = data.get("nodenametometavictims"), data.get("nodenametovictims")
    nodes = _map(meta if meta is not None else full, "NodeNameToMetaVictims")
    return PreemptionArgs(
        pod, {name: _victims(entry, meta=meta is not None) for name, entry in nodes.items()}
    )


def _victims(value: object, *, meta: bool) -> Victims:
    entry = _lower(_map(value, "victims"))
    uids: list[PodUid] = []
    for item in strict_list(entry.get("pods"), "Pods"):
        pod = _map(item, "a victim")
        uid = _lower(pod).get("uid") if meta else _map(pod.get("metadata"), "metadata").get("uid")
        uids.append(PodUid(strict_text(uid, "a victim's UID")))
    count = entry.get("numpdbviolations")
    return Victims(tuple(uids), count if isinstance(count, int) and not isinstance(count, bool) else 0)


def filter_answer(
    args: ExtenderArgs, fitting: NodeNames, failed: Mapping[str, str], lasting: Mapping[str, str]
) -> bytes:
    """ExtenderFilterResult in the form of the question."""
    nodes: Obj | None = None
    if args.nodes is not None:
        fits = frozenset(fitting)
        items = [node for node, name in zip(args.nodes, args.names, strict=True) if name in fits]
        nodes = {**(args.listed or {}), "items": items}
    names = fitting.json if args.nodes is None else b"null"
    left_out = b'"FailedNodes":%b,"FailedAndUnresolvableNodes":%b' % (
        _json_reasons(failed),
        _json_reasons(lasting),
    )
    return b'{"Nodes":%b,"NodeNames":%b,%b,"Error":""}' % (_json(nodes), names, left_out)


def filter_error(error: str) -> bytes:
    """ExtenderFilterResult with an error for the pod."""
    return _json(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": error,
        }
    )


def priority_answer(names: NodeNames, scores: Sequence[int] | npt.NDArray[np.uint8]) -> bytes:
    """HostPriorityList: a bare list. Scores from 0 to 10."""
    given = scores.tolist() if isinstance(scores, np.ndarray) else scores
    texts = names if names.plain else [encode_basestring(name)[1:-1] for name in names]
    joined = ',{"Host":"'.join(map(add, texts, map(_SCORED.__getitem__, given)))
    return f'[{{"Host":"{joined}]'.encode("utf-8", "replace") if names else b"[]"


def binding_answer(error: str) -> bytes:
    """ExtenderBindingResult; no error means bound."""
    return _json({"Error": error})


def preemption_answer(victims: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionResult, always in the Meta form."""
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in v.pods], "NumPDBViolations": v.violations}
        for name, v in victims.items()
    }
    return _json({"NodeNameToMetaVictims": nodes})


def _json_reasons(reasons: Mapping[str, str]) -> bytes:
    """Like :func:`_json`, but each distinct reason is encoded once: thousands of nodes have a few reasons."""
    ends = {text: f":{encode_basestring(text)}" for text in set(reasons.values())}
    text = ",".join([encode_basestring(name) + ends[why] for name, why in reasons.items()])
    return f"{{{text}}}".encode("utf-8", "replace")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _object(body: bytes, what: str) -> Obj:
    if len(body) > LARGEST_BODY:
        raise RequestInvalid(f"{what} has {len(body)} bytes: send node names (nodeCacheCapable: true)")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"{what} is not JSON: {str(error)[:200]}") from error
    return _lower(_map(data, what))


def _lower(value: Obj) -> Obj:
    return {str(key).lower(): entry for key, entry in value.items()}


def _map(value: object, what: str) -> Obj:
    return strict_mapping(value, what, "a map")


def _names(value: object) -> Sequence[str]:
    names = strict_list(value, "NodeNames")
    try:
        "".join(names)
    except TypeError as error:
        raise RequestInvalid("NodeNames holds something that is no name") from error
    return names
