"""``kubectl vcuda defrag``: the fewest pods that must move so that one fits, and the commands that move them.

The command prints and never acts. A controller replaces each pod that is deleted, and the best place of the
replacement is often the place that was just freed. So the plan first closes the cards that the waiting pod
needs, and opens them once the replacements are placed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from shlex import join
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl import cluster_view
from gpu_manager.cli.kubectl.names import WORKLOADS, NamedObject, is_file, read_target
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Namespace
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.card import CardState
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resources import format_bytes
from gpu_manager.domain.whatif.defragmentation import MOST_MOVES, DefragPlan, defragment
from gpu_manager.domain.whatif.simulation import SimNode, SimPod
from gpu_manager.runtime.arguments import Argument, Option

CLAIMS_UNPLANNED: Final = (
    "; for a pod with ResourceClaims nothing is planned: kube-scheduler allocates them, and "
    "kubectl vcuda explain says why it waits"
)


def command(
    target: Annotated[
        str,
        Argument(
            metavar="POD|KIND/NAME|FILE",
            help="A pod that waits, or a manifest; - reads standard input.",
            complete="pods",
        ),
    ] = "",
    filename: Annotated[
        str, Option("--filename", "-f", help="The manifest, as with kubectl; in place of the name.")
    ] = "",
    namespace: Namespace = "",
    moves: Annotated[int, Option(min=1, max=64, help="How many pods may move at most.")] = MOST_MOVES,
    source: cluster_view.Source = "",
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Print the smallest set of moves that makes room for a pod, with the cards before and after.

    Only pods that a controller makes anew are moved, none of higher priority, and none whose
    PodDisruptionBudget would be broken. Nothing is done: the commands that would do it are printed, and
    ending the pods named is yours to decide.
    Exit code: 0 there is a way, 1 there is none, 2 bad input.

    Examples:
      kubectl vcuda defrag train-0
      kubectl vcuda defrag -f job.yaml --moves 3
    """
    if bool(target) == bool(filename):
        raise RequestInvalid("name the pod, or its manifest: POD, KIND/NAME, FILE or -f FILE")
    manifest = filename or (target if is_file(target) else "")
    view = cluster_view.read_view(source, access, namespace)
    pod = _drafted(manifest, view) if manifest else _waiting(read_target(target, WORKLOADS, "POD"), view)
    plan = defragment(view.nodes, pod, view.budgets, moves)
    running = {one.key: one for one in view.pods}
    steps = commands(plan, running, pod.name, manifest, access.words)
    if printing.for_program:
        printing.emit({**_document(pod, plan), "commands": steps})
    else:
        _show(pod, plan, steps, printing)
        print(cluster_view.CAVEAT, file=sys.stderr)
    return 1 if plan.placement is None else 0


def _drafted(manifest: str, view: cluster_view.ClusterView) -> SimPod:
    pods = [one.pod for one in cluster_view.requested([manifest], view)]
    if len(pods) != 1:
        raise RequestInvalid(f"{printable(manifest)}: {len(pods)} pods that ask for cards; give one")
    return pods[0]


def _waiting(target: NamedObject, view: cluster_view.ClusterView) -> SimPod:
    named = [p for p in view.pods if target.is_of(p.name, p.workload, "")]
    named.sort(key=lambda p: (bool(p.node), p.name))  # one that waits, of a workload's pods
    found = next((p for p in named if p.namespace == view.namespace), None)
    if found is None:
        elsewhere = f"; there is one in {quoted(named[0].namespace)}: name it with -n" if named else ""
        where = f"in namespace {quoted(view.namespace)}"
        claims = CLAIMS_UNPLANNED if view.by_claims and not named else ""
        raise RequestInvalid(f"no pod {quoted(target.name)} that asks for cards {where}{elsewhere}{claims}")
    if found.node:
        raise RequestInvalid(f"pod {found.key} is on node {found.node} already: it waits for nothing")
    return cluster_view.requested_pod(found, view.unit, view.hosts.details.get(found.uid))


def _show(pod: SimPod, plan: DefragPlan, steps: Sequence[str], printing: Printing) -> None:
    if plan.placement is None:
        print(printable(f"{pod.name}: {plan.reason}"))
        return
    where = f"node {plan.placement.node}, {_cards(plan.placement.cards)}"
    if not plan.moves:
        print(printable(f"{pod.name} fits as things are: {where}; explain says what else holds it"))
        return
    least = "the fewest possible" if plan.proven else "fewer may be possible: not every set was tried"
    pods = "1 pod" if len(plan.moves) == 1 else f"{len(plan.moves)} pods"
    print(printable(f"{pod.name} would fit on {where} if {pods} moved ({least}):"))
    rows = [
        (m.pod, f"{m.source} {_cards(m.source_cards)}", f"{m.target} {_cards(m.target_cards)}")
        for m in plan.moves
    ]
    print(printing.columns(("POD", "FROM", "TO"), rows))
    changed = [pair for pair in zip(plan.before, plan.after, strict=True) if pair[0] is not pair[1]]
    before, after = (_picture(states) for states in zip(*changed, strict=True))
    for title, lines, others in (("before", before, after), ("after", after, before)):
        print(f"\n{title}:")
        for card, line in lines.items():
            if line != others[card]:
                print(printable(line))
    print("\nto do it:")
    print("\n".join(f"  {printable(step)}" for step in steps))
    print("\nNothing was done. If a step fails, open the cards again by the uncordon above.", file=sys.stderr)


def _cards(indices: Sequence[int]) -> str:
    return f"card{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _picture(changed: Sequence[SimNode]) -> Mapping[tuple[str, int], str]:
    """A line for each card: its free amount, and who holds the rest."""
    return {(s.name, state.card.index): _line(s, state) for s in changed for state in s.cards}


def _line(node: SimNode, state: CardState) -> str:
    free = node.ledger.free(state.card.uuid)
    names = dict.fromkeys(
        node.pods[a.pod].name if a.pod in node.pods else a.pod_key
        for a in node.ledger.holders(state.card.uuid)
    )
    closed = "" if state.open else " (closed)"
    return (
        f"  {node.name} card {state.card.index}{closed}: {free.cores} cores, "
        f"{format_bytes(max(0, free.memory))} free; {', '.join(names) or 'idle'}"
    )


def _document(pod: SimPod, plan: DefragPlan) -> Mapping[str, Any]:
    where = plan.placement
    return {
        "pod": pod.name,
        "placement": None if where is None else {"node": where.node, "cards": list(where.cards)},
        "moves": [
            {
                "pod": m.pod,
                "from": {"node": m.source, "cards": list(m.source_cards)},
                "to": {"node": m.target, "cards": list(m.target_cards)},
            }
            for m in plan.moves
        ],
        "proven": plan.proven,
        "reason": plan.reason,
        "caveat": cluster_view.CAVEAT,
    }


_PATIENCE: Final = "--timeout=5m"
_OF_STATEFUL_SET: Final = "statefulset.kubernetes.io/pod-name"
# Labels that one pod has and its replacement need not have.
_OF_ONE_POD: Final = (_OF_STATEFUL_SET, "apps.kubernetes.io/pod-index", "controller-uid")
_OF_A_TEMPLATE: Final = ("pod-template-hash", "batch.kubernetes.io/job-name", "job-name")


def commands(
    plan: DefragPlan, pods: Mapping[str, Pod], waiting: str, manifest: str = "", login: Sequence[str] = ()
) -> list[str]:
    """The command lines. ``pods`` are the running pods by ``namespace/name``, ``waiting`` is the pod to
    place, so named too, and ``manifest`` its file if it is not created. ``login`` are options for all.
    """
    return [join([*words, *login]) for words in _commands(plan, pods, waiting, manifest)]


def _commands(plan: DefragPlan, pods: Mapping[str, Pod], waiting: str, manifest: str) -> Iterator[list[str]]:
    where = plan.placement
    if where is None or not plan.moves:
        return
    cards = [
        str(state.card.uuid)
        for node in plan.before
        if node.name == where.node
        for state in node.cards
        if state.card.index in where.cards
    ]
    yield ["kubectl", "vcuda", "cordon", *cards]
    moved: dict[str, list[str]] = {}
    for move in plan.moves:
        namespace, _, name = move.pod.partition("/")
        moved.setdefault(namespace, []).append(name)
    for namespace, names in moved.items():
        yield ["kubectl", "-n", namespace, "delete", "pod", *names]
    waits = [wait for move in plan.moves for wait in _until_placed(pods[move.pod])]
    yield from (list(wait) for wait in dict.fromkeys(waits))
    yield ["kubectl", "vcuda", "uncordon", *cards]
    namespace, _, name = waiting.partition("/")
    if manifest:
        yield ["kubectl", "-n", namespace, "apply", "-f", manifest]
    else:
        yield ["kubectl", "-n", namespace, "wait", "--for=condition=PodScheduled", f"pod/{name}", _PATIENCE]


def _until_placed(pod: Pod) -> Iterator[tuple[str, ...]]:
    """Wait for the pod's replacement to have a node: by its name where it keeps that, else by its labels."""
    kubectl = ("kubectl", "-n", pod.namespace, "wait")
    if pod.labels.get(_OF_STATEFUL_SET) == pod.name:
        yield (*kubectl, "--for=create", f"pod/{pod.name}", _PATIENCE)
        yield (*kubectl, "--for=condition=PodScheduled", f"pod/{pod.name}", _PATIENCE)
        return
    named = {key: pod.labels[key] for key in _OF_A_TEMPLATE if key in pod.labels}
    labels = named or {key: value for key, value in pod.labels.items() if key not in _OF_ONE_POD}
    if labels:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        yield (*kubectl, "--for=condition=PodScheduled", "pod", "-l", selector, _PATIENCE)
