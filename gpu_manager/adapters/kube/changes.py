"""Annotations that commands change without losing others' changes: sizes of running fractions, in pods and
their workloads; cards of nodes that operators close, open or forget.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from gpu_manager.adapters.kube.connection import CONFLICT, Connection, Refused, named_path, pods_path, segment
from gpu_manager.adapters.kube.reading import labelled_pods, list_all, read_object
from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resize.sizes import KINDS
from gpu_manager.domain.untrusted import mapping, mappings, text

_AWAY: Final = (429, 500, 502, 503, 504)  # 500: the API server could not ask the admission service
_PAUSE_SECONDS: Final = 0.5
_T = TypeVar("_T")
_TRIES: Final = 7  # before the last: a pod is written by kubelet, scheduler and agent at once while it starts


class Overtaken(NodeUnready):
    """The object has changed since it was read: read it again."""


def in_turn(step: Callable[[], _T], tries: int = _TRIES) -> _T:
    """Call ``step``, which reads an object and changes it as it was read; again where others have changed it
    in between, ``tries`` times before the last, whose :class:`Overtaken` is the caller's.
    """
    for _ in range(tries):
        with contextlib.suppress(Overtaken):
            return step()
    return step()


def running_pod(connection: Connection, namespace: str, name: str) -> Pod:
    """The pod's present object at the API server.

    Raises:
        NodeUnready: there is none, the caller may not read it, or the API server is away.
        RequestInvalid: it cannot be read.
    """
    return parse_pod(
        connection.request(f"read the pod {namespace}/{name}", "GET", named_path(namespace, name))
    )


def workload(connection: Connection, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
    """The present object of a Deployment, StatefulSet or DaemonSet (``kind`` as in :data:`KINDS`), or a Pod.

    Raises:
        RequestInvalid: there is none.
        NodeUnready: the caller may not read it, or the API server is away.
    """
    found = read_object(connection, kind, namespace, name)
    if found is None:
        raise RequestInvalid(f"no {kind} {quoted(name)} in namespace {quoted(namespace)}; -n names another")
    return found


def annotate_workload(
    connection: Connection,
    kind: str,
    there: Mapping[str, Any],
    annotations: Mapping[str, str | None],
    patience: float,
    *,
    dry_run: bool = False,
) -> Mapping[str, Any]:
    """Write annotations of a workload or pod as it was read; returns it then. ``patience`` and ``dry_run``
    are as in :func:`change_size`.

    Raises:
        Overtaken: it has changed since it was read.
        NodeUnready: it was refused, or nobody answers.
    """
    meta = mapping(there.get("metadata"))
    namespace, name = text(meta.get("namespace")), text(meta.get("name"))
    body = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "annotations": dict(annotations)}}
    what = f"change the size that {kind} {namespace}/{name} asks for"
    query = {"dryRun": "All"} if dry_run else {}
    return _patch(connection, what, _path(kind, namespace, name), body, patience, query)


def change_size(
    connection: Connection,
    kind: str,
    namespace: str,
    name: str,
    change: Callable[[Mapping[str, Any]], str | None],
    patience: float,
    *,
    dry_run: bool = False,
) -> Mapping[str, Any]:
    """Write the size that a workload or pod asks for in its own metadata; returns the object then.

    ``change`` makes the annotation, None for none, of the object as it was read. If another writer comes in
    between, it is read and made anew, so that two requests for two containers both stand. While the admission
    service is away, as during its upgrade, it is tried again for ``patience`` seconds. With
    ``dry_run`` the API server judges it and stores nothing.

    Raises:
        NodeUnready: it was refused, with the reasons of the admission service, or nobody answers.
    """

    def step() -> Mapping[str, Any]:
        there = workload(connection, kind, namespace, name)
        return annotate_workload(connection, kind, there, {RESIZE: change(there)}, patience, dry_run=dry_run)

    return in_turn(step)


def pods_of(connection: Connection, workload: Mapping[str, Any]) -> Iterator[Pod]:
    """The pods that the selector of a workload finds, and perhaps others of its namespace.

    Raises:
        NodeUnready: the caller may not list pods, or the API server is away.
    """
    for obj in labelled_pods(connection, workload):
        with contextlib.suppress(RequestInvalid):  # not of our making: it has no fraction that can be read
            yield parse_pod(obj)


def namespace_limits(connection: Connection, namespace: str) -> tuple[NamespaceLimits, tuple[Pod, ...]]:
    """The ResourceQuotas and LimitRanges of a namespace, and its pods; none that the caller may not list.

    Raises:
        NodeUnready: the API server is away.
    """
    pods: list[Pod] = []
    try:
        limits = limits_of(connection, namespace)
        if limits == NamespaceLimits([], []):
            return limits, ()
        listed = connection.request(f"list the pods of namespace {namespace}", "GET", pods_path(namespace))
    except Refused:
        return NamespaceLimits(), ()
    for obj in mappings(listed.get("items")):
        with contextlib.suppress(RequestInvalid):
            pods.append(parse_pod(obj))
    return limits, tuple(pods)


def limits_of(connection: Connection, namespace: str) -> NamespaceLimits:
    """The ResourceQuotas and LimitRanges of a namespace.

    Raises:
        NodeUnready: the caller may not list them, or the API server is away.
    """
    place = f"/api/v1/namespaces/{segment(namespace)}"
    found = (
        connection.request(f"list the {kind} of namespace {namespace}", "GET", f"{place}/{kind}")
        for kind in ("resourcequotas", "limitranges")
    )
    return NamespaceLimits(*(mappings(listed.get("items")) for listed in found))


def delete_waiting(connection: Connection, pod: Pod) -> bool:
    """Delete a pod that has no node, so that its workload makes it anew; False if it has one by now, or is
    gone.

    Raises:
        NodeUnready: the caller may not delete pods, or the API server is away.
    """
    if running_pod(connection, pod.namespace, pod.name).node:
        return False
    what, path = f"delete the pod {pod.key}, which waits", named_path(pod.namespace, pod.name)
    return connection.delete(what, path, {"uid": pod.api_uid})


def _patch(
    connection: Connection,
    what: str,
    path: str,
    body: Mapping[str, Any],
    patience: float | None = None,
    query: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """Write the annotations, for ``patience`` seconds while nobody judges them: again does no harm."""
    ends = time.monotonic() + (patience or 0.0)
    while True:
        try:
            return connection.request(what, "PATCH", path, query=query, body=body)
        except Refused as refusal:
            if refusal.code == CONFLICT:
                raise Overtaken(str(refusal)) from refusal
            if refusal.code not in _AWAY or patience is None:
                raise
            if time.monotonic() + _PAUSE_SECONDS > ends:
                raise NodeUnready(
                    f"{refusal}; tried for {patience:g} s. Is the admission service up? "
                    "`kubectl vcuda doctor` says what it lacks"
                ) from refusal
        time.sleep(_PAUSE_SECONDS)


def _path(kind: str, namespace: str, name: str) -> str:
    if kind == "Pod":
        return named_path(namespace, name)
    place = f"/apis/apps/v1/namespaces/{segment(namespace)}/{KINDS[kind]}"
    return f"{place}/{segment(name)}"


# Cards that operators close, open or forget: annotations, updated without losing concurrent changes.


def cordon(
    connection: Connection, node: str, uuids: Collection[CardUuid], *, close: bool
) -> frozenset[CardUuid]:
    """Close these cards to new shares, or open them again; returns all cards that are then closed.

    Raises:
        RequestInvalid: a card that the node's inventory does not show.
        NodeUnready: the API server refuses, or is away.
    """
    listed = frozenset(uuids)

    def change(closed: frozenset[CardUuid], shown: contract.Inventory | None) -> frozenset[CardUuid]:
        _known(node, uuids, shown, closed)
        return closed | listed if close else closed - listed

    return _change(connection, node, contract.CORDON, change)


def forget(connection: Connection, node: str, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
    """Mark vanished cards as gone for good, for the node's agent; returns all such marks of the node.

    Raises:
        RequestInvalid: a card that the node's inventory does not list as vanished.
        NodeUnready: the API server refuses, or does not answer.
    """

    def change(waiting: frozenset[CardUuid], shown: contract.Inventory | None) -> frozenset[CardUuid]:
        _known(node, uuids, shown, waiting)
        for state in shown.cards if shown else ():
            if state.card.uuid in uuids and not state.missing:
                raise RequestInvalid(
                    f"the driver of node {node} lists card {state.card.uuid}: only a card that has vanished "
                    "can be forgotten; to keep pods off this one, cordon it"
                )
        return waiting | frozenset(uuids)

    return _change(connection, node, contract.FORGET, change)


def _change(
    connection: Connection,
    node: str,
    key: str,
    change: Callable[[frozenset[CardUuid], contract.Inventory | None], frozenset[CardUuid]],
) -> frozenset[CardUuid]:
    """Change a list of cards in an annotation of the node; again if somebody else did so meanwhile."""
    path = f"/api/v1/nodes/{segment(node)}"

    def step() -> frozenset[CardUuid]:
        meta = connection.request(f"read the node {node}", "GET", path).get("metadata") or {}
        annotations = meta.get("annotations") or {}
        before = contract.decode_uuids(annotations.get(key))
        wanted = change(before, contract.decode_inventory(annotations.get(contract.INVENTORY)))
        if wanted != before:
            # null removes the annotation, where an empty value would stay.
            written = {key: contract.encode_uuids(wanted) or None}
            body = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "annotations": written}}
            _patch(connection, f"change {key} of {node}", path, body)
        return wanted

    return in_turn(step)


class CardPlace(NamedTuple):
    """The place of a card; ``at`` is its index, None if its node only lists it as closed."""

    uuid: CardUuid
    node: str
    at: int | None


def places_of_cards(connection: Connection) -> Sequence[CardPlace]:
    """Where each card is that a node publishes or still lists as closed: what a node says of a card decides
    for that node alone. Raises NodeUnready.
    """
    found: list[CardPlace] = []
    for node in list_all(connection, "list nodes", "/api/v1/nodes"):
        meta = mapping(node.get("metadata"))
        annotations = mapping(meta.get("annotations"))
        shown = contract.decode_inventory(annotations.get(contract.INVENTORY))
        name, closed = str(meta.get("name")), contract.decode_uuids(annotations.get(contract.CORDON))
        here = {s.card.uuid: s.card.index for s in (shown.cards if shown else ())}
        found += [CardPlace(uuid, name, at) for uuid, at in here.items()]
        found += [CardPlace(uuid, name, None) for uuid in sorted(closed - here.keys())]
    return found


def _known(
    node: str, uuids: Collection[CardUuid], shown: contract.Inventory | None, listed: frozenset[CardUuid]
) -> None:
    """Refuse a UUID that the node's inventory does not have; a listed card may always be taken off."""
    if shown is None:
        return
    there = [state.card.uuid for state in shown.cards]
    for uuid in uuids:
        if uuid not in there and uuid not in listed:
            raise RequestInvalid(
                f"node {node} has no card {uuid[:80]!r}; it has {', '.join(there) or 'none'}"
            )
