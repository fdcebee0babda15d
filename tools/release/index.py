"""One image for several architectures: their archives joined under one index, as one archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def join(archives: Sequence[Path], output: Path, dated: int) -> str:
    """Join OCI archives of one image, an architecture each, as ``deploy/image/archive.py`` writes them.

    The archive has one name, the index's, which containerd, skopeo, podman and Docker's containerd store
    resolve to the node's architecture. Docker's older store reads ``manifest.json`` instead, and knows one
    image a name: there each has its architecture behind the tag.

    Args:
        archives: what is joined.
        output: the archive that is written.
        dated: seconds since 1970 of every entry.

    Returns:
        The index's digest, ``sha256:…``: what ``image.digest`` of the chart takes.
    """
    files: dict[str, bytes] = {}
    images: list[dict[str, Any]] = []
    docker: list[dict[str, Any]] = []
    annotations: dict[str, str] = {}
    for path in archives:
        with tarfile.open(path) as archive:
            files |= {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
        [described] = json.loads(files.pop("index.json"))["manifests"]
        annotations = described.pop("annotations")
        manifest = json.loads(files[_blob(described["digest"])])
        configuration = json.loads(files[_blob(manifest["config"]["digest"])])
        platform = {name: configuration[name] for name in ("architecture", "os")}
        images.append({**described, "platform": platform})
        [loaded] = json.loads(files.pop("manifest.json"))
        tags = [f"{tag}-{platform['architecture']}" for tag in loaded["RepoTags"]]
        docker.append({**loaded, "RepoTags": tags})
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": images})
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    whole = {"mediaType": _INDEX, "digest": digest, "size": len(index), "annotations": annotations}
    files[_blob(digest)] = index
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [whole]})
    files["manifest.json"] = _json(docker)
    with tarfile.open(output, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), dated
            archive.addfile(entry, io.BytesIO(data))
    return digest


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
