"""The scheduler extender's JSON: kube-scheduler's Go names exactly, null where Go has null.

Requests are read whatever the case of their names (Go does, and the predecessor's schedulers wrote them
small); answers carry the Go names. The pod inside is read by the domain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.pod import PodUid

Obj = Mapping[str, Any]
LARGEST_BODY: Final = 64 << 20  # bytes: 5,000 full Node objects are some 50 MB


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod and the nodes in question: ``names`` always, ``nodes`` too where the caller sent the objects.

    ``listed`` is the NodeList as it came, to be answered in kind.
    """

    pod: Obj
    names: tuple[str, ...]
    nodes: tuple[Obj, ...] | None = None
    listed: Obj | None = None


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A pod, and the node that the scheduler has chosen."""

    name: str
    namespace: str
    uid: PodUid
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would have to leave a node, and how many of them break a disruption budget."""

    pods: tuple[PodUid, ...]
    violations: int


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod, and for each node whom the scheduler would evict; the lists may be empty."""

    pod: Obj
    victims: Mapping[str, Victims]


def read_args(body: bytes) -> ExtenderArgs:
    """Filter's and prioritize's question. Raises RequestInvalid: it is none."""
    data = _object(body, "ExtenderArgs")
    pod = _map(data.get("pod"), "Pod")
    names, listed = data.get("nodenames"), data.get("nodes")
    if names is not None:
        return ExtenderArgs(pod, _names(names))
    if listed is None:
        return ExtenderArgs(pod, ())
    items = _map(listed, "Nodes").get("items")
    nodes = tuple(_map(item, "a node") for item in _list(items, "Nodes.items"))
    offered = tuple(
        _text(_map(node.get("metadata"), "metadata").get("name"), "a node's name") for node in nodes
    )
    return ExtenderArgs(pod, offered, nodes, listed)


def read_binding(body: bytes) -> BindingArgs:
    """Bind's question. Raises RequestInvalid: it is none."""
    data = _object(body, "ExtenderBindingArgs")
    found = {key: _text(data.get(key.lower()), key) for key in ("PodName", "PodNamespace", "PodUID", "Node")}
    if empty := [key for key, value in found.items() if not value]:
        raise RequestInvalid(f"ExtenderBindingArgs has no {', '.join(empty)}")
    return BindingArgs(found["PodName"], found["PodNamespace"], PodUid(found["PodUID"]), found["Node"])


def read_preemption(body: bytes) -> PreemptionArgs:
    """Preempt's question, in either form. Raises RequestInvalid: it is none."""
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
    for item in _list(entry.get("pods"), "Pods"):
        pod = _map(item, "a victim")
        uid = _lower(pod).get("uid") if meta else _map(pod.get("metadata"), "metadata").get("uid")
        uids.append(PodUid(_text(uid, "a victim's UID")))
    count = entry.get("numpdbviolations")
    return Victims(tuple(uids), count if isinstance(count, int) and not isinstance(count, bool) else 0)


def filter_answer(
    args: ExtenderArgs, fitting: Sequence[str], failed: Mapping[str, str], lasting: Mapping[str, str]
) -> bytes:
    """ExtenderFilterResult in the form in which the question came."""
    nodes: Obj | None = None
    if args.nodes is not None:
        fits = frozenset(fitting)
        items = [node for node, name in zip(args.nodes, args.names, strict=True) if name in fits]
        nodes = {**(args.listed or {}), "items": items}
    names = _json_list(fitting) if args.nodes is None else b"null"
    left_out = b'"FailedNodes":%b,"FailedAndUnresolvableNodes":%b' % (
        _json_reasons(failed),
        _json_reasons(lasting),
    )
    return b'{"Nodes":%b,"NodeNames":%b,%b,"Error":""}' % (_json(nodes), names, left_out)


def filter_error(error: str) -> bytes:
    """ExtenderFilterResult that fails the pod."""
    return _json(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": error,
        }
    )


def priority_answer(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """HostPriorityList: a bare list."""
    # Put together by hand: a dict a node would cost more than all the rest of the answer.
    if not names:
        return b"[]"
    ends = [f'","Score":{score}}},{{"Host":"' for score in range(max(scores) + 1)]
    parts = [""] * (2 * len(names))
    parts[::2] = names if _plain(names) else [encode_basestring(name)[1:-1] for name in names]
    parts[1::2] = map(ends.__getitem__, scores)
    parts[-1] = f'","Score":{scores[-1]}}}'
    return f'[{{"Host":"{"".join(parts)}]'.encode("utf-8", "replace")


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


def _json_list(texts: Sequence[str]) -> bytes:
    """As :func:`_json`; where no text needs an escape, as names do not, at a third of the cost."""
    if texts and _plain(texts):
        joined = '","'.join(texts)
        return f'["{joined}"]'.encode()
    return _json(list(texts))


def _plain(texts: Sequence[str]) -> bool:
    """True if JSON has all of them as they are."""
    joined = "".join(texts)
    return joined.isprintable() and "\\" not in joined and '"' not in joined


def _json_reasons(reasons: Mapping[str, str]) -> bytes:
    """As :func:`_json`; of thousands of nodes most have one of a few reasons, each written once."""
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
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestInvalid(f"{what} is {quoted(value)}, not a map")
    return value


def _list(value: object, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestInvalid(f"{what} is {quoted(value)}, not a list")
    return value


def _names(value: object) -> tuple[str, ...]:
    names = _list(value, "NodeNames")
    if set(map(type, names)) - {str}:
        raise RequestInvalid("NodeNames holds something that is no name")
    return tuple(names)


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestInvalid(f"{what} is {quoted(value)}, not a text")
    return value
