"""The agent's view of Kubernetes: its own node and that node's pods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.adapters.kube.kubeconfig import SERVICE_ACCOUNT
from gpu_manager.adapters.kube.kubelet_pods import KubeletPods
from gpu_manager.adapters.kube.node import KubeNode
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.pods import FirstSource, KubeletSource, KubePods
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.kube.reviews import KubeReviews
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.store import Store
from gpu_manager.runtime.access import AccessCheck


class Kube:
    """One node: ``pods`` and ``node`` over one connection, started and stopped together; ``access`` is what
    callers may do.

    Args:
        connection: from :func:`connect`; closed by :meth:`close`.
        node: this node's name.
        clock: time.
        kubelet_url: ``https://<node>:10250`` to ask the kubelet for its pods, None not to.
        kubelet_ca: who signs the kubelet's certificate.
        token_file: the token shown to the kubelet.
        pause: between attempts, for tests.
        tombstone_seconds: how long a deleted pod is remembered.
        lending: whole cards go by NVIDIA's resource name too.
        pods_api: asks the kubelet for its pods before its port is; closed by :meth:`close`.
        mark_evictions: pods are not evicted, but marked for an evictor.
        cordons: keeps the operator's cordons over the Node object's life.
        startup_taint: the taint of a node that joined is removed once pods can be given cards there.
    """

    def __init__(
        self,
        connection: Connection,
        node: str,
        *,
        clock: Clock,
        kubelet_url: str | None = None,
        kubelet_ca: Path = SERVICE_ACCOUNT / "ca.crt",
        token_file: Path = SERVICE_ACCOUNT / "token",
        pause: Pause | None = None,
        tombstone_seconds: float = 120.0,
        lending: bool = False,
        mark_evictions: bool = False,
        pods_api: KubeletSource | None = None,
        cordons: Store | None = None,
        startup_taint: bool = False,
    ) -> None:
        self._connection = connection
        self.access = AccessCheck(KubeReviews(connection), clock)
        self._outbox = Outbox(clock, pause)
        sources: list[KubeletSource] = [pods_api] if pods_api is not None else []
        self._kubelet_pods = (
            KubeletPods(kubelet_url, clock, token_file, kubelet_ca, node) if kubelet_url else None
        )
        if self._kubelet_pods is not None:
            sources.append(self._kubelet_pods)
        self.pods = KubePods(
            connection,
            node,
            clock=clock,
            outbox=self._outbox,
            kubelet=FirstSource(*sources) if sources else None,
            pause=pause,
            tombstone_seconds=tombstone_seconds,
            lending=lending,
            mark_evictions=mark_evictions,
        )
        self.node = KubeNode(
            connection,
            node,
            clock=clock,
            outbox=self._outbox,
            pause=pause,
            cordons=cordons,
            startup_taint=startup_taint,
        )

    def start(self) -> None:
        """Start the watches and the writer thread."""
        self._outbox.start()
        self.pods.start()
        self.node.start()

    @property
    def kubelet_unverified(self) -> bool:
        """True if the kubelet's certificate could not be verified, so that it got no token."""
        return self._kubelet_pods is not None and self._kubelet_pods.unverified

    @property
    def writes_dropped(self) -> int:
        """Writes given up because too many waited."""
        return self._outbox.dropped

    @property
    def unreadable(self) -> Mapping[str, int]:
        """How often an object could not be read, by resource."""
        return {"nodes": self.node.unreadable, "pods": self.pods.unreadable}

    @property
    def trouble(self) -> str:
        """The resources that cannot be read at present, for /readyz, without names; empty if all can."""
        count = self.node.spoiled + self.pods.spoiled
        return (
            f"{count} of the node's objects cannot be read: see object_unreadable in the log" if count else ""
        )

    def close(self) -> None:
        """Stop all threads, within about a second each, and close the connection."""
        self.pods.close()
        self.node.close()
        self._outbox.close()
        self._connection.close()
