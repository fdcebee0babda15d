"""Creates a pod at the size that its workload requests in its own metadata: in its limits, hence in quota and
ids too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from admission.config import ClusterTerms
from admission.webhook.admission_review import Operation, pointer
from gpu_manager.domain.contract import CORE, MEMORY, RESIZE, TEMPLATE_SIZE
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Container, Pod
from gpu_manager.domain.resize.judgement import check_resize, legal_sizes
from gpu_manager.domain.resize.owners import note_template
from gpu_manager.domain.resize.sizes import spec_sizes
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation

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
