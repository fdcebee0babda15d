"""Injection strategies: how a container receives its cards."""

from __future__ import annotations

from enum import Enum


class Strategy(Enum):
    """``direct``: mounts and nodes by the kubelet. ``cdi``: a CDI spec of our own. ``nvidia``: the NVIDIA
    runtime brings the driver, our preload the limits. ``simulated``: stand-in libraries and no node at all.
    """

    DIRECT = "direct"
    CDI = "cdi"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"
