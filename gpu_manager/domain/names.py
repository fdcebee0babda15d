"""Whose names an agent's pages tell a caller, and how those who know the names find them again.

An agent answers whoever reaches its port, and names pods only to callers whose rights the API server has
confirmed. To others a container is the UID of its pod and a digest of its name: who may read pods can tell
which container that is, and nobody else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from gpu_manager.domain.kube.pod import Pod

_MARK: Final = "~"  # no name of a container has it


@dataclass(frozen=True, slots=True)
class NameScope:
    """The one namespace whose pods may be named: empty for all, None for none."""

    namespace: str | None

    def covers(self, namespace: str) -> bool:
        """True if the pods of that namespace may be named."""
        return self.namespace in ("", namespace)


NO_NAMES: Final = NameScope(None)
ALL_NAMES: Final = NameScope("")


def container_digest(uid: str, container: str) -> str:
    """What stands for a container's name where it may not be told."""
    return _MARK + hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()[:16]


def container_name(uid: str, told: str, pod: Pod) -> str:
    """The name of the pod's container that an agent told, plainly or as a digest; unchanged if it has none.

    ``uid``: the pod's, in the agent's words.
    """
    if not told.startswith(_MARK):
        return told
    return next((c.name for c in pod.containers if container_digest(uid, c.name) == told), told)
