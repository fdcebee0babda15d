"""Container images as files: layers packed the same way each time, an archive that every runtime loads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_OCI: Final = "application/vnd.oci.image"
_FAST: Final = 6  # gzip's level: 9 takes three times as long for 1 %


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as the archive holds it (gzip) and the digest of what is inside."""

    blob: bytes
    diff_id: str


@dataclass(frozen=True, slots=True)
class Image:
    """What one image is: ``tag`` is ``name:version``, ``config`` the OCI ``config`` object."""

    tag: str
    architecture: str
    created: str
    config: dict[str, Any]
    layers: list[Layer] = field(default_factory=list)


def pack(directory: Path, dated: int) -> Layer:
    """The directory as a layer: sorted, owned by root, dated ``dated`` (seconds since 1970)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in _sorted(directory):
            entry = tar.gettarinfo(path, arcname=str(path.relative_to(directory)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = dated
            if entry.islnk():  # one file under two names is stored twice: the order of names would decide
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    plain = out.getvalue()
    return Layer(gzip.compress(plain, _FAST, mtime=0), f"sha256:{hashlib.sha256(plain).hexdigest()}")


def write_archive(image: Image, path: Path, dated: int) -> None:
    """An OCI layout in a tar, with the ``manifest.json`` that ``docker load`` wants beside it."""
    files: dict[str, bytes] = {}

    def put(blob: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(blob).hexdigest()
        files[f"blobs/sha256/{digest}"] = blob
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(blob)}

    layers = [put(layer.blob, "layer.v1.tar+gzip") for layer in image.layers]
    config = put(_json(_configuration(image)), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": config,
        "layers": layers,
    }
    described = put(_json(manifest), "manifest.v1+json")
    version = image.tag.rpartition(":")[2]
    described["annotations"] = {
        "io.containerd.image.name": full_name(image.tag),
        "org.opencontainers.image.ref.name": version,
    }
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [described]})
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    blobs = [f"blobs/{entry['digest'].replace(':', '/')}" for entry in (config, *layers)]
    files["manifest.json"] = _json([{"Config": blobs[0], "RepoTags": [image.tag], "Layers": blobs[1:]}])
    draft = path.with_suffix(".part")
    with tarfile.open(draft, "w", format=tarfile.GNU_FORMAT) as tar:
        for file in sorted(files):
            entry = tarfile.TarInfo(file)
            entry.size, entry.mtime = len(files[file]), dated
            tar.addfile(entry, io.BytesIO(files[file]))
    draft.replace(path)


def full_name(tag: str) -> str:
    """The name that runtimes know an image by: ``docker.io/library/`` before a bare one."""
    first, slash, _ = tag.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def _configuration(image: Image) -> dict[str, Any]:
    return {
        "architecture": image.architecture,
        "os": "linux",
        "created": image.created,
        "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
        "history": [{"created": image.created, "created_by": "deploy/image/build.py"} for _ in image.layers],
    }


def _sorted(directory: Path) -> Iterator[Path]:
    for here, directories, names in os.walk(directory):
        directories.sort()
        links = [name for name in directories if Path(here, name).is_symlink()]
        if Path(here) != directory:
            yield Path(here)
        for name in sorted([*names, *links]):
            yield Path(here, name)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
