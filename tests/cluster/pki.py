"""Keys, certificates and tokens of the cluster, made anew at each start and worth nothing elsewhere."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_Key = ec.EllipticCurvePrivateKey
USERS: Final = {
    # file of the kubeconfig: user, groups
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}


@dataclass(frozen=True, slots=True)
class Pki:
    """Files below ``directory``."""

    directory: Path

    def __truediv__(self, name: str) -> str:
        return str(self.directory / name)

    def make(self, server: str, node: str, addresses: Sequence[str]) -> None:
        """Everything: authority, API server, its client certificate for the kubelet, tokens, kubeconfigs.

        ``server`` is the API server's URL, ``addresses`` are those that certificates are good for.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("cluster-test-ca", authority_key, None, authority_key)
        self._write("ca.crt", authority.public_bytes(serialization.Encoding.PEM))
        self._write("ca.key", _pem(authority_key))
        for file, name, organisation in (
            ("apiserver", "kube-apiserver", ""),
            ("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
            ("kubelet", node, ""),
            ("front-proxy", "front-proxy-client", ""),
        ):
            key = ec.generate_private_key(ec.SECP256R1())
            made = _certificate(name, key, authority, authority_key, organisation, addresses)
            self._write(f"{file}.crt", made.public_bytes(serialization.Encoding.PEM))
            self._write(f"{file}.key", _pem(key))
        self._write("service-accounts.key", _pem(rsa.generate_private_key(65537, 2048)))
        users = {**USERS, "kubelet": (f"system:node:{node}", "system:nodes")}
        lines = []
        for file, (user, groups) in users.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{user},{user},"{groups}"\n')
            self._write(f"{file}.token", token.encode())
            self._write(f"{file}.kubeconfig", _kubeconfig(server, self / "ca.crt", token).encode())
        self._write("tokens.csv", "".join(lines).encode())

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def _pem(key: _Key | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(
    name: str,
    key: _Key,
    issuer: x509.Certificate | None,
    issuer_key: _Key,
    organisation: str = "",
    addresses: Sequence[str] = (),
) -> x509.Certificate:
    """Good for server and client; self-signed if there is no issuer."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organisation:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    subject = x509.Name(attributes)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        names = [x509.DNSName(n) for n in ("localhost", "kubernetes", "kubernetes.default.svc", name)]
        numbers = [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(
            x509.SubjectAlternativeName([*names, *numbers]), critical=False
        ).add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _kubeconfig(server: str, authority: str, token: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cluster-test",
            "clusters": [
                {"name": "cluster-test", "cluster": {"server": server, "certificate-authority": authority}}
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "cluster-test", "context": {"cluster": "cluster-test", "user": "user"}}],
        }
    )
