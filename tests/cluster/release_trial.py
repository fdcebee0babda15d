"""A release tried as a user would: from its directory alone, in empty environments, on a cluster made anew.

``python -m tests.cluster release DIRECTORY``: signature and checksums hold; the wheel installs into a new virtual
environment and its command answers; ``kubectl-vcuda`` runs with nothing but Python; the chart installs from its
archive with the image of the release, a pod gets its share, and ``kubectl vcuda top`` shows it.
"""

from __future__ import annotations

import base64
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import ROOT
from tests.cluster.pods import Pods, container, pod

POD: Final = ROOT / "docs/examples/nginx.yaml"


def main(place: Path) -> int:
    """Each step is told as it is done; exit code 1 if one fails."""
    place = place.resolve()
    with tempfile.TemporaryDirectory() as name:
        try:
            for step in (_signature, _checksums, _wheel, _plugin, _chart):
                _say(f"{step.__name__.removeprefix('_')}: {step(place, Path(name))}")
        except (RuntimeError, AssertionError, TimeoutError) as error:
            _say(f"failed: {error}")
            return 1
    return 0


def _signature(place: Path, scratch: Path) -> str:
    """By openssl alone; a trial's files of it are marked."""
    [key], [signature] = place.glob("*cosign.pub"), place.glob("*SHA256SUMS.sig")
    plain = scratch / "signature"
    plain.write_bytes(base64.b64decode(signature.read_bytes()))
    verify = ("openssl", "dgst", "-sha256", "-verify", str(key), "-signature", str(plain))
    return f"{key.name}: {_run(place, *verify, 'SHA256SUMS').strip()}"


def _checksums(place: Path, scratch: Path) -> str:
    del scratch
    said = _run(place, "sha256sum", "--check", "--strict", "SHA256SUMS")
    listed = {line.rpartition(":")[0] for line in said.splitlines()}
    signing = ("SHA256SUMS", "SHA256SUMS.sig", "cosign.pub")
    present = {path.name for path in place.iterdir() if not path.name.endswith(signing)}
    assert listed == present, f"listed {sorted(listed - present)}, not listed {sorted(present - listed)}"
    return f"{len(listed)} files"


def _wheel(place: Path, scratch: Path) -> str:
    """Its dependencies come from the package index, as pip finds them."""
    [wheel] = place.glob(f"gpu_manager-*linux_{platform.machine()}.whl")
    _run(scratch, sys.executable, "-m", "venv", "environment")
    _run(scratch, "environment/bin/pip", "install", "--quiet", str(wheel))
    manifest = scratch / "pod.yaml"
    manifest.write_text(POD.read_text("utf-8"), "utf-8")
    _run(scratch, "environment/bin/gpu-manager", "check", str(manifest))
    return _run(scratch, "environment/bin/gpu-manager", "version").strip()


def _plugin(place: Path, scratch: Path) -> str:
    return _run(scratch, str(place / "kubectl-vcuda"), "version").strip()


def _chart(place: Path, scratch: Path) -> str:
    [chart] = place.glob("gpu-manager-*.tgz")
    [image] = place.glob("gpu-manager-*.oci.tar")
    cluster = Cluster()
    cluster.down()
    cluster.up(image)
    with tarfile.open(chart) as archive:
        archive.extractall(scratch, filter="data")
    product.install(
        cluster, admission=True, chart=chart, simulated=scratch / "gpu-manager" / product.SIMULATED
    )
    pods = Pods(cluster)
    pods.run(pod("tried", container("c", 30, 20)))
    auditor.settled(cluster)
    shown = _run(scratch, str(place / "kubectl-vcuda"), "top", KUBECONFIG=str(cluster.kubeconfig))
    assert "tried" in shown, shown
    pods.clear()
    return f"{chart.name} with {image.name}:\n{shown.rstrip()}"


def _run(place: Path, *command: str, **variables: str) -> str:
    """Run a program where nothing of this project is on a path. Raises RuntimeError with its words."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), **variables}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
