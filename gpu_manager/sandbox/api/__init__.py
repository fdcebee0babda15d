"""An API server on loopback that the official Kubernetes clients talk to: a stand-in that ships.

It keeps what the real one promises to a scheduler extender, a node agent and a kubelet: one rising resource
version, optimistic locking, watches that expire, bindings that merge annotations, graceful deletion,
evictions under budgets, extended resources checked. It has no controllers and keeps nothing on disk.
"""

from gpu_manager.sandbox.api.access import ADMIN, ANONYMOUS, Access, User, service_account
from gpu_manager.sandbox.api.admission import Hook, https_hook
from gpu_manager.sandbox.api.server import ADMIN_TOKEN, StandInApi
from gpu_manager.sandbox.api.status import ApiError

__all__ = [
    "ADMIN",
    "ADMIN_TOKEN",
    "ANONYMOUS",
    "Access",
    "ApiError",
    "Hook",
    "StandInApi",
    "User",
    "https_hook",
    "service_account",
]
