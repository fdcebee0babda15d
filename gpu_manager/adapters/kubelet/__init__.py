"""Clients of the kubelet: its device assignments, plugin registration, detection of its restarts.

The only package that speaks to the kubelet's sockets and reads its checkpoint file.
"""

from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.adapters.kubelet.registration import SocketChange, SocketWatch, register

__all__ = ["KubeletClient", "SocketChange", "SocketWatch", "register"]
