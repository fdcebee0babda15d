"""The release notes, one screen: what it is, how it is checked and installed, what was not run."""

from __future__ import annotations

import datetime as dt
import re
import sys
from typing import Final

from tools.release.source import chart_version, is_trial

_NOTES: Final = """\
# gpu-manager {version}

{head}

Pages (`.html`) are in `gpu-manager-docs-{version}.tar.xz`. Everything by name: [CHANGELOG.md](CHANGELOG.md).
Vulnerabilities: [SECURITY.md](SECURITY.md).

## Check and install

```
{check}
sha256sum --check --strict SHA256SUMS
skopeo copy --all oci-archive:gpu-manager-{version}.oci.tar docker://REGISTRY/gpu-manager:{version}
helm install gpu-manager gpu-manager-{chart}.tgz --namespace kube-system \\
  --set image.repository=REGISTRY/gpu-manager,image.digest={digest}
kubectl label node NODE nvidia-device-enable=enable
helm test gpu-manager --namespace kube-system --logs
kubectl krew install --manifest=vcuda.yaml --archive=kubectl-vcuda-{version}.tar.gz
```

{signed}

{not_run}"""
_CHECK: Final = """\
openssl dgst -sha256 -verify {mark}cosign.pub -signature <(base64 -d {mark}SHA256SUMS.sig) SHA256SUMS"""
_SIGNED: Final = (
    "`cosign verify-blob --key cosign.pub --signature SHA256SUMS.sig --insecure-ignore-tlog SHA256SUMS` "
    "checks the same signature.\nTake `cosign.pub` from a place that you trust, not from beside these files."
)
_TRIAL: Final = (
    "**This is a trial.** The key of `TRIAL-cosign.pub` was made for it and thrown away: its signature shows "
    "that the files\nbelong together, and nothing of who built them."
)
_PAGE: Final = re.compile(r"\[([^]]+)\]\(docs/([^).]+)\.md\)")
"""A link of the changelog into the sources, which lie elsewhere for a reader of the notes."""
NOT_RUN: Final = """\
## Not run

- `kubectl-vcuda` is one Python file without compiled parts; it was run on Linux, not on macOS.
- The arm64 half of the image and the arm64 wheel were built by a cross compiler; their programs were run
  under an emulator (`make foreign-image`), never on an arm64 machine or beside a card.
- What a real card has shown and what it has not: `real-card.html`.
"""


def notes(changelog: str, version: str, digest: str, mark: str) -> str:
    """Markdown.

    Args:
        changelog: the text of ``CHANGELOG.md``.
        version: of the release; a trial (``1.2.3rc1``) shows what is ready of ``1.2.3``, or is unreleased.
        digest: of the image's index.
        mark: what the names of the signature's files begin with.

    Raises:
        SystemExit: the changelog has no section for the version.
    """
    return _NOTES.format(
        version=version,
        chart=chart_version(version),
        head=_PAGE.sub(r"\1: `\2.html`", head(changelog, version)),
        check=_CHECK.format(mark=mark),
        digest=digest,
        signed=_TRIAL if mark else _SIGNED,
        not_run=NOT_RUN,
    )


def head(changelog: str, version: str) -> str:
    """What the version's section says before its first heading.

    Raises:
        SystemExit: the changelog has no section for the version.
    """
    for title in (version.partition("rc")[0], *(["Unreleased"] if is_trial(version) else ())):
        section = rf"^## \[?{re.escape(title)}\b[^\n]*\n(.*?)(?=^##|\Z)"
        if found := re.search(section, changelog, re.MULTILINE | re.DOTALL):
            return found[1].strip() or f"What is new stands in the changelog under *{title}*."
    sys.exit(f"CHANGELOG.md has no section '## {version}'")


def must_be_ready(changelog: str, version: str) -> None:
    """Whether the changelog is that of a release of this version: dated, and nothing is left to be released.

    Raises:
        SystemExit: it is not; the text says what to write.
    """
    heading = rf"^## {re.escape(version)} \([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}\)$"
    if not re.search(heading, changelog, re.MULTILINE):
        sys.exit(
            f"CHANGELOG.md has no heading '## {version} ({dt.datetime.now(dt.UTC).date()})' with its day"
        )
    if re.search(r"^## Unreleased\n\s*[^\s#]|^## Unreleased\n\s*###", changelog, re.MULTILINE):
        sys.exit(
            f"CHANGELOG.md lists changes as unreleased that this commit has: move them below '## {version}', "
            "or tag the commit before them"
        )
