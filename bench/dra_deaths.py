"""Deaths of agent and kubelet at a chosen step of what they ask of the world."""

from __future__ import annotations

from typing import Any

import grpc


class Killed(Exception):  # noqa: N818  # not an error of the agent: its end
    """The agent has died."""


class Dropped(grpc.RpcError):
    """What a kubelet sees of a driver that died in its call."""

    def details(self) -> str:
        """As gRPC says it."""
        return "Socket closed"


class KubeletKilled(Exception):  # noqa: N818  # as above
    """The kubelet has died."""


class Fuse:
    """Lets the agent live for so many steps; a dead one takes none."""

    def __init__(self) -> None:
        self.left = -1  # none: it lives
        self.burnt = False

    def step(self) -> None:
        """Raises Killed."""
        if self.left == 0 or self.burnt:
            self.burnt = True
            raise Killed
        self.left = max(-1, self.left - 1)


class Fused:
    """A port or adapter, each of whose calls is two steps: one before and one after its effect."""

    def __init__(self, target: Any, fuse: Fuse) -> None:
        self._target, self._fuse = target, fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._fuse.step()
            answer = method(*arguments, **named)
            self._fuse.step()
            return answer

        return call
