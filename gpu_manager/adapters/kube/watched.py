"""The common part of adapters that mirror a resource by one watch."""

from __future__ import annotations

from gpu_manager.adapters.kube.reflector import Reflector


class WatchedObjects:
    """Starts, awaits and stops the reflector that the adapter provides."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector

    def start(self) -> None:
        """Start the watch."""
        self._reflector.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the first complete list, which may be empty; False if it takes longer."""
        return self._reflector.wait(seconds)

    @property
    def error(self) -> str | None:
        """Why the contents may be stale; None while the watch is up."""
        return self._reflector.error

    @property
    def unreadable(self) -> int:
        """How often an object could not be read."""
        return self._reflector.unreadable

    @property
    def spoiled(self) -> int:
        """Number of objects that cannot be read at present."""
        return len(self._reflector.spoiled)

    def close(self) -> None:
        """Stop watching (within about a second)."""
        self._reflector.close()
