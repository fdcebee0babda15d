"""An API server on loopback that the official Kubernetes clients talk to: a stand-in that ships.

It keeps what the real one promises to a scheduler extender, a node agent and a kubelet: one rising resource
version, optimistic locking, watches that expire, bindings that merge annotations, graceful deletion,
evictions under budgets, extended resources checked. It has no controllers and keeps nothing on disk.
"""

from sandbox.api.access import ADMIN, ANONYMOUS, AccessRules, User, service_account
from sandbox.api.admission import Hook, https_hook
from sandbox.api.server import ADMIN_TOKEN, StandInApi
from sandbox.api.status import ApiError

__all__ = [
    "ADMIN",
    "ADMIN_TOKEN",
    "ANONYMOUS",
    "AccessRules",
    "ApiError",
    "Hook",
    "StandInApi",
    "User",
    "https_hook",
    "service_account",
]
