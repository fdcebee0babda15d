"""A certificate that signs itself, for a server on loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(folder: Path, hours: int = 1, *names: str) -> tuple[Path, Path]:
    """Files of certificate and key, for 127.0.0.1 and ``a.name`` (or these names alone), good for so many hours."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a.name")])
    now = dt.datetime.now(dt.UTC)
    own = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("a.name")]
    alternatives = x509.SubjectAlternativeName([x509.DNSName(one) for one in names] or own)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(
        now + dt.timedelta(hours=hours)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    signed = builder.add_extension(alternatives, critical=False).sign(key, hashes.SHA256())
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return certificate, secret
