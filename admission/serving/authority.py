"""Certificates that the service signs for itself, stored in a Secret that all replicas share.

Every renewal has an authority of its own, whose key is discarded. The order keeps every request valid: the
new pair is written to the Secret (one replica wins), its authority joins the old one in the webhook
configurations, and the pair is served only once every API server has had time to read those. Each replica
counts that time on its own monotonic clock from its own read of the configurations, so clocks may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from admission.serving.certs import BACKDATE, Issued, Switch, certificates_in, issue, read_pair
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

_KEYS: Final = ("tls.crt", "tls.key", "ca.crt")
_PREVIOUS: Final = ("previous.crt", "previous.key", "previous-ca.crt")
_TRIES: Final = 5
_MOST_AUTHORITIES: Final = 4  # in one caBundle: two in use, and room for two replicas that renew at once

# A webhook configuration: its id, its version, and the authorities each of its webhooks trusts (PEM).
Anchor = tuple[str, str, Mapping[str, bytes]]


class Vault(Protocol):
    """The Secret, and the webhook configurations with the trusted authorities. All methods raise
    NodeUnready.
    """

    def load(self) -> tuple[Mapping[str, bytes], str] | None:
        """The Secret's data and version; None if there is no Secret."""

    def save(self, data: Mapping[str, bytes], version: str | None) -> bool:
        """Replace the data of ``version`` (None: create it). False if another replica was first."""

    def anchors(self) -> Sequence[Anchor]:
        """The webhook configurations that exist."""

    def anchor(self, name: str, version: str, bundles: Mapping[str, bytes]) -> bool:
        """Write the trusted authorities into each webhook of ``version``. False if another replica was
        first.
        """


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the Secret holds: the newest pair, and the one that is served until the newest is trusted."""

    newest: Issued
    previous: Issued | None = None

    def serviceable(self, now: float) -> tuple[Issued, ...]:
        """The pairs that have not ended, newest first; the newest always."""
        old = self.previous
        return (self.newest, old) if old is not None and old.pair.not_after > now else (self.newest,)


@dataclass(eq=False, repr=False)
class SelfSigned:
    """Renews the serving certificate automatically.

    ``names`` are the DNS names under which API servers call (``<service>.<namespace>.svc`` first).

    ``noted`` is told of each certificate that is taken.
    """

    vault: Vault
    switch: Switch
    clock: Clock
    _: KW_ONLY
    names: InitVar[Sequence[str]]
    life_days: int = 90
    settle_seconds: float = 60.0
    noted: Callable[[bool], None] = lambda _taken: None

    def __post_init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._authority_name = f"{names[0]} webhook authority"[:64]
        self._trusted_since: tuple[bytes, float] | None = None  # newest authority, monotonic seconds
        self._served: Issued | None = None

    def check(self) -> None:
        """Renew if due, publish the authority to API servers, and serve a pair that they trust.

        Raises:
            NodeUnready: the API server does not answer, or another replica was first each time.
        """
        kept = self._kept()
        if self.switch.pair is None:
            self._serve(kept, settled=False)  # whatever follows may fail; an old pair is better than none
        self._announce(kept)
        since = self._trusted_since
        self._serve(
            kept, settled=since is not None and self.clock.monotonic() - since[1] >= self.settle_seconds
        )

    def _kept(self) -> _Kept:
        for _ in range(_TRIES):
            found = self.vault.load()
            now = self.clock.now()
            kept = _decode(found[0]) if found else None
            if kept is not None and not self._is_due(kept.newest, now):
                return kept
            made = issue(self._names, now, self.life_days, self._authority_name)
            old = kept.newest if kept is not None else self._served  # someone may have deleted the Secret
            renewed = _Kept(made, old if old is not None and old.pair.not_after > now else None)
            if self.vault.save(_encode(renewed), found[1] if found else None):
                log.info("certificate_issued", names=self._names, until=made.pair.not_after)
                return renewed
        raise NodeUnready(
            "the certificate's Secret changes faster than it can be read: is another program writing it?"
        )

    def _is_due(self, issued: Issued, now: float) -> bool:
        """At two thirds of its life, or when it lacks a name of the service.

        One name too many does no harm: replicas before and after a change never renew against each other.
        """
        life = issued.pair.not_after - issued.made
        return now >= issued.made + life * 2 / 3 or not set(self._names) <= set(_names_of(issued))

    def _announce(self, kept: _Kept) -> None:
        """Make every webhook trust every pair that may be served; remember since when it is so."""
        now = self.clock.now()
        ours = [issued.authority for issued in kept.serviceable(now)]
        in_place, newest = True, kept.newest.authority
        for name, version, bundles in self.vault.anchors():
            wanted = {
                hook: merge(bundle, ours, now, self._authority_name) for hook, bundle in bundles.items()
            }
            if wanted == dict(bundles):
                continue
            missing = any(newest not in bundle for bundle in bundles.values())
            written = self.vault.anchor(name, version, wanted)
            if missing:
                self._trusted_since = None
                in_place = in_place and written
        if not in_place:
            return
        if self._trusted_since is None or self._trusted_since[0] != newest:
            self._trusted_since = newest, self.clock.monotonic()

    def _serve(self, kept: _Kept, *, settled: bool) -> None:
        choices = kept.serviceable(self.clock.now())
        served = self.switch.pair
        if served == kept.newest.pair:
            return  # never back
        wanted = kept.newest if settled else choices[-1]
        if served != wanted.pair:
            self.switch.take(wanted.pair)
            self._served = wanted
            self.noted(True)  # noqa: FBT003  # its one argument
            log.info("certificate_loaded", newest=wanted is kept.newest, until=wanted.pair.not_after)


def merge(bundle: bytes, ours: Sequence[bytes], now: float, name: str) -> bytes:
    """The authorities of a caBundle together with this service's: unexpired ones of ``name``, sorted.

    An authority of this service is never removed before it expires, so that a replica with an old view does
    no harm; foreign authorities are removed, since they could sign for this service.
    """
    certificates = {_fingerprint(c): c for pem in (bundle, *ours) for c in certificates_in(pem)}
    moment = datetime.fromtimestamp(now, UTC) - BACKDATE
    kept = [c for c in certificates.values() if _common_name(c) == name and c.not_valid_after_utc > moment]
    kept.sort(key=lambda c: (c.not_valid_before_utc, _fingerprint(c)), reverse=True)
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in kept[:_MOST_AUTHORITIES])


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return certificate.fingerprint(hashes.SHA256())


def _common_name(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _names_of(issued: Issued) -> tuple[str, ...]:
    (leaf, *_) = x509.load_pem_x509_certificates(issued.pair.certificate)
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def _encode(kept: _Kept) -> dict[str, bytes]:
    data: dict[str, bytes] = {}
    for keys, issued in ((_KEYS, kept.newest), (_PREVIOUS, kept.previous)):
        if issued is not None:
            data |= zip(keys, (issued.pair.certificate, issued.pair.key, issued.authority), strict=True)
    return data


def _decode(data: Mapping[str, bytes]) -> _Kept | None:
    """None if there is nothing, or nothing that could be served."""
    newest = _decode_one(data, _KEYS)
    return _Kept(newest, _decode_one(data, _PREVIOUS)) if newest is not None else None


def _decode_one(data: Mapping[str, bytes], keys: tuple[str, str, str]) -> Issued | None:
    certificate, key, authority = (data.get(name, b"") for name in keys)
    try:
        pair = read_pair(certificate, key)
        Switch().take(pair)
        (leaf, *_) = x509.load_pem_x509_certificates(certificate)
        (signer, *_) = x509.load_pem_x509_certificates(authority)
        leaf.verify_directly_issued_by(signer)
    except (NodeUnready, ValueError, TypeError, InvalidSignature) as error:
        if certificate:
            log.warning("secret_certificate_invalid", key=keys[0], error=str(error))
        return None
    return Issued(pair, authority, leaf.not_valid_before_utc.timestamp() + BACKDATE.total_seconds())
