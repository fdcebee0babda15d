"""The serving certificate: made, read, checked and switched without a connection noticing.

A new certificate is taken whole, in a TLS context of its own, before any new connection gets it: a pair
that does not match, or half a file, changes nothing.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, Self

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_manager.domain.errors import NodeUnready

log = structlog.get_logger(__name__)

BACKDATE: Final = timedelta(hours=1)  # an API server whose clock is behind must not find it too young
_LARGEST_FILE: Final = 1 << 20
POD_NAME: Final = (
    "scheduler.gpu-quota-admission"  # of the scheduler and the extender of one pod, to each other
)
_POD_DAYS: Final = 3650


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (PEM, leaf first), its key, and when it ends, in seconds since the epoch."""

    certificate: bytes
    key: bytes
    not_after: float


@dataclass(frozen=True, slots=True)
class Issued:
    """A pair signed by an authority of its own, whose key is discarded; ``made`` at that second."""

    pair: Pair
    authority: bytes
    made: float


class Certificates(Protocol):
    """The source of the serving certificate."""

    def check(self) -> None:
        """Load a newer certificate if there is one. Raises NodeUnready: impossible; the served one stays."""


class Switch:
    """The certificate for new connections; pass :attr:`context` to the server once.

    ``prepare`` is called with every context before it is used.
    """

    def __init__(self, prepare: Callable[[ssl.SSLContext], None] = lambda _context: None) -> None:
        self._prepare = prepare
        self.context = _context()
        prepare(self.context)
        # Called in every handshake, with or without a name: the one place where contexts can be exchanged.
        self.context.sni_callback = self._choose
        self._current: tuple[Pair, ssl.SSLContext] | None = None

    @property
    def pair(self) -> Pair | None:
        """The pair in use; None before the first."""
        return self._current[0] if self._current else None

    def take(self, pair: Pair) -> None:
        """Serve ``pair`` from the next connection on. Raises NodeUnready: it cannot be used."""
        context = _context()
        self._prepare(context)
        try:
            with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
                context.load_cert_chain(certificate.path, key.path, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise NodeUnready(
                f"the serving certificate cannot be used: {error}; certificate and key must be PEM and match"
            ) from error
        self._current = pair, context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = self._current[1]
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


class _in_memory:  # noqa: N801  # used as a verb
    """Bytes as a file that no disk sees: OpenSSL reads pairs from files only."""

    def __init__(self, content: bytes) -> None:
        self._descriptor = os.memfd_create("certificate")
        os.write(self._descriptor, content)
        self.path = f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """A pair from PEM. Raises NodeUnready: it is not a valid certificate and key."""
    try:
        (leaf, *_) = x509.load_pem_x509_certificates(certificate)
    except ValueError as error:
        raise NodeUnready(f"the serving certificate cannot be read: {error}") from error
    return Pair(certificate, key, leaf.not_valid_after_utc.timestamp())


class FileCertificates:
    """A certificate and key that someone else renews in place (cert-manager, a mounted Secret)."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        switch: Switch,
        noted: Callable[[bool], None] = lambda _taken: None,
    ) -> None:
        """``noted`` is told of every new content whether it was taken."""
        self._paths = certificate, key
        self._switch = switch
        self._noted = noted
        self._seen: tuple[bytes, bytes] | None = None

    def check(self) -> None:
        """Load the files if they changed. Raises NodeUnready as long as they cannot be used."""
        certificate, key = map(_read, self._paths)
        served = self._switch.pair
        if served is not None and (served.certificate, served.key) == (certificate, key):
            return
        new, self._seen = (certificate, key) != self._seen, (certificate, key)
        try:
            pair = read_pair(certificate, key)
            self._switch.take(pair)
        except NodeUnready:
            if new:
                self._noted(False)  # noqa: FBT003  # its one argument
            raise
        self._noted(True)  # noqa: FBT003  # its one argument
        log.info("certificate_loaded", file=str(self._paths[0]), until=_shown(pair.not_after))


class ClientGuard:
    """Serves a certificate from files, and verifies client certificates against an authority from a file.

    A client may come without one; the application decides what it may do. Every connection verifies anew:
    OpenSSL would accept a resumed session although its authority has been withdrawn meanwhile.
    """

    def __init__(
        self, certificate: Path, key: Path, authority: Path, withdrawn: Callable[[], None] = lambda: None
    ) -> None:
        """``withdrawn`` is told when an authority is trusted no more: its clients may be connected."""
        self._authority = authority
        self._withdrawn = withdrawn
        self._trusted = b""
        self._switch = Switch(self._prepare)
        self._files = FileCertificates(certificate, key, self._switch)

    @property
    def context(self) -> ssl.SSLContext:
        """For the server."""
        return self._switch.context

    def check(self) -> None:
        """Load the files if they changed. Raises NodeUnready: they cannot be used; the old ones stay."""
        trusted, before = _read(self._authority), self._trusted
        if trusted != before:
            authorities = certificates_in(trusted)
            if not authorities:
                raise NodeUnready(f"{self._authority} holds no certificate of an authority in PEM")
            self._trusted = trusted
            if self._switch.pair is not None:
                self._switch.take(self._switch.pair)
            if not set(certificates_in(before)) <= set(authorities):
                self._withdrawn()
        self._files.check()

    def look(self) -> None:
        """:meth:`check` for a run loop."""
        try:
            self.check()
        except NodeUnready as error:
            log.warning("extender_certificate_renewal_failed", reason=str(error))

    def _prepare(self, context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # the older one resumes without a ticket, too
        context.num_tickets = 0
        if self._trusted:
            context.load_verify_locations(cadata=self._trusted.decode())


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM text; empty if it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise NodeUnready(
            f"cannot read {path}: {error.strerror}; mount the Secret that cert-manager fills, "
            "or leave --tls-cert-file out to let the service sign for itself"
        ) from error
    if len(content) > _LARGEST_FILE:
        raise NodeUnready(f"{path} has more than {_LARGEST_FILE} bytes: it holds no certificate")
    return content


def issue(
    names: Sequence[str], now: float, life_days: int, authority_name: str, *, clients: bool = False
) -> Issued:
    """A new authority, and a server's certificate for ``names`` signed by it, from the second ``now`` on.

    ``clients``: a client may show it too, under the first of the names.
    """
    start = datetime.fromtimestamp(now, UTC).replace(microsecond=0)
    window = start - BACKDATE, start + timedelta(days=life_days)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority_name)])
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), window)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if clients else [])]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    leaf = (
        _builder(subject, issuer, key.public_key(), window)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Issued(
        Pair(leaf.public_bytes(pem), private, window[1].timestamp()),
        authority.public_bytes(pem),
        start.timestamp(),
    )


def write_pod_certificate(directory: Path, now: float) -> None:
    """Write ``ca.crt``, ``tls.crt`` and ``tls.key``, by which the containers of one pod identify one another.

    The authority's key is discarded. The pair lives as long as the directory, which is the pod's.

    Raises:
        NodeUnready: the directory cannot be written.
    """
    made = issue((POD_NAME,), now, _POD_DAYS, f"{POD_NAME} authority", clients=True)
    files = {"ca.crt": made.authority, "tls.crt": made.pair.certificate, "tls.key": made.pair.key}
    try:
        for name, content in files.items():
            path = directory / name
            path.touch(mode=0o600)
            path.write_bytes(content)
    except OSError as error:
        raise NodeUnready(f"cannot write {directory}: {error.strerror}; mount a volume there") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, window: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(window[0])
        .not_valid_after(window[1])
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
