"""Settings that the agent reads from its node's kubelet if its own settings leave them open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.kubelet_config import kubelet_root, topology_policy
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.topology import NumaPolicy

log = structlog.get_logger(__name__)

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class KubeletView:
    """The kubelet of the node ``host``; ``directory`` is where it has its device plugins."""

    host: HostFiles
    directory: Path
    proc: Path = Path("/proc")

    def pod_resources(self, socket: Path | None) -> Path:
        """The directory of the PodResources socket, which lies elsewhere if the kubelet has a --root-dir.

        That directory need not be mounted into the agent: it is found below the node's root, too.
        """
        if socket is not None:
            return socket.parent
        root = kubelet_root(self.host, str(self.directory), self.proc)
        if root == str(self.directory):
            return self.directory / "pod-resources"
        log.info("kubelet_root_dir", root=root, device_plugins=str(self.directory))
        own = Path(root) / "pod-resources"
        return own if own.is_dir() else self.host.seen(self.host.resolve(str(own)) or str(own))

    def numa_policy(self, told: str) -> NumaPolicy:
        """The kubelet's policy, named by ``told``; ``auto``: as read from the kubelet. A difference is
        logged.

        Raises:
            RequestInvalid: ``told`` is not a policy.
        """
        known = {policy.value: policy for policy in NumaPolicy}
        if told != AUTO and told not in known:
            raise RequestInvalid(
                f"--topology-manager-policy is {quoted(told)}: one of {AUTO}, {', '.join(known)}"
            )
        seen = topology_policy(self.host, str(self.directory), self.proc)
        if told == AUTO:
            if seen is not None:
                log.info("topology_manager_policy", kubelet=seen)
            return known.get(seen or "", NumaPolicy.NONE)
        if seen is not None and seen != told:
            log.warning("topology_manager_policy_differs", kubelet=seen, told=told)
        return known[told]
