"""A pod as the webhook would change it: the changes of ``/mutate``, as values and as a JSON patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import Operation, Review, pointer
from gpu_manager.domain.contract import (
    CORE,
    MEMORY,
    NO_VISIBLE_DEVICES,
    NVIDIA,
    PRIORITY,
    RESIZE,
    TEMPLATE_SIZE,
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.pod import MIRROR, Container, Pod, parse_pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resize.judgement import check_resize, legal_sizes
from gpu_manager.domain.resize.sizes import note_template, spec_sizes
from gpu_manager.domain.resources import Amount, format_bytes, format_number
from gpu_manager.domain.rules.legal_values import check_pod, guarded_keys, warn_pod
from gpu_manager.domain.rules.pod_annotations import has_fractions_alone
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.rules.unknown_names import check_ephemeral
from gpu_manager.domain.untrusted import annotations_of, at

_DEFAULT_SCHEDULER: Final = "default-scheduler"  # what the API server writes where nothing is written
_MOST_CONTAINERS: Final = 200  # with 1000, a review of such a pod takes seconds beside all others
_WITHOUT_MEMORY: Final = ([Rule.FRACTION_WITHOUT_MEMORY], [Rule.CARDS_MEMORY])  # a container's only fault
_MOST_REMOVALS: Final = 64  # one by one; more are removed by writing the rest


@dataclass(frozen=True, slots=True)
class Draft:
    """``pod`` as it will be once ``patch`` is applied; ``changes`` are the warnings about it."""

    pod: Pod
    patch: tuple[Operation, ...]
    changes: tuple[Violation, ...]


def read_pod(obj: Mapping[str, Any]) -> Pod:
    """Parse a pod of a size that can be judged at once; a body has room for tens of thousands of containers.

    Raises:
        RequestInvalid: it is malformed, or larger than any node could run.
    """
    groups = (at(obj, "spec").get(group) for group in ("initContainers", "containers", "ephemeralContainers"))
    count = sum(len(group) for group in groups if isinstance(group, list))
    if count > _MOST_CONTAINERS:
        raise RequestInvalid(f"the pod has {count} containers: use {_MOST_CONTAINERS} at most")
    return parse_pod(obj)


def draft_pod(
    obj: Mapping[str, Any],
    terms: ClusterTerms,
    *,
    trusted: bool,
    owners: Callable[[Pod], str] = lambda _: "",
    hidden: Callable[[], bool] = lambda: False,
    best_effort: bool = False,
) -> Draft:
    """The result of ``/mutate`` for a pod or a template's pod; a complete pod has an empty patch.

    Args:
        obj: the object, as JSON.
        terms: what to write.
        trusted: the sender may write guarded annotations.
        owners: the size that a pod's workload requests, as its annotation; empty for none.
        hidden: no node that the pod may go to shows a container its cards by a variable.
        best_effort: the quota makes the fractions of its namespace best-effort.

    Raises:
        RequestInvalid: it is not a pod.
    """
    pod = read_pod(obj)
    wanted = owners(pod)
    patch: list[Operation] = []
    changes: list[Violation] = []
    if not trusted:
        guarded = frozenset(guarded_keys(pod.annotations))
        changes += [violation(Rule.ANNOTATION_REMOVED, "", k, "") for k in pod.annotations if k in guarded]
        if RESIZE in pod.annotations:
            changes.append(violation(Rule.RESIZE_AT_CREATION, "", RESIZE, ""))
            guarded |= {RESIZE}
        if forged := forged_note(pod, wanted):
            changes += forged
            guarded |= {TEMPLATE_SIZE}
        pod = replace(pod, annotations={k: v for k, v in pod.annotations.items() if k not in guarded})
        if len(guarded) > _MOST_REMOVALS:
            patch.append(Operation("replace", pointer("metadata", "annotations"), dict(pod.annotations)))
        else:
            patch += [Operation("remove", pointer("metadata", "annotations", key)) for key in sorted(guarded)]
    containers = []
    for container, steps in zip(pod.containers, container_places(obj), strict=True):
        mended, operations, change = _mend(container, steps, terms)
        containers.append(mended)
        patch += operations
        changes += change
    pod = replace(pod, containers=tuple(containers))
    annotated = isinstance(at(obj, "metadata").get("annotations"), Mapping)
    if best_effort and PRIORITY not in pod.annotations and has_fractions_alone(pod):
        value = Priority.BEST_EFFORT.value
        key = pointer("metadata", "annotations", PRIORITY)
        whole = Operation("add", pointer("metadata", "annotations"), {PRIORITY: value})
        patch.append(Operation("add", key, value) if annotated else whole)
        pod, annotated = replace(pod, annotations={**pod.annotations, PRIORITY: value}), True
    pod, operations, unused = at_owners_size(pod, container_places(obj), wanted, terms, annotated=annotated)
    patch += operations
    changes += unused
    if pod.asks:
        hiding, operations = _hide_cards(pod, obj, hidden)
        pod = replace(pod, containers=hiding)
        patch += operations
        for key, present, wanted in (
            ("schedulerName", pod.scheduler not in ("", _DEFAULT_SCHEDULER), terms.scheduler_name),
            ("runtimeClassName", at(obj, "spec").get("runtimeClassName") is not None, terms.runtime_class),
        ):
            if wanted and not present and at(obj, "spec").get(key) != wanted:
                patch.append(Operation("add", pointer("spec", key), wanted))
        patch += _toleration(at(obj, "spec").get("tolerations"))
        pod = replace(pod, scheduler=_scheduler(pod.scheduler, terms))
    return Draft(pod, tuple(patch), tuple(changes))


def _hide_cards(
    pod: Pod, obj: Mapping[str, Any], hidden: Callable[[], bool]
) -> tuple[tuple[Container, ...], list[Operation]]:
    """Write the variable that shows cards, as void, into each container to which envFrom could bring it,
    where it is not how the container gets its own.
    """
    containers: list[Container] = []
    written: list[Operation] = []
    for container, (*steps, _) in zip(pod.containers, container_places(obj), strict=True):
        if container.env_from and (not container.asks or hidden()):
            entry = at(obj, "spec")[str(steps[1])][int(steps[2])]
            variable = {"name": VISIBLE_ENV, "value": NO_VISIBLE_DEVICES[1]}
            where = pointer(*steps, "env", "-") if entry.get("env") else pointer(*steps, "env")
            written.append(Operation("add", where, variable if entry.get("env") else [variable]))
            container = replace(container, env_from=False)  # noqa: PLW2901
        containers.append(container)
    return tuple(containers), written


def _toleration(tolerations: object) -> Iterator[Operation]:
    """Tolerate the taint that nodes with cards often have: for a pod that asks for ``nvidia.com/gpu`` the API
    server's ExtendedResourceToleration does that, for other names it tolerates the names alone.
    """
    there = tolerations if isinstance(tolerations, list) else []
    keys = [one.get("key") for one in there if isinstance(one, Mapping)]
    if NVIDIA in keys or any(key in (None, "") for key in keys):  # without a key it tolerates every taint
        return
    added = {"key": NVIDIA, "operator": "Exists"}
    where = pointer("spec", "tolerations", "-") if there else pointer("spec", "tolerations")
    yield Operation("add", where, added if there else [added])


def _scheduler(name: str, terms: ClusterTerms) -> str:
    return terms.scheduler_name or name if name in ("", _DEFAULT_SCHEDULER) else name


def container_places(obj: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Yield where each container's resources stand, in the order of
    :func:`~gpu_manager.domain.kube.pod.parse_pod`.
    """
    for group in ("initContainers", "containers"):
        for index in range(len(at(obj, "spec").get(group) or ())):
            yield "spec", group, index, "resources"


def _mend(
    container: Container, steps: tuple[str | int, ...], terms: ClusterTerms
) -> tuple[Container, list[Operation], tuple[Violation, ...]]:
    """Nothing is mended in a container that is illegal in any other way: its author has to look at it."""
    alone = Pod(uid=_NOBODY.uid, namespace="", name="", containers=(container,))
    faults = [v.rule for v in check_pod(alone, terms.unit, terms.minimum_cores)]
    if not container.memory_units and terms.default_memory and faults in _WITHOUT_MEMORY:
        return _with_default(container, steps, terms)
    beside = tuple(
        v for v in warn_pod(alone, terms.unit) if v.rule is Rule.MEMORY_BESIDE_WHOLE_CARDS and not faults
    )
    if not beside:
        return container, [], ()
    removed = [Operation("remove", pointer(*steps, "limits", MEMORY))]
    if container.memory_units_request is not None:
        removed.append(Operation("remove", pointer(*steps, "requests", MEMORY)))
    return replace(container, memory_units=None, memory_units_request=None), removed, beside


def _with_default(
    container: Container, steps: tuple[str | int, ...], terms: ClusterTerms
) -> tuple[Container, list[Operation], tuple[Violation, ...]]:
    units = Fraction(terms.default_memory * container.parts)
    text = str(units)
    written = [Operation("add", pointer(*steps, "limits", MEMORY), text)]
    asked = container.core_request is not None
    if asked or container.memory_units_request is not None:
        written.append(Operation("add", pointer(*steps, "requests", MEMORY), text))
    change = violation(
        Rule.MEMORY_DEFAULTED,
        container.name,
        MEMORY,
        format_number(container.core or Fraction(0)),
        units=text,
        size=format_bytes(int(units) * terms.unit),
    )
    mended = replace(container, memory_units=units, memory_units_request=units if len(written) > 1 else None)
    return mended, written, (change,)


def ephemeral_faults(obj: Mapping[str, Any]) -> tuple[Violation, ...]:
    """The faults of ephemeral containers that request cards, or could be shown some.

    Raises:
        RequestInvalid: they have not the form of containers.
    """
    added = ephemeral_containers(obj)
    asking = (
        violation(Rule.EPHEMERAL_CONTAINER, c.name, field, format_number(value))
        for c in added
        for field, value in (
            (CORE, c.core or c.core_request),
            (MEMORY, c.memory_units or c.memory_units_request),
        )
        if value
    )
    return (*asking, *check_ephemeral(parse_pod(obj), added))


def ephemeral_containers(obj: Mapping[str, Any]) -> tuple[Container, ...]:
    """The ephemeral containers. Raises RequestInvalid: they have not the shape of containers."""
    return parse_pod({"spec": {"containers": at(obj, "spec").get("ephemeralContainers")}}).containers


def is_mirror(review: Review) -> bool:
    """True for a kubelet's image of a static pod, which runs already and passed no scheduler."""
    return "system:nodes" in review.groups and MIRROR in annotations_of(review.obj)


_NOBODY: Final = parse_pod({})


Steps = tuple[str | int, ...]


def at_owners_size(
    pod: Pod, places: Iterable[Steps], owners: str, terms: ClusterTerms, *, annotated: bool
) -> tuple[Pod, list[Operation], tuple[Violation, ...]]:
    """The pod at the size of ``owners``, its workload's annotation; the changes, and warnings.

    A pod that already has its size, or that the workload's size does not suit, is left unchanged. ``places``:
    where each container's resources are in the object; ``annotated``: it has a map of annotations.
    """
    if not owners or TEMPLATE_SIZE in pod.annotations:
        return pod, [], ()
    asking = replace(pod, annotations={**pod.annotations, RESIZE: owners})
    faults = check_resize(asking, terms.unit, terms.minimum_cores)
    sizes = legal_sizes(asking, terms.unit, terms.minimum_cores)
    if sizes is None:
        return pod, [], (violation(Rule.RESIZE_OF_OWNER, "", RESIZE, pod.workload, reason=faults[0].message),)
    template = spec_sizes(pod, terms.unit)
    changed = {name: size for name, size in sizes.items() if size != template[name]}
    if not changed:
        return pod, [], ()
    note = note_template(template, owners)
    key = pointer("metadata", "annotations", TEMPLATE_SIZE)
    whole = Operation("add", pointer("metadata", "annotations"), {TEMPLATE_SIZE: note})
    patch = [Operation("add", key, note) if annotated else whole]
    containers = []
    for container, steps in zip(pod.containers, places, strict=True):
        size = changed.get(container.name)
        containers.append(container if size is None else _sized(container, size, terms.unit))
        patch += [] if size is None else _written(container, size, steps, terms.unit)
    annotations = {**pod.annotations, TEMPLATE_SIZE: note}
    return replace(pod, containers=tuple(containers), annotations=annotations), patch, ()


def owner_faults(template: Pod, annotations: Mapping[str, Any], terms: ClusterTerms) -> tuple[Violation, ...]:
    """The violations in the size that a workload's own annotation requests for its pods."""
    written = annotations.get(RESIZE)
    if not isinstance(written, str):
        return ()
    asking = replace(template, annotations={**template.annotations, RESIZE: written})
    return check_resize(asking, terms.unit, terms.minimum_cores)


def at_asked_size(template: Pod, annotations: Mapping[str, Any], terms: ClusterTerms) -> Pod | None:
    """The template's pod at the size that its workload's own annotation requests; None if there is none, or
    if it is illegal.
    """
    written = annotations.get(RESIZE)
    if not isinstance(written, str):
        return None
    asking = replace(template, annotations={**template.annotations, RESIZE: written})
    sizes = legal_sizes(asking, terms.unit, terms.minimum_cores)
    if sizes is None:
        return None
    sized = (_sized(c, sizes[c.name], terms.unit) if c.name in sizes else c for c in template.containers)
    return replace(template, containers=tuple(sized))


def forged_note(pod: Pod, owners: str) -> tuple[Violation, ...]:
    """A copied pod has the note of another, which would resize it once it runs."""
    if owners or TEMPLATE_SIZE not in pod.annotations:
        return ()
    return (violation(Rule.RESIZE_AT_CREATION, "", TEMPLATE_SIZE, quoted(pod.annotations[TEMPLATE_SIZE])),)


def _sized(container: Container, size: Amount, unit: int) -> Container:
    cores, units = Fraction(size.cores), Fraction(size.memory // unit)
    return replace(
        container,
        core=cores,
        memory_units=units,
        core_request=None if container.core_request is None else cores,
        memory_units_request=None if container.memory_units_request is None else units,
    )


def _written(container: Container, size: Amount, steps: Steps, unit: int) -> list[Operation]:
    values = {CORE: str(size.cores), MEMORY: str(size.memory // unit)}
    asked = {CORE: container.core_request, MEMORY: container.memory_units_request}
    groups = [("limits", name) for name in values]
    groups += [("requests", name) for name in values if asked[name] is not None]
    return [Operation("add", pointer(*steps, group, name), values[name]) for group, name in groups]
