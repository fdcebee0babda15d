"""A software bill of materials (CycloneDX 1.6, JSON) of what the image and the wheel are made of, from the
locks.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any, Final

_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def bill(version: str, lock: str, debian: tuple[str, ...], suite: str, created: str) -> str:
    """``lock`` is a pip lock; ``debian`` the packages of the image's base, without versions: the suite has
    them.
    """
    components = [*_wheels(lock), *_packages(debian, suite)]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'gpu-manager {version}')}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {
                "type": "application",
                "bom-ref": "gpu-manager",
                "name": "gpu-manager",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": "gpu-manager", "dependsOn": [one["bom-ref"] for one in components]}],
    }
    return json.dumps(document, indent=1) + "\n"


def _wheels(lock: str) -> Iterator[dict[str, Any]]:
    for name, version in _PINNED.findall(lock):
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _packages(names: tuple[str, ...], suite: str) -> Iterator[dict[str, Any]]:
    for name in names:
        purl = f"pkg:deb/debian/{name}?distro={suite}"
        yield {"type": "library", "bom-ref": purl, "name": name, "purl": purl}
