"""The release notes: the changelog's section of this version, and what was not run."""

from __future__ import annotations

import re
import sys
from typing import Final

NOT_RUN: Final = """\
## Not run

- `kubectl-vcuda` is one Python file without compiled parts; it was run on Linux, not on macOS.
- The image and the wheel for arm64 were built by a cross compiler on another machine. Their programs were
  run under an emulator (`make foreign-image`), never on an arm64 machine or beside a card.
"""


def notes(changelog: str, version: str) -> str:
    """Markdown. A trial (``1.2.3rc1``) shows what is unreleased.

    Raises:
        SystemExit: the changelog has no section for the version.
    """
    title = "Unreleased" if "rc" in version else re.escape(version)
    found = re.search(rf"^## \[?{title}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section '## {version}'")
    return f"# gpu-manager {version}\n\n{found.group(1).strip()}\n\n{NOT_RUN}"
