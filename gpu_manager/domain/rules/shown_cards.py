"""How a container could be shown more cards than its own: by a variable, by envFrom, or by privilege.

NVIDIA's container runtime shows a container every card that ``NVIDIA_VISIBLE_DEVICES`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpu_manager.domain.contract import VISIBLE_ENV
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Container, Pod
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation

EPHEMERAL_SHOWN: Final = "nodes with that runtime"  # where envFrom shows an ephemeral container cards


def check_visible_devices(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container that chooses cards past the agent; separate from the amounts, so
    that a pod which already runs continues.
    """
    yield from _chosen(pod.containers)


def _chosen(containers: Iterable[Container]) -> Iterator[Violation]:
    for container in containers:
        if value := container.visible_devices:
            yield violation(Rule.VISIBLE_DEVICES_SET, container.name, VISIBLE_ENV, quoted(value))


def check_env_from(pod: Pod, shown: str) -> Iterator[Violation]:
    """Yield a violation for each container that ``envFrom`` may show cards, in a pod that requests some.

    ``shown``: where that happens, such as a node whose runtime shows cards by that variable.
    """
    if any(c.asks and not c.lent for c in pod.containers):
        yield from _brought(pod.containers, shown)


def _brought(containers: Iterable[Container], shown: str) -> Iterator[Violation]:
    for container in containers:
        if container.env_from:
            yield violation(Rule.ENV_FROM, container.name, VISIBLE_ENV, shown)


def check_ephemeral(pod: Pod, added: Iterable[Container]) -> Iterator[Violation]:
    """Yield how ephemeral containers could be shown cards, in a pod that requests some; they get none."""
    if any(c.core is not None or c.memory_units is not None for c in pod.containers):
        yield from _chosen(added)
        yield from _brought(added, EPHEMERAL_SHOWN)


def warn_privileged(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for each privileged container in the pod of a part of a card."""
    share = next((c.name for c in pod.containers if c.is_part), None)
    for container in pod.containers if share is not None else ():
        if container.privileged and not container.core:
            field = "securityContext.privileged"
            yield violation(Rule.PRIVILEGED_BESIDE_SHARE, container.name, field, quoted(share))
