"""``kubectl vcuda explain``: why a pod waits, or where a pod from a manifest would be placed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpu_manager.adapters.manifests import Manifest, manifest_of, read_objects
from gpu_manager.cli.files import Filenames, chosen_files, drafted_pod, load, pods_of, shown
from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.names import WORKLOADS, NamedObject, is_file, read_target, selected
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, Namespace, Selector, log_in
from gpu_manager.cli.output import TABLE, Printing, Watch, repeat
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.pod_holder import (
    Hold,
    HoldFacts,
    explain_on_node,
    explain_without_cards,
    find_holder,
    gates_of,
    is_older,
    not_counted,
)
from gpu_manager.domain.cluster.usage_json import longest_beside, read_usage, ungated_beside
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable, quoted
from gpu_manager.domain.kube.constraints import shown_bars
from gpu_manager.domain.kube.pod import POD_SCHEDULED, Pod, parse_pod
from gpu_manager.domain.placement.explain import (
    Refusal,
    explain_placement,
    explain_room,
    explain_wait,
    explanation_lines,
    with_priority,
)
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.placement.place import judge
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.runtime.arguments import Argument

_BY_CLAIMS = "uses ResourceClaims: the admission service alone explains them, card by card"
_SHOWN = 20  # nodes shown in full
_MOST_PODS = 5  # of one workload; the others' reasons are mostly the same


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pod and the object that contains it; ``created`` is False for a pod of a file, with ``claims``: the
    ResourceClaims and their templates of all files.
    """

    pod: Pod
    manifest: Mapping[str, Any]
    created: bool
    claims: Sequence[Mapping[str, Any]] = ()

    @property
    def by_claims(self) -> bool:
        """True if the pod uses ResourceClaims."""
        return bool(mapping(self.manifest.get("spec")).get("resourceClaims"))

    @property
    def question(self) -> Mapping[str, Any]:
        """What the admission service is sent of a pod of a file."""
        return {"kind": "List", "items": [self.manifest, *self.claims]} if self.by_claims else self.manifest


def command(
    target: Annotated[
        str,
        Argument(
            metavar="POD|KIND/NAME|FILE",
            help="A pod, a workload's pods, or a manifest; - reads standard input.",
            complete="pods",
        ),
    ] = "",
    filenames: Filenames = None,
    selector: Selector = "",
    namespace: Namespace = "",
    watch: Watch = False,
    printing: Printing = TABLE,
    admission: service.Admission = service.USUAL,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Say why a pod waits, card by card, and the smallest change that would let it run.

    A FILE (.yaml, .yml, .json, a path, or -) need not be created: the answer is where its pod would go now.
    The admission service answers, which also knows quotas and PriorityClasses; where it cannot be asked the
    same judgement is made here, and said so. Exit code: 0 it runs or fits, 1 it waits or failed, 2 bad input.

    Examples:
      kubectl vcuda explain train-0
      kubectl vcuda explain deployment/web -n team-a
      kubectl vcuda explain -l app=web -w
      kubectl vcuda explain -f pod.yaml
    """
    if bool(target) + bool(filenames) + bool(selector) != 1:
        raise RequestInvalid("name a pod, or manifests: POD, KIND/NAME, -l SELECTOR, FILE or -f FILE")
    drafts = [target] if is_file(target) else None
    files = chosen_files(drafts, filenames) if drafts or filenames else []
    drafted = _drafts(files)
    if files and not drafted:
        raise RequestInvalid(f"{', '.join(files)}: holds no pod and no workload with pods")

    def show(login: Login) -> int:
        asked = drafted or (
            _labelled(login, selector) if selector else _named(login, read_target(target, WORKLOADS, "POD"))
        )
        asked = [_placed(one, login.namespace, forced=bool(namespace)) for one in asked]
        return _show([_with_end(*_answer(login, admission, one), one, login) for one in asked], printing)

    with log_in(access, namespace) as login:
        return repeat(lambda: show(login), watch=watch)


def _show(answers: Sequence[tuple[Mapping[str, Any], str]], printing: Printing) -> int:
    if printing.for_program:
        printing.emit({"pods": [{**answer, "answeredBy": by} for answer, by in answers]})
    else:
        print("\n\n".join("\n".join(_lines(answer)) for answer, _ in answers))
        for by in dict.fromkeys(by for _, by in answers):
            print(f"judged by {printable(by)}", file=sys.stderr)
    return 0 if all(_runs(answer) for answer, _ in answers) else 1


def _drafts(files: Sequence[str]) -> list[_Asked]:
    """The pod of every object in the files that runs pods."""
    objects = [(name, *one) for name in files for one in load(name, read_objects)]
    manifests = [(name, manifest_of(number, entry), entry) for name, number, entry in objects]
    claims = [one.claim for _, one, _ in manifests if one.claim is not None]
    found = []
    for name, one, entry in manifests:
        try:
            found += [_drafted(one, pod, claims) for pod in pods_of(one, entry) if pod is not None]
        except RequestInvalid as error:
            who = printable(f"{shown(name)}: {one.kind} {one.name}")
            raise RequestInvalid(f"{who}: {error}") from error
    return found


def _drafted(manifest: Manifest, pod: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> _Asked:
    """The pod of the manifest, in the namespace that it names, if any; its template's is nobody's."""
    return _Asked(*drafted_pod(pod, manifest.within(""), manifest.name), created=False, claims=claims)


def _named(login: Login, target: NamedObject) -> list[_Asked]:
    """The pod; of a workload's pods those that wait, else those that run, else the one that it would make.

    Raises RequestInvalid: there is no such object.
    """
    from gpu_manager.adapters.kube.reading import labelled_pods, read_object  # noqa: PLC0415  # as in log_in

    obj = read_object(login.connection, target.kind, login.namespace, target.name)
    if obj is None:
        where = f"in namespace {quoted(login.namespace)}; -n names another"
        raise RequestInvalid(f"no {target.kind.lower()} {quoted(target.name)} {where}")
    if target.kind == "Pod":
        return [_Asked(parse_pod(obj), obj, created=True)]
    pods = labelled_pods(login.connection, obj)
    mine = [_Asked(parse_pod(pod), pod, created=True) for pod in pods]
    owner = f"{target.kind}/{target.name}"
    mine = [one for one in mine if not one.pod.terminal and owner in {one.pod.owner, one.pod.workload}]
    chosen = [one for one in mine if not one.pod.node] or mine
    drafted = manifest_of(1, obj) if not chosen else None
    if drafted is not None and drafted.pod is not None:
        print(printable(f"{owner} has no pod: judged is one that it would make"), file=sys.stderr)
        return [_drafted(drafted, drafted.pod, ())]
    return _some_of(chosen, owner)


def _labelled(login: Login, selector: str) -> list[_Asked]:
    """The pods with these labels that wait, else those that run. Raises RequestInvalid: there is none."""
    pods = [
        _Asked(parse_pod(pod), pod, created=True)
        for pod in selected(login, "pods", selector, everywhere=False)
    ]
    mine = [one for one in pods if not one.pod.terminal]
    if not mine:
        where = f"in namespace {quoted(login.namespace)}; -n names another"
        raise RequestInvalid(f"no pod has {selector} {where}")
    return _some_of([one for one in mine if not one.pod.node] or mine, selector)


def _some_of(chosen: list[_Asked], whose: str) -> list[_Asked]:
    if len(chosen) > _MOST_PODS:
        more = f"{len(chosen) - _MOST_PODS} more pods of {whose} are like these or wait too"
        print(printable(more), file=sys.stderr)
    return chosen[:_MOST_PODS]


def _placed(asked: _Asked, namespace: str, *, forced: bool) -> _Asked:
    """The manifest in its namespace, by default the caller's, as with kubectl create."""
    meta = asked.manifest["metadata"]
    if asked.created or (meta.get("namespace") and not forced):
        return asked
    manifest = {**asked.manifest, "metadata": {**meta, "namespace": namespace}}
    return replace(asked, pod=replace(asked.pod, namespace=namespace), manifest=manifest)


def _answer(login: Login, admission: str, asked: _Asked) -> tuple[Mapping[str, Any], str]:
    """The explanation and its source."""
    try:
        if asked.created:
            path = f"/explain/{service.escaped(asked.pod.namespace)}/{service.escaped(asked.pod.name)}"
            answer = service.ask(login, admission, path)
        else:
            answer = service.ask(login, admission, "/explain", asked.question)
        return answer, f"the admission service ({admission})"
    except service.Silent as why:
        return _here(login, asked), f"this program, without quotas, gangs and PriorityClasses ({why})"


def _with_end(
    answer: Mapping[str, Any], by: str, asked: _Asked, login: Login
) -> tuple[Mapping[str, Any], str]:
    """The explanation with the status message of a failed pod, or with what a protected one may wait for."""
    if wait := _broken_protection(login, asked.pod):
        answer = {**answer, "line": f"{answer.get('line')}{with_priority(wait)}"}
    status = asked.manifest.get("status")
    status = status if isinstance(status, Mapping) and asked.pod.phase == "Failed" else {}
    words = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    return ({**answer, "failed": words} if words else answer), by


def _here(login: Login, asked: _Asked) -> Mapping[str, Any]:
    """The explanation computed here, in the shape of the service's answer."""
    from gpu_manager.adapters.kube.reading import cluster_of, list_nodes, list_pods, read_claims  # noqa: PLC0415  # as in log_in
    from gpu_manager.cli.kubectl.cluster_view import HostReader, PodDetails  # noqa: PLC0415  # as in log_in

    pod, connection = asked.pod, login.connection
    objects, hosts = list(list_nodes(connection)), HostReader()
    claims = read_claims(connection, objects)
    cluster = cluster_of(hosts.nodes(objects), hosts.pods(list_pods(connection)), *claims, connection.told)
    service.tell_unread_claims(cluster)
    books = cluster.with_cards
    wishes = PodDetails.of(asked.manifest)
    bars = {one.name: why for one in books if (why := hosts.bars(one.name, wishes))}
    if not pod.asks and asked.by_claims:
        return _explained(pod, _BY_CLAIMS, {"not asked": len(books)}, len(books))
    if not pod.asks:
        line, counts = explain_without_cards(pod, books, bars)
        return _explained(pod, line, counts, len(books))
    illegal = ""
    try:
        verdicts = [(one, one.judge(judged_request(pod, one.node.unit))) for one in books]
    except RequestInvalid as error:
        illegal = str(error)
    if pod.node:
        where = next((one for one in books if one.name == pod.node), None)
        counts = {"bound": 1, "not asked": len(books) - bool(where)}
        return _explained(pod, explain_on_node(pod, where, illegal), counts, len(books))
    if illegal:
        return _explained(pod, f"never runs: {illegal}", {"never": len(books)}, len(books))
    nodes = [_node(one, verdict, bars.get(one.name, ""), pod) for one, verdict in verdicts]
    nodes.sort(key=lambda node: (node["outcome"] != "fits", node["node"]))
    outcomes = Counter(str(node["outcome"]) for node in nodes)
    barred = {str(node["node"]): str(node["barred"]) for node in nodes if node["barred"]}
    held = _holder(asked, books, fits=bool(outcomes["fits"]))
    if held:
        line = f"{held.line}. What helps: {held.cure}"
        outcomes = Counter(held=len(nodes)) if not held.by.is_told else outcomes
    elif not nodes:
        line = "waits: the cluster has no node with cards"
    elif outcomes["fits"]:
        first = nodes[0]
        scheduler = pod.scheduler if pod.phase else None  # a pod of a file has no phase
        line = explain_room(outcomes["fits"], len(nodes), first["node"], first["line"], scheduler)
        line += not_counted(barred)
    else:
        none = "the one node with cards" if len(nodes) == 1 else f"each of {len(nodes)} nodes"
        full = [f"has no room now; {node['node']}: {node['line']}" for node in nodes if not node["barred"]][
            :1
        ]
        kept_off = [f"keeps it off: {shown_bars(barred)}"] if barred else []
        line = f"waits: {none} {' or '.join([*full, *kept_off])}"
    return _explained(pod, line, outcomes, len(nodes), nodes, held.by.value if held else "")


def _holder(asked: _Asked, books: Sequence[NodeBooks], *, fits: bool) -> Hold | None:
    """Who holds the pod, where it is not the cards; quotas and schedulers' names are not known here."""
    pod, conditions = asked.pod, mappings(mapping(asked.manifest.get("status")).get("conditions"))
    said = (text(one.get("message")) for one in conditions if one.get("type") == POD_SCHEDULED)
    facts = HoldFacts(gates_of(asked.manifest.get("spec")), next(said, ""), fits=fits)
    for one in () if fits else books:
        older = [charge.pod for charge in one.charges.values() if is_older(charge.pod, pod)]
        free = one.without(other.uid for other in older) if older else None
        request = judged_request(pod, one.node.unit)
        if free is not None and not isinstance(
            judge(request, one.node.cards, one.node.topology, free), Refusal
        ):
            facts = replace(facts, older=tuple(other.key for other in older))
    return find_holder(pod, facts)


def _node(books: NodeBooks, verdict: Any, bars: str, pod: Pod) -> dict[str, Any]:
    fits, shown = not isinstance(verdict, Refusal), {"node": books.name, "barred": bars}
    if bars:
        line = f"has room for it, but {bars}" if fits else bars
        return {**shown, "outcome": "barred", "line": line, "cards": []}
    if fits:
        line = explain_placement(verdict, books.node.cards)
        line += with_priority(books.explain_priority(pod, verdict))
        return {**shown, "outcome": "fits", "line": line, "cards": []}
    return {
        **shown,
        "outcome": "room",
        "line": verdict.line(),
        "cards": [
            {
                "index": view.index,
                "uuid": str(view.uuid),
                "free": {"cores": view.free.cores, "memory": view.free.memory},
                "reason": reason,
            }
            for view, reason in verdict.cards
        ],
    }


def _explained(
    pod: Pod,
    line: str,
    counts: Mapping[str, int],
    total: int,
    nodes: Sequence[Mapping[str, Any]] = (),
    held: str = "",
) -> Mapping[str, Any]:
    found = {"pod": pod.key, "line": line, "counts": dict(counts), "total": total, "nodes": list(nodes)}
    return {**found, "held": held} if held else found


def _runs(answer: Mapping[str, Any]) -> bool:
    counts = answer.get("counts")
    placed = isinstance(counts, Mapping) and bool(counts.get("fits") or counts.get("bound"))
    return placed and not answer.get("failed")


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """The explanation as lines of text; the service's answer may have any shape."""
    lines = explanation_lines(answer, _SHOWN, "; -o json shows more")
    if answer.get("failed"):
        lines[2:2] = [
            printable(f"it failed: {answer['failed']}"),
            "its Events say more (kubectl describe pod); a failed pod is not tried again: make it anew",
        ]
    return lines


def _broken_protection(login: Login, pod: Pod) -> str:
    """Sentences where best-effort tenants beside a bound protected pod break protection: by a long kernel,
    or since they were made before the agent knew priorities. Empty for none, and where the cluster or the
    node's agent cannot be asked.
    """
    by_annotation = priority_of(pod) is Priority.PROTECTED
    if not pod.node or not (by_annotation or any(c.claims for c in pod.containers)):
        return ""
    from gpu_manager.adapters.kube.reading import read_cluster  # noqa: PLC0415  # as in log_in

    try:
        cluster = read_cluster(login.connection, pod.node)
        told, _ = service.ask_agents(login, cluster.agents, [pod.node], "/usage", read_usage)
    except NodeUnready:
        return ""
    books = next((one for one in cluster.with_cards if one.name == pod.node), None)
    usage = told.get(pod.node)
    if books is None or usage is None:
        return ""
    holders = {pod.uid} if by_annotation else set()
    holders |= {a.pod for a in books.ledger.claims if a.priority is Priority.PROTECTED and _serves(a, pod)}
    longest = [longest_beside(usage, books.ledger, uid) for uid in holders]
    ungated = sum(ungated_beside(usage, books.ledger, uid) for uid in holders)
    return explain_wait(max((one for one in longest if one is not None), default=None), ungated)


def _serves(held: Allocation, pod: Pod) -> bool:
    return held.claim is not None and any(uid == pod.uid for uid, _ in held.claim.pods)
