"""``kubectl vcuda simulate``: would these pods fit, how many nodes would it take, what if a node goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from gpu_manager.arguments import Option
from gpu_manager.cli.files import Filenames, Files, chosen_files
from gpu_manager.cli.kubectl import cluster_view, requested_pods
from gpu_manager.cli.kubectl.login import Context, Kubeconfig
from gpu_manager.cli.output import Form, Output, columns, emit, for_program
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.whatif.simulation import Forecast, drain, nodes_needed, simulate

_SHOWN = 40  # pods shown


def command(
    files: Files = None,
    filenames: Filenames = None,
    like: Annotated[
        str, Option(help="Add nodes like this one, or like this profile, as long as pods find no room.")
    ] = "",
    drain_node: Annotated[str, Option("--drain", metavar="NODE", help="What if this node goes.")] = "",
    source: cluster_view.Source = "",
    output: Form = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Place pods on a copy of the cluster's books, and change nothing.

    FILEs: would these pods fit now, one after the other? Workloads count with their replicas.
    With --like: how many more nodes of that kind would they take? --drain: where would that node's pods go?
    Exit code: 0 all fit, 1 some do not, 2 bad input.
    """
    files = chosen_files(files, filenames) if files or filenames else []
    if bool(files) == bool(drain_node):
        raise RequestInvalid("give manifests of the pods to come, or --drain NODE")
    if drain_node and like:
        raise RequestInvalid("--like adds nodes for pods to come: it does not go with --drain")
    view = cluster_view.read_view(source, kubeconfig, context)
    if drain_node:
        view.node(drain_node)
        forecast = drain(view.nodes, drain_node)
    else:
        pods = requested_pods.requested(files, view)
        if not pods:
            raise RequestInvalid("no pod in these manifests asks for a part of a card")
        forecast = (
            nodes_needed(view.nodes, pods, requested_pods.kind_of_node(like, view))
            if like
            else simulate(view.nodes, pods)
        )
    blocked = _blocked(view, drain_node) if drain_node else []
    if for_program(output):
        emit({**_document(forecast), "budgets": [asdict(one) for one in blocked]}, output)
    else:
        _show(forecast, like, blocked)
        if view.waiting:
            print(f"Pods that wait already and are not counted: {view.waiting}.", file=sys.stderr)
        print(cluster_view.CAVEAT, file=sys.stderr)
    return 1 if forecast.refused else 0


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


def _show(forecast: Forecast, like: str, blocked: Sequence[_Blocked]) -> None:
    if forecast.placements:
        rows = [(s.pod, s.node, _cards(s.cards)) for s in forecast.placements[:_SHOWN]]
        print(columns(("POD", "NODE", "CARDS"), rows))
        if len(forecast.placements) > _SHOWN:
            print(f"and {len(forecast.placements) - _SHOWN} more; -o json shows all")
    for line in (*_together(forecast.ended), *_together(forecast.refused)):
        print(printable(line))
    total = len(forecast.placements) + len(forecast.refused)
    print(f"{len(forecast.placements)} of {total} pods fit; cores booked then: {_booked(forecast)}")
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


def _booked(forecast: Forecast) -> str:
    there = sum(CORES_PER_CARD for node in forecast.nodes for s in node.cards if s.open)
    free = sum(node.free.cores for node in forecast.nodes)
    return f"{(there - free) / there:.1%} of {there // CORES_PER_CARD} cards" if there else "no card"


def _document(forecast: Forecast) -> Mapping[str, Any]:
    return {
        "placements": [{"pod": s.pod, "node": s.node, "cards": list(s.cards)} for s in forecast.placements],
        "refused": [{"pod": pod, "reason": why} for pod, why in forecast.refused.items()],
        "ended": [{"pod": pod, "reason": why} for pod, why in forecast.ended.items()],
        "added": forecast.added,
        "caveat": cluster_view.CAVEAT,
    }
