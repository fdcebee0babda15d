"""A stand-in for the kubelet, as device plugins and PodResources' callers meet it. Ships with the product.

It follows the kubelet of Kubernetes 1.36 where that is inconvenient: one pod at a time, resources in
random order, ids at random unless the plugin says otherwise, no second dial, devices freed late.
What it does not have: real containers (the caller starts and stops them in name), CPU and memory
managers, dynamic resource allocation.
"""

from gpu_manager.domain.topology import NumaPolicy
from sandbox.kubelet.checkpoint import CheckpointGrant
from sandbox.kubelet.endpoint import PodsEndpoint
from sandbox.kubelet.podresources import Limiter
from sandbox.kubelet.pods_api import PodsApiServer
from sandbox.kubelet.standin import StandInKubelet
from sandbox.kubelet.values import AdmissionResult, Hooks, Step

__all__ = [
    "AdmissionResult",
    "CheckpointGrant",
    "Hooks",
    "Limiter",
    "NumaPolicy",
    "PodsApiServer",
    "PodsEndpoint",
    "StandInKubelet",
    "Step",
]
