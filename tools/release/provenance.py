"""Where a release comes from: an in-toto statement with SLSA's predicate of version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tools.release import NAME

_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "https://slsa.dev/provenance/v1"


def statement(
    files: Mapping[str, str],
    *,
    version: str,
    commit: str,
    locks: Mapping[str, str],
    url: str,
) -> str:
    """The statement as JSON, without times: the same sources give the same one.

    Args:
        files: name → SHA-256 of what was built; the image's index is among them.
        version: of the release.
        commit: from which it was built.
        locks: name → SHA-256 of the files that pin what was downloaded meanwhile.
        url: where the release is published; empty: the builder has a name and no address.
    """
    builder = url or f"urn:{NAME}"
    document = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in sorted(files.items())],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"urn:{NAME}:make-release:v1",
                "externalParameters": {"tag": f"v{version}", "url": url},
                "resolvedDependencies": [
                    {"name": "sources", "digest": {"gitCommit": commit}},
                    *({"name": name, "digest": {"sha256": value}} for name, value in sorted(locks.items())),
                ],
            },
            "runDetails": {
                "builder": {"id": f"{builder}#make-release"},
            },
        },
    }
    return json.dumps(document, indent=1) + "\n"
