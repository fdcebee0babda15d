"""``gpu-manager check``: are these manifests legal, and if not, what would be? Needs no node, no cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Annotated, Any

from gpu_manager.adapters.manifests import Manifest, manifest_of, objects_of, read_documents
from gpu_manager.cli.files import Filenames, Files, chosen_files, load, pod_templates, pods_of, shown
from gpu_manager.cli.kubectl.migrate.left_over import foreign_names
from gpu_manager.cli.output import TABLE, Printing, coloured
from gpu_manager.domain.contract import NVIDIA, RESIZE
from gpu_manager.domain.dra.translation import turned_into_claim, turned_warnings
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.resize.judgement import check_resize
from gpu_manager.domain.resize.sizes import KINDS
from gpu_manager.domain.rules.legal_values import check_pod, warn_limit_range, warn_pod
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.rules.unknown_names import misplaced, uncounted
from gpu_manager.domain.untrusted import mapping
from gpu_manager.runtime.arguments import Option, whole_bytes


class CheckState(Enum):
    """What became of one object."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The judgement of one object of one file."""

    file: str
    manifest: Manifest
    state: CheckState
    requests: tuple[ContainerRequest, ...] = ()
    claim: Mapping[str, object] | None = None  # its spec, where the pod would be turned into one
    violations: tuple[Violation, ...] = ()
    warnings: tuple[Violation, ...] = ()
    reason: str = ""  # why it is no Kubernetes object


def command(
    files: Files = None,
    filenames: Filenames = None,
    printing: Printing = TABLE,
    unit: Annotated[str, Option(help="Bytes of one unit of tencent.com/vcuda-memory.")] = "256Mi",
    minimum_cores: Annotated[
        int, Option(min=1, max=100, help="The smallest part of a card that the cluster gives.")
    ] = 1,
    claims: Annotated[
        bool,
        Option(
            "--claims",
            help="Show the ResourceClaim that a pod is turned into in a namespace with label "
            "tencent.com/vcuda-front: dra, or why it is not.",
        ),
    ] = False,
) -> int:
    """Say whether manifests are legal, why not, and what would be.

    Pods, lists, and the pod templates of any kind of workload are judged by the rules of the webhook and the
    agent, and so are amounts of cards that stand in them, or in a chart's values, by themselves; names of
    other systems are warned of. What is no Kubernetes object is passed over and named. Exit code: 0 legal,
    1 illegal, 2 bad input: a file that cannot be read, or no object in any.

    Examples:
      gpu-manager check pod.yaml
      kubectl vcuda check -f manifests/ -o json
    """
    unit_bytes = whole_bytes("--unit", unit)
    judge = partial(_judge, unit=unit_bytes, minimum_cores=minimum_cores, claims=claims)
    files = chosen_files(files, filenames)
    verdicts, unread = list[PodVerdict](), list[RequestInvalid]()
    for name in files:
        try:
            verdicts += _judge_file(name, judge)
        except RequestInvalid as error:
            unread.append(error)
    outside = [v for v in verdicts if v.reason]
    if len(files) == 1 and len(outside) == len(verdicts) and not any(v.warnings for v in outside):
        raise unread[0] if unread else RequestInvalid(printable(f"{outside[0].file}: {outside[0].reason}"))
    print(*unread, sep="\n", end="\n" * bool(unread), file=sys.stderr)
    if not printing.for_program:
        print("\n".join(_table(verdicts, several_files=len(files) > 1)))
    else:
        printing.emit(_document(verdicts, unit_bytes))
    is_illegal = any(v.state is CheckState.ILLEGAL for v in verdicts)
    return 2 if unread or len(outside) == len(verdicts) else int(is_illegal)


_Judge = Callable[[str, Manifest], PodVerdict]


def _judge_file(name: str, judge: _Judge) -> list[PodVerdict]:
    file, verdicts = shown(name), list[PodVerdict]()
    for number, document in enumerate(load(name, read_documents), 1):
        try:
            entries = [] if document is None else list(objects_of(number, document))
        except RequestInvalid as error:
            verdicts.append(_no_object(file, number, document, str(error), judge))
        else:
            objects = ((manifest_of(number, entry), entry) for entry in entries)
            verdicts += [_judge_object(file, *one, judge) for one in objects]
    return verdicts or [_no_object(file, 1, None, "empty: no Kubernetes object in it", judge)]


def _judge_object(file: str, manifest: Manifest, entry: Mapping[str, Any], judge: _Judge) -> PodVerdict:
    pods = pods_of(manifest, entry)
    verdicts = [judge(file, replace(manifest, pod=pod)) for pod in pods]
    limited = warn_limit_range(manifest.limit_range) if manifest.limit_range is not None else uncounted(entry)
    skipped = PodVerdict(file, manifest, CheckState.SKIPPED, warnings=tuple(limited))
    one = verdicts[0] if verdicts else skipped
    for more in verdicts[1:]:
        one = replace(
            one,
            state=one.state if more.state is CheckState.LEGAL else more.state,
            requests=one.requests + more.requests,
            violations=one.violations + more.violations,
            warnings=one.warnings + more.warnings,
        )
    return replace(one, warnings=(*one.warnings, *_foreign(entry, one.warnings)))


def _no_object(file: str, number: int, document: object, reason: str, judge: _Judge) -> PodVerdict:
    manifest = Manifest(number, "document", "", str(number), runs_pods=False, pod=None)
    if isinstance(document, dict) and "metadata" in document:  # an object whose kind is not there
        return _unreadable(file, manifest, reason)
    if any(pod_templates(document)):  # values of a chart that ask for cards
        return _judge_object(file, manifest, mapping(document), judge)
    if isinstance(document, dict):
        reason += "; of a chart, check what it renders (helm template … | gpu-manager check -)"
    return PodVerdict(file, manifest, CheckState.SKIPPED, (), None, (), tuple(_foreign(document, ())), reason)


def _foreign(entry: object, told: Sequence[Violation]) -> Iterator[Violation]:
    """Yield a warning for each name of another system that the rules for pods have not warned of."""
    known = {NVIDIA, *(warning.field for warning in told)}
    for one in foreign_names(entry):
        if one.name not in known:
            known.add(one.name)
            yield violation(Rule.FOREIGN_NAME, "", one.name, one.path, reason=one.advice)


def _judge(file: str, manifest: Manifest, *, unit: int, minimum_cores: int, claims: bool) -> PodVerdict:
    if manifest.pod is None:
        return _unreadable(file, manifest, f"this {manifest.kind} has no pod template")
    try:
        pod = parse_pod(manifest.pod)
    except RequestInvalid as error:
        return _unreadable(file, manifest, str(error))
    violations, warnings = check_pod(pod, unit, minimum_cores), warn_pod(pod, unit)
    asked = manifest.annotations.get(RESIZE) if manifest.kind in KINDS else None
    if isinstance(asked, str):  # the size that a workload has its pods changed to
        asking = replace(pod, annotations={**pod.annotations, RESIZE: asked})
        violations = (*violations, *check_resize(asking, unit, minimum_cores))
    if manifest.place:
        own, kind = manifest.annotations, manifest.kind
        warnings = (*misplaced(own, pod.annotations, kind, manifest.place), *warnings)
    if violations:
        return PodVerdict(file, manifest, CheckState.ILLEGAL, violations=violations, warnings=warnings)
    request, claim = judged_request(pod, unit, minimum_cores), None
    if claims and request.containers:
        claim, told = _turned(pod, request)
        warnings = (*warnings, *told)
    return PodVerdict(file, manifest, CheckState.LEGAL, request.containers, claim, warnings=warnings)


def _turned(pod: Pod, request: PodRequest) -> tuple[Mapping[str, object] | None, tuple[Violation, ...]]:
    """The spec of the pod's claim, and what is told of it."""
    try:
        turned = turned_into_claim(pod, request)
    except RequestInvalid as error:
        return None, (violation(Rule.NOT_TURNED_INTO_CLAIM, "", "", "", reason=str(error)),)
    return turned.spec, turned_warnings(request, turned)


def _unreadable(file: str, manifest: Manifest, reason: str) -> PodVerdict:
    faults = (violation(Rule.POD_UNREADABLE, "", "", "", reason=reason),)
    return PodVerdict(file, manifest, CheckState.ILLEGAL, violations=faults)


# For people: one line an object, one a container or fault below it, and the sum.


def _table(verdicts: Sequence[PodVerdict], *, several_files: bool) -> Iterator[str]:
    for verdict in verdicts:
        where = f"{verdict.file}: " if several_files else ""
        subject = f"{verdict.manifest.kind} {verdict.manifest.namespace}/{verdict.manifest.name}"
        yield _word(verdict.state.value) + printable(where + subject.replace(" /", " "))
        yield from (f"          {line}" for line in map(printable, _details(verdict)))
    counts = {state: sum(v.state is state for v in verdicts) for state in CheckState}
    yield ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)


def _details(verdict: PodVerdict) -> Iterator[str]:
    if verdict.state is CheckState.SKIPPED:
        yield verdict.reason or f"a {verdict.manifest.kind} runs no pods that are judged here"
    elif verdict.state is CheckState.LEGAL and not verdict.requests:
        yield "asks for no card"
    width = max((len(r.name) for r in verdict.requests), default=0)
    yield from (f"{r.name:{width}}  {r.request}" for r in verdict.requests)
    yield from (f"{v.message}  [{v.rule.id}]" for v in verdict.violations)
    yield from (f"warning: {v.message}  [{v.rule.id}]" for v in verdict.warnings)


def _word(word: str) -> str:
    colours = {"legal": "green", "illegal": "red"}
    plain = f"{word:8}  "
    return coloured(plain, colours[word]) if word in colours else plain


# For programs: the same as one value.


def _document(verdicts: Sequence[PodVerdict], unit: int) -> Mapping[str, object]:
    return {
        "legal": not any(v.state is CheckState.ILLEGAL for v in verdicts),
        "unit": unit,
        "objects": [
            {
                "file": v.file,
                "document": v.manifest.document,
                "kind": v.manifest.kind,
                "namespace": v.manifest.namespace,
                "name": v.manifest.name,
                "verdict": v.state.value,
                "containers": [
                    {
                        "name": r.name,
                        "kind": r.kind.value,
                        "cores": r.request.cores,
                        "cards": r.request.cards,
                        "parts": r.request.parts,
                        "memory": None if r.request.cards else r.request.memory,
                    }
                    for r in v.requests
                ],
                **({"claim": v.claim} if v.claim is not None else {}),
                **({"reason": v.reason} if v.reason else {}),
                "violations": [_fault(fault) for fault in v.violations],
                "warnings": [_fault(fault) for fault in v.warnings],
            }
            for v in verdicts
        ],
    }


def _fault(fault: Violation) -> Mapping[str, object]:
    return {
        "rule": fault.rule.id,
        "container": fault.container or None,
        "field": fault.field or None,
        "value": fault.value or None,
        "message": fault.message,
        "nearest": list(fault.nearest),
        "cure": fault.rule.value.cure,
    }
