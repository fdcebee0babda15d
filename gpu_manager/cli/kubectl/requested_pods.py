"""Input of what-if commands: pods that manifests would create, and nodes of a given kind."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gpu_manager.adapters.manifests import Manifest, read_manifests
from gpu_manager.cli.files import load, shown
from gpu_manager.cli.kubectl.cluster_view import ClusterView, PodDetails, requested_pod
from gpu_manager.cli.pod_templates import drafted_pod
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.kube.constraints import DAEMONS
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.domain.whatif.simulation import SimNode, SimPod

_MOST_PODS: Final = 100_000


class RequestedPod(NamedTuple):
    """A pod to come, and the core/v1 Pod of the manifest that would create it."""

    pod: SimPod
    manifest: Mapping[str, Any]


def requested(files: Sequence[str], view: ClusterView) -> list[RequestedPod]:
    """The pods that manifests would create, one for each replica. Raises RequestInvalid."""
    found: list[RequestedPod] = []
    for name in files:
        for manifest in load(name, read_manifests):
            try:
                found += _made(manifest, view, _MOST_PODS - len(found))
            except RequestInvalid as error:
                who = printable(f"{shown(name)}: {manifest.kind} {manifest.namespace}/{manifest.name}")
                raise RequestInvalid(f"{who}: {error}") from error
    return found


def pods_with_claims(files: Sequence[str]) -> int:
    """Number of manifests whose pods use ResourceClaims and no extended resource. Raises RequestInvalid."""
    found = (manifest for name in files for manifest in load(name, read_manifests))
    return sum(one.pod is not None and _only_claims(one) for one in found)


def _only_claims(manifest: Manifest) -> bool:
    pod = mapping(manifest.pod)
    uses = bool(mapping(pod.get("spec")).get("resourceClaims"))
    return uses and not drafted_pod(pod, manifest.namespace, manifest.name)[0].asks


def _made(manifest: Manifest, view: ClusterView, most: int) -> Iterator[RequestedPod]:
    """The pods of one object that ask for cards."""
    if manifest.pod is None:
        return
    details = PodDetails.of(manifest.pod)
    draft, _ = drafted_pod(manifest.pod, manifest.within(view.namespace), manifest.name)
    if not draft.asks:
        return
    pod = requested_pod(_ranked(draft, mapping(manifest.pod.get("spec")), view), view.unit, details)
    meta = mapping(manifest.pod.get("metadata"))
    made = {**manifest.pod, "metadata": {**meta, "namespace": draft.namespace, "name": draft.name}}
    if manifest.kind == "DaemonSet":
        yield from (RequestedPod(one, made) for one in _one_each(pod, view))
        return
    if manifest.copies > most:
        raise RequestInvalid(f"more than {_MOST_PODS} pods in all")
    for copy in range(manifest.copies):
        yield RequestedPod(_copy(pod, f"{pod.name}-{copy}" if manifest.copies > 1 else pod.name), made)


def _copy(pod: SimPod, name: str) -> SimPod:
    uid = PodUid(uuid.uuid4().hex)
    return replace(pod, uid=uid, name=name, request=replace(pod.request, uid=uid))


def _one_each(pod: SimPod, view: ClusterView) -> Iterator[SimPod]:
    """Pods of a DaemonSet: one for every node it is allowed on, cordoned and not-ready nodes included."""
    constraints = replace(pod.constraints, tolerations=(*pod.constraints.tolerations, *DAEMONS))
    for node in view.nodes:
        if not node.constraints.bars(constraints):
            yield replace(_copy(pod, f"{pod.name}-{node.name}"), constraints=constraints.only(node.name))


def _ranked(pod: Pod, spec: Mapping[str, Any], view: ClusterView) -> Pod:
    """The pod with the priority of its class, as the API server would set it."""
    if spec.get("priority") is not None:
        return pod
    name = text(spec.get("priorityClassName"))
    if name and name not in view.priorities:
        print(
            f"{pod.key}: priority class {quoted(name)} is not known here: judged with priority 0",
            file=sys.stderr,
        )
    return replace(pod, priority=view.priorities.get(name, 0))


def kind_of_node(name: str, view: ClusterView) -> SimNode:
    """An empty node like one of the cluster's, or like a simulated profile. Raises RequestInvalid."""
    from gpu_manager.adapters import profiles  # noqa: PLC0415  # rarely asked for

    like = next((node for node in view.nodes if node.name == name), None)
    if like is not None:
        cards = tuple(CardState(state.card) for state in like.cards)
        books = Ledger((s.card for s in cards), view.unit)
        return SimNode(
            name, cards, like.topology, books, constraints=like.constraints, host=view.hosts.new(name)
        )
    if name not in profiles.names():
        nodes = ", ".join(node.name for node in view.nodes[:10]) or "none"
        kinds = ", ".join(profiles.names())
        raise RequestInvalid(f"--like is {quoted(name)}: use a node ({nodes}) or a profile ({kinds})")
    profile = profiles.load(name)
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), k.model, k.memory, k.reserved, k.numa, mig=k.mig))
        for i, k in enumerate(profile.cards)
    )
    return SimNode(name, states, profile.topology, Ledger((s.card for s in states), view.unit))
