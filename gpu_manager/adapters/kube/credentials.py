"""Credentials for the API server: a token, a token file that is rotated, or a credential plugin."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gpu_manager.domain.errors import NodeUnready, printable

_FILE_SECONDS: Final = 10.0  # how long a token's file is not read again; the kubelet rotates them every hour
_PLUGIN_SECONDS: Final = 120.0  # seconds for a plugin that does not prompt the user
_EARLY_SECONDS: Final = 10.0  # a credential this close to its expiry is renewed
_API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credentials(Protocol):
    """The source of the ``Authorization`` header; thread-safe."""

    def header(self) -> str:
        """The header's present value, empty for none. Raises NodeUnready: it cannot be obtained."""

    def refused(self) -> bool:
        """Called after a 401. True if the request should be tried again."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant header."""

    value: str = ""

    def header(self) -> str:
        """The value."""
        return self.value

    def refused(self) -> bool:
        """A constant cannot be renewed: False."""
        return False


class TokenFile:
    """A token from a file that another program rotates."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._read: tuple[float, str] | None = None

    def header(self) -> str:
        """The file's token."""
        known, now = self._read, self._now()
        if known is not None and now - known[0] < _FILE_SECONDS:
            return known[1]
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NodeUnready(f"the token file {self._path} cannot be read: {error}") from error
        self._read = now, f"Bearer {token}"
        return f"Bearer {token}"

    def refused(self) -> bool:
        """Read the file again, which may have been rotated since: True."""
        known, self._read = self._read, None
        return known is not None and self.header() != known[1]


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A credential plugin as a kubeconfig names it (``users[].user.exec``).

    ``cluster`` is passed to it on request; ``mode`` is Never, IfAvailable or Always.
    """

    api_version: str
    argv: Sequence[str]
    variables: Mapping[str, str]
    mode: str = "IfAvailable"
    hint: str = ""
    cluster: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PluginCredential:
    """A plugin's output. ``expires`` is in seconds since 1970, None if it has no expiry."""

    token: str
    certificate: str
    key: str
    expires: float | None


class Plugin:
    """Runs a plugin again when its credential has expired or was refused."""

    def __init__(self, command: PluginCommand, now: Callable[[], float] = time.time) -> None:
        self._command = command
        self._now = now
        self._lock = threading.Lock()
        self._known: PluginCredential | None = None

    def header(self) -> str:
        """The plugin's token; empty where it provides a certificate instead."""
        token = self.credential().token
        return f"Bearer {token}" if token else ""

    def refused(self) -> bool:
        """Discard the credential; True if it was not fresh, so that one retry is worth it."""
        with self._lock:
            known, self._known = self._known, None
        return known is not None

    def credential(self) -> PluginCredential:
        """The plugin's credential. Raises NodeUnready: not installed, failed, or malformed."""
        with self._lock:
            known = self._known
            if known is None or (known.expires is not None and self._now() > known.expires - _EARLY_SECONDS):
                known = self._known = _parsed(self._command, self._run())
            return known

    def _run(self) -> bytes:
        command = self._command
        interactive = command.mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if command.mode == "Always" and not interactive:
            raise NodeUnready(f"{_name(command)} must ask you something: use a terminal")
        spec: dict[str, Any] = {"interactive": interactive}
        if command.cluster is not None:
            spec["cluster"] = command.cluster
        info = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": spec}
        variables = {**os.environ, **command.variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(  # noqa: S603  # what the person's own kubeconfig names
                list(command.argv),
                env=variables,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=None if interactive else _PLUGIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeUnready(f"{_name(command)} did not end within {_PLUGIN_SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            hint = f"; {printable(command.hint)}" if command.hint else ""
            why = getattr(error, "strerror", None) or error
            raise NodeUnready(f"{_name(command)} cannot be run: {why}{hint}") from error
        if done.returncode:
            raise NodeUnready(f"{_name(command)} failed with exit code {done.returncode}")
        return done.stdout


def _name(command: PluginCommand) -> str:
    return f"the credential plugin {printable(command.argv[0])}"


def _parsed(command: PluginCommand, printed: bytes) -> PluginCredential:
    try:
        said = json.loads(printed)
        status = said["status"]
        if said["kind"] != "ExecCredential" or said["apiVersion"] not in _API_VERSIONS:
            raise ValueError("another kind")  # noqa: TRY301  # handled as everything that cannot be read
        expires = status.get("expirationTimestamp")
        found = PluginCredential(
            str(status.get("token") or ""),
            str(status.get("clientCertificateData") or ""),
            str(status.get("clientKeyData") or ""),
            dt.datetime.fromisoformat(expires).timestamp() if expires else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NodeUnready(
            f"{_name(command)} printed no ExecCredential of {' or '.join(_API_VERSIONS)}"
        ) from error
    if not found.token and not (found.certificate and found.key):
        raise NodeUnready(f"{_name(command)} gave neither a token nor a certificate")
    return found
