"""The cluster's small images: what pods run, the pause container, and kube-scheduler as the chart wants it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_manager.adapters.driver_files.delivery import NativeLibraries
from gpu_manager.domain.card import Card
from tests.cluster.parts import ROOT, Parts

sys.path.insert(0, str(ROOT / "deploy/image"))

from archive import Image, Layer, pack, write_archive

WORKLOAD: Final = "cluster-test/workload:1"
PAUSE: Final = "cluster-test/pause:1"
APPLETS: Final = (
    "sh",
    "sleep",
    "cat",
    "echo",
    "ls",
    "kill",
    "ps",
    "true",
    "false",
    "env",
    "touch",
    "stat",
    "wc",
    "grep",
    "head",
    "tail",
    "mkdir",
    "rm",
    "readlink",
    "id",
)
GLIBC: Final = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
CONFIG: Final = "/tmp/stand-in.conf"
# What a container's stand-in driver shows: the cards that the kubelet gave it, at their real sizes.
ENTRY: Final = f"""#!/bin/sh
n=0
: > {CONFIG}
IFS=,
for uuid in $VCUDA_CARDS; do
    while IFS=' ' read -r known model memory pci; do
        [ "$known" = "$uuid" ] || continue
        echo "card.$n.model = $model
card.$n.memory_mib = $memory
card.$n.uuid = $uuid
card.$n.pci = $pci" >> {CONFIG}
        n=$((n + 1))
    done < /etc/stand-in.cards
done
unset IFS
echo "cards = $n" >> {CONFIG}
[ -d /stand-in ] && echo "state = /stand-in" >> {CONFIG}
exec "$@"
"""
_MODELS: Final = ("h200", "h100", "a100", "a10", "l4", "t4")


def digest(archive: Path) -> str:
    """The first digits of an archive's SHA-256."""
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def make(parts: Parts, native: NativeLibraries, cards: Sequence[Card], directory: Path) -> list[Path]:
    """Write every archive below ``directory``; the workload's is also unpacked, for the registry."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [
        _write(
            _workload(parts, native, cards, directory / "workload"),
            WORKLOAD,
            directory,
            ["/entry"],
            ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
        ),
        _write(_pause(parts, directory / "pause"), PAUSE, directory, ["/bin/sleep"], ["1000000"]),
        of_program(
            parts.paths["kube-scheduler"],
            "usr/local/bin/kube-scheduler",
            f"registry.k8s.io/kube-scheduler:{parts.kubernetes}",
            directory,
        ),
    ]
    layout = directory / "layout"
    shutil.rmtree(layout, ignore_errors=True)
    with tarfile.open(made[0]) as tar:
        tar.extractall(layout, filter="data")
    return made


def _write(
    root: Path,
    tag: str,
    directory: Path,
    entry: Sequence[str] = (),
    command: Sequence[str] = (),
    user: str = "",
) -> Path:
    image = Image(
        tag=tag,
        architecture="amd64" if platform.machine() == "x86_64" else "arm64",
        created="1970-01-01T00:00:00Z",
        config={
            "Entrypoint": list(entry),
            "Cmd": list(command),
            **({"User": user} if user else {}),
            "Env": ["PATH=/bin:/usr/bin:/usr/local/bin", f"VCUDA_STANDIN_CONFIG={CONFIG}"],
        },
        layers=[pack(root, 0)],
    )
    path = directory / f"{root.name}.tar"
    write_archive(image, path, 0)
    return path


def _workload(parts: Parts, native: NativeLibraries, cards: Sequence[Card], root: Path) -> Path:
    """busybox, glibc, the stand-in driver's client, and the cards of the node."""
    _busybox(parts, root)
    host = Path(f"/lib/{platform.machine()}-linux-gnu")
    loader = next(
        p for p in (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1")) if p.exists()
    )
    trusted = root / f"usr/lib/{platform.machine()}-linux-gnu"
    trusted.mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    place = root / str(loader.parent).lstrip("/")
    place.mkdir(exist_ok=True)
    shutil.copy(loader.resolve(), place / loader.name)
    for name in GLIBC:
        shutil.copy((host / name).resolve(), trusted / name)
    assert native.client is not None
    shutil.copy(native.client, root / "bin/vcuda-client")
    table = []
    for card in cards:
        model = next((m for m in _MODELS if m in card.model.lower()), "small")
        table.append(f"{card.uuid} {model} {card.memory >> 20} {card.pci_bus_id}\n")
    (root / "etc/stand-in.cards").write_text("".join(table), "utf-8")
    (root / "entry").write_text(ENTRY, "utf-8")
    (root / "entry").chmod(0o755)
    return root


def _pause(parts: Parts, root: Path) -> Path:
    _busybox(parts, root)
    return root


def _busybox(parts: Parts, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(parts["busybox"], root / "bin/busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n", "utf-8")


def of_program(program: Path, place: str, tag: str, directory: Path) -> Path:
    """The archive of an image with one program, which needs no other file, at ``place``, and a user for it."""
    root = directory / program.name
    shutil.rmtree(root, ignore_errors=True)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    for name in ("etc", "tmp"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("nonroot:x:65532:65532::/:/sbin/nologin\n", "utf-8")
    shutil.copy(program, root / place)
    return _write(root, tag, directory, [f"/{place}"], user="65532:65532")


def with_other_library(archive: Path, directory: Path, version: str) -> Path:
    """The product's image under another version, with a libvcuda of other bytes and the same behaviour: what
    lies behind the last section of an ELF file is nobody's.
    """
    with tarfile.open(archive) as tar:
        files = {m.name: _content(tar, m) for m in tar.getmembers() if m.isfile()}
    [described] = json.loads(files["manifest.json"])
    config = json.loads(files[described["Config"]])
    diffs = config["rootfs"]["diff_ids"]
    layers = [Layer(files[name], diff) for name, diff in zip(described["Layers"], diffs, strict=True)]
    stage = directory / "other-library"
    shutil.rmtree(stage, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layers[-1].blob))) as tar:
        [member] = [m for m in tar.getmembers() if m.name.endswith("/libvcuda.so")]
        path = stage / member.name
        path.parent.mkdir(parents=True)
        path.write_bytes(_content(tar, member) + f"\n{version}\n".encode())
        path.chmod(member.mode)
    name = described["RepoTags"][0].rpartition(":")[0]
    layers.append(pack(stage, 0))
    image = Image(f"{name}:{version}", config["architecture"], config["created"], config["config"], layers)
    made = directory / f"{version}.tar"
    write_archive(image, made, 0)
    return made


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()
