"""The signature of a release: of ``SHA256SUMS``, by which every file is known.

It is cosign's for a file, ECDSA over SHA-256 in base64, which openssl verifies as well.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tools.release.source import is_trial

TRIAL: Final = "TRIAL-"
"""Before the names of a signature's files if its key was made for a trial and proves nothing of who built."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with a key in memory, or, where ``key`` is empty, with cosign and what it calls ``reference``."""

    key: ec.EllipticCurvePrivateKey | None
    reference: str = ""
    mark: str = ""

    def sign(self, place: Path) -> None:
        """Write ``cosign.pub`` and ``SHA256SUMS.sig`` beside ``SHA256SUMS``, each behind the mark."""
        sums = place / "SHA256SUMS"
        public, signature = place / f"{self.mark}cosign.pub", place / f"{self.mark}SHA256SUMS.sig"
        if self.key is None:
            _cosign("public-key", "--key", self.reference, "--outfile", str(public))
            local = ("--yes", "--tlog-upload=false", "--output-signature", str(signature))
            _cosign("sign-blob", "--key", self.reference, *local, str(sums))
            return
        pem, info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(self.key.public_key().public_bytes(pem, info))
        signed = self.key.sign(sums.read_bytes(), ec.ECDSA(hashes.SHA256()))
        signature.write_bytes(base64.b64encode(signed) + b"\n")


def signer(key: str, version: str) -> Signer:
    """Who signs this version.

    Args:
        key: ``COSIGN_KEY``: the path of an EC key as openssl or cosign writes it, or a reference that cosign
            resolves (``awskms://…``). A password is taken from ``COSIGN_PASSWORD``.
        version: a trial without a key gets a pair of its own, which is forgotten.

    Raises:
        SystemExit: there is no key, or none that can be read; the text says what to set.
    """
    if not key:
        if not is_trial(version):
            sys.exit(
                "a release is signed: make release COSIGN_KEY=cosign.key "
                "(cosign generate-key-pair makes one; a trial, TAG=v1.2.3rc1, needs none)"
            )
        return Signer(ec.generate_private_key(ec.SECP256R1()), mark=TRIAL)
    if "://" in key:
        return Signer(None, key)
    try:
        text = Path(key).read_bytes()
    except OSError as error:
        sys.exit(f"COSIGN_KEY={key} cannot be read: {error.strerror}")
    if b"SIGSTORE PRIVATE KEY" in text:
        return Signer(None, key)
    password = os.environ.get("COSIGN_PASSWORD", "").encode() or None
    try:
        read = serialization.load_pem_private_key(text, password)
    except (ValueError, TypeError) as error:
        sys.exit(f"COSIGN_KEY={key} is no private key, or COSIGN_PASSWORD is not its password: {error}")
    if not isinstance(read, ec.EllipticCurvePrivateKey):
        sys.exit(f"COSIGN_KEY={key} is no EC key: openssl ecparam -name prime256v1 -genkey -noout makes one")
    return Signer(read)


def _cosign(*arguments: str) -> None:
    try:
        code = subprocess.run(("cosign", *arguments), check=False).returncode
    except FileNotFoundError:
        sys.exit("this COSIGN_KEY needs the program cosign (2.x) on PATH; an EC key of openssl's needs none")
    if code:
        sys.exit(f"cosign {arguments[0]} failed with {code}")
