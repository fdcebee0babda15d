"""Address of the API server and credentials, from kubeconfig files as kubectl reads them, or of a pod.

https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ describes the files. Of several, the first that
has a name decides what it means, and the first that names a context decides which is current.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gpu_manager.adapters.http import checked_url, proxy_of
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable
from gpu_manager.domain.untrusted import mapping, mappings, text

# Credentials for the API server: a token, a token file that is rotated, or a credential plugin.


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


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_OTHER_LOGINS: Final = (
    "tokenFile", "exec", "username", "password", "client-certificate", "client-certificate-data",
    "client-key", "client-key-data", "auth-provider",
)  # fmt: skip
_LARGEST: Final = 16 << 20
_EXEC_CLUSTER: Final = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
)


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Everything that a connection needs. ``headers`` are sent with every request; ``proxy`` is empty for
    none.
    """

    url: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""
    credentials: Credentials = field(default_factory=Fixed)
    headers: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    namespace: str = "default"


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line that override the kubeconfig; empty for no override."""

    cluster: str = ""
    user: str = ""
    server: str = ""
    token: str = ""
    as_user: str = ""
    as_groups: tuple[str, ...] = ()


def access_by_url(url: str, token: str | None) -> ApiAccess:
    """The server at ``url``, by a token if there is one."""
    return ApiAccess(url, proxy=proxy_of(url), credentials=Fixed(f"Bearer {token}" if token else ""))


def access_of_pod(directory: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """The cluster that this pod runs in, with its service account and namespace. Raises RequestInvalid."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise RequestInvalid("KUBERNETES_SERVICE_HOST and _PORT are not set")
    try:
        tls = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        credentials = TokenFile(directory / "token")
        if not (directory / "token").read_text().strip():
            raise RequestInvalid(f"{directory / 'token'} is empty")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"{directory}: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    try:
        namespace = (directory / "namespace").read_text().strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""
    return ApiAccess(
        f"https://{shown}:{port}", tls, credentials=credentials, namespace=namespace or "default"
    )


def access_of(paths: str, context: str = "", over: Overrides | None = None) -> ApiAccess:
    """A context of the files ``paths`` (as in ``$KUBECONFIG``), the current one if none is named; ``over``
    overrides it.

    Raises:
        RequestInvalid: a file cannot be read, has nothing usable, or has no such context.
    """
    over = over or Overrides()
    merged = _Merged.of([Path(part) for part in paths.split(os.pathsep) if part])
    name = context or merged.current
    if not name and not over.server:
        raise RequestInvalid("no context is current: choose one with kubectl config use-context")
    chosen = merged.contexts.get(name)
    if chosen is None and name:
        has = ", ".join(merged.contexts) or "none"
        raise RequestInvalid(f"there is no context {printable(name)!r}; it has {has}")
    spoken = chosen[1] if chosen else {}
    whose = f"the context {printable(name)} names no"
    place, cluster = _entry(merged.clusters, "cluster", over.cluster, text(spoken.get("cluster")), whose)
    home, user = _entry(merged.users, "user", over.user, text(spoken.get("user")), whose)
    if not cluster and not over.server:
        raise RequestInvalid(f"{whose} cluster that is there")
    cluster = {**cluster, "server": over.server} if over.server else cluster
    if over.token:
        user = {key: value for key, value in user.items() if key not in _OTHER_LOGINS} | {"token": over.token}
    if over.as_user or over.as_groups:
        user = {**user, "as": over.as_user, "as-groups": list(over.as_groups), "as-uid": ""}
    return _access((place, cluster), (home, user), text(spoken.get("namespace")) or "default")


def context_names(paths: str) -> list[str]:
    """The contexts of the files. Raises RequestInvalid."""
    return list(_Merged.of([Path(part) for part in paths.split(os.pathsep) if part]).contexts)


def _entry(
    entries: Mapping[str, Entry], kind: str, wanted: str, usual: str, whose: str
) -> tuple[Path, Mapping[str, Any]]:
    """The entry that is wanted, else the context's; an empty one where neither names any."""
    if wanted and wanted not in entries:
        has = ", ".join(entries) or "none"
        raise RequestInvalid(f"there is no {kind} {printable(wanted)!r}; it has {has}")
    if usual and usual not in entries and not wanted:
        raise RequestInvalid(f"{whose} {kind} that is there")
    return entries.get(wanted or usual, (Path(), {}))


Entry = tuple[Path, Mapping[str, Any]]  # (directory for relative paths, entry)


@dataclass(slots=True)
class _Merged:
    current: str = ""
    clusters: dict[str, Entry] = field(default_factory=dict)
    users: dict[str, Entry] = field(default_factory=dict)
    contexts: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> _Merged:
        """Merge the files that exist, the first taking precedence; a single file must exist."""
        merged = cls()
        for path in paths:
            if len(paths) > 1 and not path.exists():
                continue
            config = _loaded(path)
            merged.current = merged.current or text(config.get("current-context"))
            for group, key in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
                known: dict[str, Entry] = getattr(merged, group)
                for entry in mappings(config.get(group)):
                    known.setdefault(text(entry.get("name")), (path.parent, mapping(entry.get(key))))
        return merged


def _loaded(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415  # for a kubeconfig alone

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with path.open("rb") as file:
            config = yaml.load(file.read(_LARGEST), Loader=loader)  # noqa: S506  # safe ones, both
    except (OSError, ValueError) as error:
        raise RequestInvalid(getattr(error, "strerror", None) or "it cannot be read") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise RequestInvalid("it is not YAML") from error
    if not isinstance(config, Mapping):
        raise RequestInvalid("it is not a kubeconfig")
    return config


def _access(cluster: Entry, user: Entry, namespace: str) -> ApiAccess:
    place, spoken = cluster
    url = text(spoken.get("server"))
    if not url:
        raise RequestInvalid("the cluster has no server")
    if not url.startswith(("http://", "https://")):
        url = f"https://{url}"
    url = checked_url(url)
    credentials, certificate, key = _credentials(user, spoken)
    authority = _content(place, spoken, "certificate-authority")
    tls = None
    if url.startswith("https://"):
        tls = _tls(authority, certificate, key, checks=spoken.get("insecure-skip-tls-verify") is not True)
    return ApiAccess(
        url,
        tls,
        text(spoken.get("tls-server-name")),
        _proxy(text(spoken.get("proxy-url")) or proxy_of(url)),
        credentials,
        _impersonation(user[1]),
        namespace,
    )


def _credentials(user: Entry, cluster: Mapping[str, Any]) -> tuple[Credentials, str, str]:
    """Source of the Authorization header, and the PEM of certificate and key."""
    place, spoken = user
    certificate = _content(place, spoken, "client-certificate")
    key = _content(place, spoken, "client-key")
    if file := text(spoken.get("tokenFile")):
        return TokenFile(place / file), certificate, key
    if token := text(spoken.get("token")):
        return Fixed(f"Bearer {token}"), certificate, key
    if plugin := mapping(spoken.get("exec")):
        asked = Plugin(_plugin(place, plugin, cluster))
        if not certificate:
            said = asked.credential()
            certificate, key = said.certificate, said.key
        return asked, certificate, key
    if name := text(spoken.get("username")):
        both = f"{name}:{text(spoken.get('password'))}".encode()
        return Fixed(f"Basic {base64.b64encode(both).decode()}"), certificate, key
    if "auth-provider" in spoken:
        raise RequestInvalid("auth-provider is no longer supported, as in kubectl since 1.26: use exec")
    return Fixed(), certificate, key


def _plugin(place: Path, spoken: Mapping[str, Any], cluster: Mapping[str, Any]) -> PluginCommand:
    command = text(spoken.get("command"))
    if not command:
        raise RequestInvalid("the credential plugin (exec) has no command")
    if os.sep in command:
        command = str(place / command)
    arguments = spoken.get("args")
    told = {key: cluster[key] for key in _EXEC_CLUSTER if key in cluster}
    return PluginCommand(
        text(spoken.get("apiVersion")) or "client.authentication.k8s.io/v1",
        [command, *map(str, arguments if isinstance(arguments, list) else ())],
        {text(v.get("name")): text(v.get("value")) for v in mappings(spoken.get("env")) if v.get("name")},
        text(spoken.get("interactiveMode")) or "IfAvailable",
        text(spoken.get("installHint")),
        told if spoken.get("provideClusterInfo") is True else None,
    )


def _impersonation(user: Mapping[str, Any]) -> Mapping[str, str | tuple[str, ...]]:
    name, groups = text(user.get("as")), user.get("as-groups")
    if user.get("as-user-extra"):
        raise RequestInvalid("as-user-extra is not supported: log in as that user")
    names = tuple(text(group) for group in groups) if isinstance(groups, list) else ()
    if names and not name:
        raise RequestInvalid("groups to act in (as-groups, --as-group) go with a user alone (as, --as)")
    if not all(one.isascii() and one.isprintable() for one in (name, *names)):
        raise RequestInvalid("the user and groups to act as must be printable ASCII")
    headers: Mapping[str, str | tuple[str, ...]] = {
        "Impersonate-User": name,
        "Impersonate-Uid": text(user.get("as-uid")),
        "Impersonate-Group": names,
    }
    return {key: value for key, value in headers.items() if value}


def _content(place: Path, spoken: Mapping[str, Any], key: str) -> str:
    """PEM, from ``key-data`` or the file that ``key`` names; empty for neither."""
    data, file = text(spoken.get(f"{key}-data")), text(spoken.get(key))
    try:
        if data:
            return base64.b64decode(data, validate=True).decode()
        return (place / file).read_text() if file else ""
    except (OSError, ValueError, binascii.Error) as error:
        raise RequestInvalid(f"{key} cannot be read: {error}") from error


def _tls(authority: str, certificate: str, key: str, *, checks: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority or None)
        if not checks:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            with tempfile.NamedTemporaryFile(
                "w"
            ) as both:  # ssl reads files only; this one is readable by the caller alone
                both.write(f"{certificate}\n{key}\n")
                both.flush()
                context.load_cert_chain(both.name)
    except (ssl.SSLError, OSError, ValueError) as error:
        what = "client certificate and key" if certificate else "certificate-authority"
        raise RequestInvalid(f"{what} cannot be used: {error}") from error
    return context


def _proxy(url: str) -> str:
    if url and urlsplit(url).scheme not in ("http", "https"):
        raise RequestInvalid(f"the proxy {printable(url)} is none for HTTP: others are not supported")
    return url
