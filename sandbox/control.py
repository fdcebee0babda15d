"""How another terminal reaches a running sandbox, over a unix socket: an order is one JSON line, and of the
answer every line is sent as soon as it is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpu_manager.domain.errors import NodeUnready, RequestInvalid, VcudaError
from gpu_manager.runtime import threads
from sandbox import commands
from sandbox.simulated_cluster import Sandbox

SOCKET: Final = "control.sock"
_LARGEST: Final = 16 << 20  # bytes of an order: some manifests
_SECONDS: Final = 30.0  # of silence: each thing that is done is told at once
_SHOWN: Final = 5  # refusals that are spelled out


@dataclass(frozen=True, slots=True)
class SandboxOrder:
    """What one command line asks: objects to apply, pods to delete, faults, in this order."""

    apply: Sequence[Mapping[str, Any]] = ()
    delete: Sequence[str] = ()
    faults: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.apply or self.delete or self.faults)


def obey(sandbox: Sandbox, order: SandboxOrder) -> Iterator[str]:
    """Do it all; one line for each thing done.

    Raises:
        RequestInvalid: at the end, for everything that was refused; the rest is done.
    """
    refused: list[str] = []
    steps: list[Callable[[], str]] = [
        *(partial(commands.apply_one, sandbox.api, obj) for obj in order.apply),
        *(partial(commands.delete, sandbox.api, key) for key in order.delete),
        *(partial(commands.fault, sandbox, text) for text in order.faults),
    ]
    for step in steps:
        try:
            yield step()
        except RequestInvalid as error:
            refused.append(str(error))
    if len(refused) == 1:
        raise RequestInvalid(refused[0])
    if refused:
        shown, more = "; ".join(refused[:_SHOWN]), len(refused) - _SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        raise RequestInvalid(f"{len(refused)} of {len(steps)} were refused: {shown}")


class ControlServer:
    """Listens in the sandbox's directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        class OrderHandler(socketserver.StreamRequestHandler):
            timeout = _SECONDS

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # whoever asked has gone, and the rest is not wanted
                    for part in _answer(sandbox, self.rfile.readline(_LARGEST)):
                        self.wfile.write(json.dumps(part).encode() + b"\n")

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


def _answer(sandbox: Sandbox, line: bytes) -> Iterator[dict[str, Any]]:
    """The lines, and last how it ended."""
    try:
        asked = json.loads(line)
        order = SandboxOrder(**{key: list(asked.get(key) or ()) for key in ("apply", "delete", "faults")})
        for told in obey(sandbox, order):
            yield {"line": told}
    except RequestInvalid as error:
        yield {"invalid": str(error)}
    except VcudaError as error:
        yield {"error": str(error)}
    except (ValueError, AttributeError, TypeError) as error:
        yield {"invalid": f"not an order: {error}"}
    else:
        yield {"done": True}


def send(directory: Path, order: SandboxOrder, tell: Callable[[str], None]) -> bool:
    """Give an order to the sandbox that runs there, and ``tell`` each line as it comes; False if none runs.

    Raises:
        RequestInvalid: it says that the order is wrong.
        NodeUnready: it could not do it, or does not answer.
    """
    path = directory / SOCKET
    if len(os.fsencode(path)) > 107 or not path.exists():  # too long for a socket, or none there
        return False
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_SECONDS)
        try:
            link.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False  # left behind by one that was killed
        except OSError as error:
            raise NodeUnready(f"{path}: {error.strerror or error}") from None
        try:
            link.sendall(json.dumps({f: getattr(order, f) for f in order.__slots__}).encode() + b"\n")
            lines = link.makefile("rb")
            while "line" in (answer := json.loads(lines.readline(_LARGEST))):
                tell(str(answer["line"]))
        except (OSError, ValueError) as error:
            raise NodeUnready(f"the sandbox in {directory} does not answer: {error}") from None
    if "invalid" in answer:
        raise RequestInvalid(str(answer["invalid"]))
    if "error" in answer:
        raise NodeUnready(str(answer["error"]))
    return True
