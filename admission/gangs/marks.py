"""How a pod is marked as a member of a gang, and where the gang's size is stated.

Each system has its own mark; the first in :func:`mark_of` counts. Three systems write the size into a
PodGroup of their own API group, Kueue into each pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from admission.config import POD_GROUP_APIS
from gpu_manager.domain.untrusted import mapping, text

KUBERNETES, COSCHEDULING, VOLCANO = POD_GROUP_APIS
KUEUE: Final = "kueue.x-k8s.io"
_KUEUE_TOTAL: Final = f"{KUEUE}/pod-group-total-count"
_LARGEST: Final = 1 << 31  # of a size as Kubernetes writes one, an int32


@dataclass(frozen=True, slots=True)
class GangKey:
    """Identity of a gang: the API group of the system that marks it, its namespace and its name there."""

    api: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GangMark:
    """A pod's gang, and the size that the pod itself states; None if a PodGroup has it."""

    gang: GangKey
    total: int | None = None


def mark_of(pod: Mapping[str, Any]) -> GangMark | None:
    """Read a core/v1 Pod in its JSON form; None for a pod that is in no gang."""
    meta = mapping(pod.get("metadata"))
    namespace = text(meta.get("namespace")) or "default"
    labels, annotations = mapping(meta.get("labels")), mapping(meta.get("annotations"))
    named = {
        KUBERNETES: mapping(mapping(pod.get("spec")).get("schedulingGroup")).get("podGroupName"),
        COSCHEDULING: labels.get(f"{COSCHEDULING}/pod-group"),
        VOLCANO: annotations.get("scheduling.k8s.io/group-name"),
        KUEUE: labels.get(f"{KUEUE}/pod-group-name"),
    }
    for api, name in named.items():
        if found := text(name):
            total = _whole(annotations.get(_KUEUE_TOTAL)) if api == KUEUE else None
            return GangMark(GangKey(api, namespace, found), total)
    return None


def minimum_of(api: str, group: Mapping[str, Any]) -> int | None:
    """The least number of members in a PodGroup of that API group; None if it defines no gang."""
    spec = mapping(group.get("spec"))
    if api == KUBERNETES:
        return _whole(mapping(mapping(spec.get("schedulingPolicy")).get("gang")).get("minCount"))
    return _whole(spec.get("minMember"))


def _whole(value: object) -> int | None:
    """A size that is a number, or a text of one as annotations have it."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    return number if type(number) is int and 0 < number < _LARGEST else None
