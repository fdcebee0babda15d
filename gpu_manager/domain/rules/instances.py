"""Legal requests for MIG instances, which a pod makes by naming nothing else in its allow lists."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gpu_manager.domain.contract import CORE, NVIDIA
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.mig import is_instance, names_instances
from gpu_manager.domain.resources import CORES_PER_CARD, format_number
from gpu_manager.domain.rules.pod_annotations import models_of, uuids_of
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation


def check_several(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container with several cards in a pod that allows instances alone."""
    for container in pod.containers if _allows_instances_alone(pod) else ():
        core = container.core or Fraction(0)
        if not container.lent and (container.parts > 1 or core > CORES_PER_CARD):
            nearest = (CORES_PER_CARD,)
            yield violation(Rule.MIG_SEVERAL, container.name, CORE, format_number(core), nearest)


def check_lent(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container with ``nvidia.com/gpu`` in a pod that allows instances alone, as
    the node's agent judges it: nobody else counts that name.
    """
    for container in pod.containers if _allows_instances_alone(pod) else ():
        if container.lent:
            count = format_number(container.gpus or Fraction(0))
            yield violation(Rule.MIG_LENT, container.name, NVIDIA, count)


def _allows_instances_alone(pod: Pod) -> bool:
    models, uuids = models_of(pod), uuids_of(pod)
    return bool((models and all(map(names_instances, models))) or (uuids and all(map(is_instance, uuids))))
