"""What the adapters that keep a picture by one watch have in common."""

from __future__ import annotations

from gpu_manager.adapters.kube.reflector import Reflector


class WatchedObjects:
    """Begun, waited for and ended with its reflector, which the adapter hands over."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector

    def start(self) -> None:
        """Begin to watch."""
        self._reflector.start()

    def wait(self, seconds: float) -> bool:
        """True once what exists is known (also that nothing does)."""
        return self._reflector.wait(seconds)

    @property
    def error(self) -> str | None:
        """Why the picture may be old; None while the watch is up."""
        return self._reflector.error

    def close(self) -> None:
        """Stop watching (within about a second)."""
        self._reflector.close()
