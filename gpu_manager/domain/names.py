"""Which pods' names an agent's pages give a caller, and how a reader who knows the names finds them again.

An agent answers every caller that reaches its port, and names pods only to callers whose rights the API
server has confirmed. For others a container is the UID of its pod and a digest of its name: only readers of
pods can tell which container that is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from gpu_manager.domain.kube.pod import Pod

_MARK: Final = "~"  # no container's name contains it


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
    """The digest in place of a container's name, for callers that may not see the name."""
    return _MARK + hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()[:16]


def container_name(uid: str, told: str, pod: Pod) -> str:
    """The name of the pod's container from an agent's answer, plain or as a digest; unchanged if unknown.

    ``uid``: the pod's, in the agent's answer.
    """
    if not told.startswith(_MARK):
        return told
    return next((c.name for c in pod.containers if container_digest(uid, c.name) == told), told)
