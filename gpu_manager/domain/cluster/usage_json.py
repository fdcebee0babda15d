"""The agent's ``/usage``, as it is read elsewhere: what each container uses of each of its cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import MIB
from gpu_manager.domain.untrusted import mapping, mappings, text


class UsedShare(NamedTuple):
    """``cores`` in hundredths of the card, ``memory`` in bytes; None where the agent does not know it.

    ``waited``: seconds that its processes have waited for their share; ``namespace`` and ``pod`` are the
    agent's words.
    """

    cores: float | None
    memory: int | None
    waited: float | None = None
    namespace: str = ""
    pod: str = ""


NodeUsage = Mapping[tuple[str, str, str], UsedShare]
"""(pod UID, container, UUID of the card) → what is used of it."""


def read_usage(answer: Any) -> NodeUsage:
    """Read the JSON of ``/usage``; malformed figures count as not known.

    Raises:
        NodeUnready: it is something else.
    """
    try:
        pods = answer["usage"]
        return {
            (uid, container, str(device["uuid"])): UsedShare(
                _figure(device, "gpu"),
                None if (mib := _figure(device, "mem")) is None else int(mib * MIB),
                _figure(device, "throttled"),
                text(mapping(pod).get("project")),
                text(mapping(pod).get("pod")),
            )
            for uid, pod in pods.items()
            for container, stat in mapping(mapping(pod).get("stat")).items()
            for device in mappings(mapping(stat).get("dev"))
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise NodeUnready("its agent answered with something else") from error


def _figure(device: Mapping[str, object], key: str) -> float | None:
    value = device.get(key)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 << 60 else None
