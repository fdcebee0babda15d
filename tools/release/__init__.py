"""A release: everything that a user installs, built from one commit under one version, the git tag.

The tree itself carries the placeholder :data:`PLACEHOLDER`; the version is put in where a copy of the
commit is built, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PLACEHOLDER: Final = "0.0.0"
NAME: Final = "gpu-manager"
