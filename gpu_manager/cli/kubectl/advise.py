"""``kubectl vcuda advise``: what size running containers should have, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from gpu_manager.arguments import Argument, Option
from gpu_manager.cli.kubectl import agents
from gpu_manager.cli.kubectl.login import AllNamespaces, Context, Kubeconfig, Namespace, log_in
from gpu_manager.cli.output import Form, Output, columns, emit, for_program
from gpu_manager.domain.advice.demand import Need, pooled
from gpu_manager.domain.advice.size import Advice, AdvicePolicy, Figure, advise
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.resources import Amount, format_bytes

Workload = tuple[str, str, str]  # namespace, kind/name, container


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node's agent says of the containers of one workload."""

    workload: Workload
    pods: tuple[str, ...]
    given: Amount
    unit: int
    need: Need


@dataclass(frozen=True, slots=True)
class Advised:
    """The advice for one container of a workload, from all nodes."""

    workload: Workload
    pods: tuple[str, ...]
    given: Amount
    need: Need
    advice: Advice


def command(
    name: Annotated[
        str, Argument(metavar="POD", help="One pod, or its workload as KIND/NAME; default: all.")
    ] = "",
    memory_margin: Annotated[
        float, Option(min=0, max=400, help="Percent of memory to add to the greatest amount seen.")
    ] = 0.0,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    output: Form = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> int:
    """Advise a size for containers that hold a part of one card, from what their replicas were seen to need.

    Cores come from demand, also above the limit; memory from the greatest amounts held. Where memory cannot
    be judged there is no figure, and the reason says why. Needs get on pods/proxy.
    """
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    with log_in(kubeconfig, context, namespace) as login:
        cluster = read_cluster(login.connection)
        nodes = [one.name for one in cluster.with_cards]
        told, silent = agents.ask(login, cluster, nodes, "/advice", _parsed)
        said = [one for each in told.values() for one in each]
        found = [one for one in said if all_namespaces or one.workload[0] == login.namespace]
        where = "any namespace" if all_namespaces else f"namespace {login.namespace}"
    policy = AdvicePolicy(margin=memory_margin / 100)
    rows = [one for one in pool(found, policy) if not name or name in one.pods or name == one.workload[1]]
    if name and not rows and not silent:
        raise RequestInvalid(
            f"{quoted(name)} in {where}: no pod or workload of that name holds a part of one card"
        )
    if for_program(output):
        emit({"containers": [_json(row) for row in rows], "silent": dict(silent)}, output)
        return 0
    print(_table(rows) if rows else f"no container in {where} holds a part of one card")
    agents.tell_silent(silent, "advice")
    return 0


def pool(found: Iterable[Seen], policy: AdvicePolicy) -> Sequence[Advised]:
    """The advice for each workload from all its replicas: one template has one size."""
    members: dict[Workload, list[Seen]] = {}
    for one in found:
        members.setdefault(one.workload, []).append(one)
    advised = []
    for workload, replicas in sorted(members.items()):
        need = pooled([one.need for one in replicas])
        given = max((one.given for one in replicas), key=lambda amount: (amount.memory, amount.cores))
        names = tuple(sorted(pod for one in replicas for pod in one.pods))
        advice = advise(need, given, max(one.unit for one in replicas), policy)
        advised.append(Advised(workload, names, given, need, advice))
    return advised


def _parsed(answer: Any) -> list[Seen]:
    """Read an agent's ``/advice``."""
    return [
        Seen(
            (str(one["namespace"]), str(one["workload"]), str(one["container"])),
            tuple(str(pod) for pod in one["pods"]),
            Amount(int(one["given"]["cores"]), int(one["given"]["memory"])),
            max(1, int(one["unit"])),
            _need(one["need"]),
        )
        for one in answer["containers"]
    ]


def _need(row: Mapping[str, Any]) -> Need:
    return Need(
        seconds=float(row["seconds"]),
        starts=int(row["starts"]),
        worked=float(row["worked"]),
        cores=None if row["cores"] is None else int(row["cores"]),
        hours=tuple(int(size) for size in row["hours"]),
        days=tuple(int(size) for size in row["days"]),
        refused=int(row["refused"]),
    )


def _table(rows: Sequence[Advised]) -> str:
    titles = ["NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "CORES", "ADVISED", "MEMORY", "ADVISED"]
    lines = [columns(titles, [_cells(row) for row in rows])]
    for row in rows:
        who = f"{row.workload[0]}/{row.workload[1]} {row.workload[2]}"
        lines += map(printable, (f"{who}:", f"  cores: {row.advice.cores.reason}"))
        lines.append(printable(f"  memory: {row.advice.memory.reason}"))
    return "\n".join(lines)


def _cells(row: Advised) -> list[str]:
    cores, memory = row.advice.cores.value, row.advice.memory.value
    return [
        *row.workload,
        str(len(row.pods)),
        str(row.given.cores),
        "-" if cores is None else str(cores),
        format_bytes(row.given.memory),
        "-" if memory is None else format_bytes(memory),
    ]


def _json(row: Advised) -> Mapping[str, Any]:
    def figure(one: Figure) -> Mapping[str, Any]:
        return {"value": one.value, "reason": one.reason}

    return {
        "namespace": row.workload[0],
        "workload": row.workload[1],
        "container": row.workload[2],
        "pods": list(row.pods),
        "cores": row.given.cores,
        "memory": row.given.memory,
        "need": asdict(row.need),
        "advised": {"cores": figure(row.advice.cores), "memory": figure(row.advice.memory)},
    }
