"""A gRPC server on a unix socket that starts and ends cleanly, with its threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from gpu_manager.domain.errors import NodeUnready


class SocketServer:
    """One service on one socket. ``add`` puts the service on the server that it is handed."""

    def __init__(self, name: str, add: Callable[[grpc.Server], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix=name)
        self._server = grpc.server(self._pool)
        add(self._server)
        self._path: Path | None = None

    def start(self, path: Path) -> None:
        """Listen on ``path``, in place of what was there.

        Raises:
            NodeUnready: the socket cannot be made.
        """
        bound = path.with_name(".new")  # gRPC removes what it bound when it stops; a killed kubelet does not
        try:
            self._server.add_insecure_port(f"unix://{bound.absolute()}")
            bound.rename(path)
        except (RuntimeError, OSError) as error:
            raise NodeUnready(
                f"cannot listen on {path}: a socket needs a writable directory and at most 107 characters"
            ) from error
        self._path = path
        self._server.start()

    def stop(self, *, leave: bool = False) -> None:
        """End every call, and wait until all threads have ended; ``leave`` the socket's file."""
        if self._path is not None and not leave:
            self._path.unlink(missing_ok=True)
        self._server.stop(grace=None).wait()
        self._pool.shutdown()
