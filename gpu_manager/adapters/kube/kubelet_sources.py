"""Where the node's kubelet is asked for its pods: the first way that answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu_manager.domain.pod import Pod


class KubeletSource(Protocol):
    """One way to ask a kubelet for its pods."""

    def pods(self) -> Sequence[Pod] | None:
        """Return every pod that the kubelet knows; None when it cannot be asked now."""

    def close(self) -> None:
        """Close the connection."""


class FirstSource:
    """The first of several sources that answers; the others are asked only while it does not."""

    def __init__(self, *sources: KubeletSource) -> None:
        self._sources = sources

    def pods(self) -> Sequence[Pod] | None:
        """See :meth:`KubeletSource.pods`."""
        for source in self._sources:
            if (pods := source.pods()) is not None:
                return pods
        return None

    def close(self) -> None:
        """Close every connection."""
        for source in self._sources:
            source.close()
