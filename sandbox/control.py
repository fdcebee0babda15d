"""How another terminal reaches a running sandbox: one JSON line each way over a unix socket."""

from __future__ import annotations

import json
import os
import socket
import socketserver
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_manager import threads
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, VcudaError
from sandbox import commands
from sandbox.simulated_cluster import Sandbox

SOCKET: Final = "control.sock"
_LARGEST: Final = 16 << 20  # bytes of an order: some manifests
_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class SandboxOrder:
    """What one command line asks: objects to apply, pods to delete, faults, in this order."""

    apply: Sequence[Mapping[str, Any]] = ()
    delete: Sequence[str] = ()
    faults: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.apply or self.delete or self.faults)


def obey(sandbox: Sandbox, order: SandboxOrder) -> list[str]:
    """Do it all; one line for each thing done. Raises VcudaError at the first that fails."""
    lines = commands.apply(sandbox.api, order.apply)
    lines += [commands.delete(sandbox.api, key) for key in order.delete]
    return lines + [commands.fault(sandbox, text) for text in order.faults]


class ControlServer:
    """Listens in the sandbox's directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        class OrderHandler(socketserver.StreamRequestHandler):
            timeout = _SECONDS

            def handle(self) -> None:
                self.wfile.write(_answer(sandbox, self.rfile.readline(_LARGEST)))

        self._path = sandbox.directory / SOCKET
        self._server = _Server(str(self._path), OrderHandler)
        self._path.chmod(0o600)
        self._thread = threads.forever("control", lambda: self._server.serve_forever(0.05))

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and remove its name."""
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


def _answer(sandbox: Sandbox, line: bytes) -> bytes:
    try:
        asked = json.loads(line)
        order = SandboxOrder(**{key: list(asked.get(key) or ()) for key in ("apply", "delete", "faults")})
        answer: dict[str, Any] = {"lines": obey(sandbox, order)}
    except RequestInvalid as error:
        answer = {"invalid": str(error)}
    except VcudaError as error:
        answer = {"error": str(error)}
    except (ValueError, AttributeError, TypeError) as error:
        answer = {"invalid": f"not an order: {error}"}
    return json.dumps(answer).encode() + b"\n"


def send(directory: Path, order: SandboxOrder) -> list[str] | None:
    """Give an order to the sandbox that runs there; None if none does.

    Raises:
        RequestInvalid: it says that the order is wrong.
        NodeUnready: it could not do it, or does not answer.
    """
    path = directory / SOCKET
    if len(os.fsencode(path)) > 107 or not path.exists():  # as whole._take: no sandbox can be there
        return None
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_SECONDS)
        try:
            link.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None  # left behind by one that was killed
        except OSError as error:
            raise NodeUnready(f"{path}: {error.strerror or error}") from None
        try:
            link.sendall(json.dumps({f: getattr(order, f) for f in order.__slots__}).encode() + b"\n")
            answer = json.loads(link.makefile("rb").readline(_LARGEST))
        except (OSError, ValueError) as error:
            raise NodeUnready(f"the sandbox in {directory} does not answer: {error}") from None
    if "invalid" in answer:
        raise RequestInvalid(str(answer["invalid"]))
    if "error" in answer:
        raise NodeUnready(str(answer["error"]))
    return [str(line) for line in answer["lines"]]
