"""What the documentation's pictures are drawn from, by digest: a picture that is older is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
DRAWN_FROM = ASSETS / "drawn-from.txt"


def sources() -> str:
    """A line with the digest of each file that the pictures show."""
    rooms = (ROOT / "gpu_manager" / "ui").glob("*.*"), (ROOT / "deploy" / "grafana").rglob("*.py")
    files = sorted(file for room in rooms for file in room)
    digests = ((hashlib.sha256(file.read_bytes()).hexdigest()[:16], file) for file in files)
    return "".join(f"{digest} {file.relative_to(ROOT)}\n" for digest, file in digests)
