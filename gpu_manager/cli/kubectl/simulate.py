"""``kubectl vcuda simulate``: would these pods fit, how many nodes would it take, what if a node goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Annotated, Any

from gpu_manager.cli.files import Filenames, Files, chosen_files
from gpu_manager.cli.kubectl import cluster_view, service
from gpu_manager.cli.kubectl.names import read_target
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, log_in
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.constraints import HostResources
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.whatif.simulation import (
    MOST_ASKED,
    Forecast,
    PodPlacement,
    drain,
    nodes_needed,
    simulate,
    why_not,
)
from gpu_manager.runtime.arguments import Option

_SHOWN = 40  # pods shown
_NO_PODS = "no pod in these manifests asks for a part of a card"
_CLAIMS_ALONE = (
    "these pods use ResourceClaims, which kube-scheduler allocates: kubectl vcuda explain -f says where each "
    "would go now"
)
_SERVICE_CAVEAT = (
    "Judged by cards, quotas, host CPU and memory, cordons, taints, node selectors and node affinities. "
    "Volumes, and how pods spread or attract one another are not seen."
)


def command(
    files: Files = None,
    filenames: Filenames = None,
    like: Annotated[
        str, Option(help="Add nodes like this one, or like this profile, as long as pods find no room.")
    ] = "",
    drain_node: Annotated[
        str, Option("--drain", metavar="NODE", help="What if this node goes.", complete="nodes")
    ] = "",
    source: cluster_view.Source = "",
    admission: service.Admission = service.USUAL,
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Place pods on a copy of the cluster's books, and change nothing.

    FILEs: would these pods fit now, one after the other? Workloads count with their replicas.
    With --like: how many more nodes of that kind would they take? --drain: where would that node's pods go?
    The admission service chooses the nodes of FILEs, as it does for real pods. Where it cannot be asked, with
    --from, --like and --drain, the nodes are estimates: pods are packed here, and the output says so.
    Exit code: 0 all fit, 1 some do not, 2 bad input.

    Examples:
      kubectl vcuda simulate -f deployment.yaml
      kubectl vcuda simulate -f deployment.yaml --like node-1
      kubectl vcuda simulate --drain node-1
    """
    files = chosen_files(files, filenames) if files or filenames else []
    if bool(files) == bool(drain_node):
        raise RequestInvalid("give manifests of the pods to come, or --drain NODE")
    drain_node = read_target(drain_node, ("Node",), "--drain").name if drain_node else ""
    if drain_node and like:
        raise RequestInvalid("--like adds nodes for pods to come: it does not go with --drain")
    view = cluster_view.read_view(source, access)
    if drain_node:
        view.node(drain_node)
        found = _alone(drain(view.nodes, drain_node), "the service is not asked about --drain")
    else:
        pods = cluster_view.requested(files, view)
        claiming = 0 if "-" in files else cluster_view.pods_with_claims(files)
        if not pods:
            raise RequestInvalid(_CLAIMS_ALONE if claiming else _NO_PODS)
        if claiming:
            print(f"Not counted: {claiming} manifests whose pods use ResourceClaims.", file=sys.stderr)
        if like:
            kind = cluster_view.kind_of_node(like, view)
            needed = nodes_needed(view.nodes, [one.pod for one in pods], kind)
            found = _alone(needed, "the service is not asked about --like")
        else:
            found = _forecast(view, pods, "-" if source else admission, access)
    blocked = _blocked(view, drain_node) if drain_node else []
    by_claims = view.by_claims.get(drain_node, ())
    if printing.for_program:
        budgets = [asdict(one) for one in blocked]
        printing.emit({**_document(found), "budgets": budgets, "byClaims": list(by_claims)})
    else:
        _show(found, like, blocked, printing)
        if by_claims:
            print(printable(_leaving_by_claims(by_claims)))
        if view.waiting:
            print(f"Pods that wait already and are not counted: {view.waiting}.", file=sys.stderr)
        print(f"judged by {printable(found.by)}", file=sys.stderr)
        print(found.caveat, file=sys.stderr)
    return 1 if found.forecast.refused else 0


def _leaving_by_claims(pods: Sequence[str]) -> str:
    others = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return (
        f"{pods[0]}{others}: holds cards by ResourceClaims; where kube-scheduler would allocate them anew is "
        "not simulated"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A forecast, the cores that are free on open cards then, who judged, and whether nodes are estimates."""

    forecast: Forecast
    free_cores: int
    by: str
    estimate: bool

    @property
    def caveat(self) -> str:
        """What was not considered."""
        return cluster_view.CAVEAT if self.estimate else _SERVICE_CAVEAT


def _alone(forecast: Forecast, why: str) -> _Found:
    free = sum(node.free.cores for node in forecast.nodes)
    return _Found(forecast, free, f"this program; the nodes are estimates ({why})", estimate=True)


def _forecast(
    view: cluster_view.ClusterView, pods: Sequence[cluster_view.RequestedPod], admission: str, access: Access
) -> _Found:
    """The service's answer; where it cannot be asked, that of this program."""

    def here(why: str) -> _Found:
        return _alone(simulate(view.nodes, [one.pod for one in pods]), why)

    if admission == "-":
        return here("the service was not asked")
    if len(pods) > MOST_ASKED:
        return here(f"the service is not asked about more than {MOST_ASKED} pods")
    try:
        question, nowhere = _question(view, pods)
        with log_in(access) as login:
            answer = service.ask(login, admission, "/simulate", question)
    except service.Silent as why:
        return here(str(why))
    placements = (PodPlacement(s["pod"], s["node"], tuple(s["cards"])) for s in answer["placements"])
    refused = {r["pod"]: nowhere.get(r["pod"], r["reason"]) for r in answer["refused"]}
    forecast = Forecast(tuple(placements), refused, view.nodes)
    return _Found(forecast, answer["free_cores"], f"the admission service ({admission})", estimate=False)


def _question(
    view: cluster_view.ClusterView, pods: Sequence[cluster_view.RequestedPod]
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """What the service is asked, and why pods that no node admits fit nowhere."""
    nowhere: dict[str, str] = {}
    groups: list[Mapping[str, Any]] = []
    for _, alike in groupby(pods, lambda one: (one.pod.shape, one.manifest)):
        several = list(alike)
        first = several[0].pod
        nodes = [node.name for node in view.nodes if not node.constraints.bars(first.constraints)]
        if not nodes:
            nowhere |= dict.fromkeys((one.pod.name for one in several), why_not(view.nodes, first))
        names = [one.pod.name.partition("/")[2] for one in several]
        groups.append(
            {"manifest": several[0].manifest, "names": names, "nodes": nodes, "host": _parts(first.host)}
        )
    return {"pods": groups, "free": {node.name: _parts(node.host) for node in view.nodes}}, nowhere


def _parts(host: HostResources) -> list[int]:
    return [host.cpu, host.memory, host.pods]


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A PodDisruptionBudget that allows fewer disruptions than it covers pods of the node."""

    name: str
    allowed: int
    pods: int


def _blocked(view: cluster_view.ClusterView, node: str) -> list[_Blocked]:
    leaving = [uid for uid, running in view.node(node).pods.items() if not running.stays]
    counted = [_Blocked(b.name, b.allowed, sum(uid in b.pods for uid in leaving)) for b in view.budgets]
    return [one for one in counted if one.pods > one.allowed]


def _show(found: _Found, like: str, blocked: Sequence[_Blocked], printing: Printing) -> None:
    forecast = found.forecast
    if forecast.placements:
        rows = [(s.pod, s.node, _cards(s.cards)) for s in forecast.placements[:_SHOWN]]
        print(printing.columns(("POD", "NODE (ESTIMATE)" if found.estimate else "NODE", "CARDS"), rows))
        if len(forecast.placements) > _SHOWN:
            print(f"and {len(forecast.placements) - _SHOWN} more; -o json shows all")
    for line in (*_together(forecast.ended), *_together(forecast.refused)):
        print(printable(line))
    total = len(forecast.placements) + len(forecast.refused)
    print(f"{len(forecast.placements)} of {total} pods fit; cores booked then: {_booked(found)}")
    if like:
        print(printable(_needed(forecast, like)))
    for one in blocked:
        said = f"PodDisruptionBudget {one.name} lets {one.allowed} of {one.pods} of these pods go now"
        print(printable(f"{said}: kubectl drain waits until it lets more"))


def _needed(forecast: Forecast, like: str) -> str:
    if forecast.refused and not forecast.added:
        return f"nodes like {like} would not help"
    if not forecast.added:
        return f"no more node like {like} is needed"
    nodes = (
        f"1 more node like {like} is"
        if forecast.added == 1
        else f"{forecast.added} more nodes like {like} are"
    )
    return f"{nodes} needed, in this order of arrival"


def _together(refused: Mapping[str, str]) -> Iterator[str]:
    """A line for all pods that are refused for the same reason."""
    pods: dict[str, list[str]] = {}
    for pod, why in refused.items():
        pods.setdefault(why, []).append(pod)
    for why, names in pods.items():
        yield f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}"


def _cards(indices: tuple[int, ...]) -> str:
    return ", ".join(map(str, indices))


def _booked(found: _Found) -> str:
    there = sum(CORES_PER_CARD for node in found.forecast.nodes for s in node.cards if s.open)
    return (
        f"{(there - found.free_cores) / there:.1%} of {there // CORES_PER_CARD} cards" if there else "no card"
    )


def _document(found: _Found) -> Mapping[str, Any]:
    forecast = found.forecast
    return {
        "placements": [{"pod": s.pod, "node": s.node, "cards": list(s.cards)} for s in forecast.placements],
        "refused": [{"pod": pod, "reason": why} for pod, why in forecast.refused.items()],
        "ended": [{"pod": pod, "reason": why} for pod, why in forecast.ended.items()],
        "added": forecast.added,
        "estimate": found.estimate,
        "answeredBy": found.by,
        "caveat": found.caveat,
    }
