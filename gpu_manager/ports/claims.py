"""ResourceClaims of the API server, and the ResourceSlice of the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpu_manager.domain.dra.allocated import AllocatedClaim
from gpu_manager.domain.dra.device import SharedDevice


class Claims(Protocol):
    """ResourceClaims, as the API server has them."""

    def read(self, namespace: str, name: str) -> AllocatedClaim | None:
        """Read the claim now; None if there is none of that name.

        Raises:
            NodeUnready: the API server does not answer.
            RequestInvalid: it is not allocated, none of it is ours, or an amount cannot be given.
        """

    def allocated(self, pool: str) -> Mapping[str, str]:
        """List the devices of the pool that any claim of the cluster holds, each with the
        ``namespace/name`` of such a claim; one that looks by admin access holds none. Raises NodeUnready.
        """


class Slices(Protocol):
    """The node's cards as Kubernetes' scheduler sees them."""

    def publish(self, devices: Sequence[SharedDevice]) -> bool:
        """Let the node's pool have exactly these devices, in this order; False if it had them already.

        Raises NodeUnready: the API server refuses, does not answer, or does not keep what makes a device one
        that claims can share.
        """
