"""A release tried as a user would: from its directory alone, in empty environments, on a cluster made anew.

``python -m tests.cluster release DIRECTORY``: signature and checksums hold; the wheel installs into a new virtual
environment and its command answers; ``kubectl-vcuda`` runs with nothing but Python; the chart installs from its
archive with the image of the release, a pod gets its share, and ``kubectl vcuda top`` shows it. With a ``COMMIT``
behind it, a second cluster begins with that one's chart and image: upgrade to the release, back, forward again and
uninstall, by the commands of docs/upgrade.md, under pods that run.
"""

from __future__ import annotations

import base64
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import BUILD, ROOT
from tests.cluster.pods import Pods, container, pod, run_client
from tests.cluster.test_limits import GIB, allocated
from tests.cluster.test_operations import left, of_node, on_node

POD: Final = ROOT / "docs/examples/nginx.yaml"
UPGRADE: Final = ROOT / "docs/upgrade.md"


def main(place: Path, commit: str = "") -> int:
    """Each step is told as it is done; exit code 1 if one fails."""
    place = place.resolve()
    steps = {"signature": _signature, "checksums": _checksums, "wheel": _wheel, "plugin": _plugin}
    steps |= {"chart": _chart} | ({f"over {commit}": partial(_over, commit)} if commit else {})
    with tempfile.TemporaryDirectory() as name:
        try:
            for what, step in steps.items():
                _say(f"{what}: {step(place, Path(name))}")
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


def _over(commit: str, place: Path, scratch: Path) -> str:
    """What runs keeps its container and its limit from one version to the other; each version takes new pods."""
    [chart] = place.glob("gpu-manager-*.tgz")
    [image] = place.glob("gpu-manager-*.oci.tar")
    version = image.name.removeprefix("gpu-manager-").removesuffix(".oci.tar")
    source, old_image = scratch / commit, BUILD / f"image-{commit}.tar"
    source.mkdir()
    packed = subprocess.run(("git", "archive", commit), cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(("tar", "-x", "-C", str(source)), input=packed, check=True)
    if not old_image.exists():
        build = ("deploy/image/build.py", f"--output={old_image}", f"--work={scratch / 'image'}")
        subprocess.run((sys.executable, *build), cwd=source, check=True)
    cluster = Cluster()
    cluster.down()
    cluster.up(old_image)
    old_chart = source / product.CHART.relative_to(ROOT)
    product.install(cluster, admission=True, chart=old_chart, simulated=old_chart / product.SIMULATED)
    cluster.load(image)
    pods, names = Pods(cluster), ["installed"]
    _grows(cluster, pods, names)
    where = ("-n", product.NAMESPACE)
    upgrade = ("upgrade", "gpu-manager", str(chart), *where, "--reset-then-reuse-values")
    upgrade = (*upgrade, "--set", f"image.tag={version}")
    for name, command in (
        ("upgraded", upgrade),
        ("back", ("rollback", "gpu-manager", *where)),
        ("again", upgrade),
    ):
        cluster.helm(*command)
        product.wait_ready(cluster)
        names.append(name)
        _grows(cluster, pods, names)
        _say(f"  {name}: {', '.join(names)} at their limits")
    cluster.helm("uninstall", "gpu-manager", *where, "--wait", "--timeout=90s")
    _at_their_limits(pods, names)
    pods.clear()
    cluster.wait(lambda: not product.containers(cluster), 60, "containers of the product stay")
    return _cleaned(cluster)


def _grows(cluster: Cluster, pods: Pods, names: list[str]) -> None:
    """The last of the pods comes; the others are as they were."""
    before = {one.pod: one.container_id for one in auditor.containers(cluster)}
    pods.run(pod(names[-1], container("c", 30, 20)))
    auditor.settled(cluster)
    now = {one.pod: one.container_id for one in auditor.containers(cluster)}
    assert now.keys() == set(names), sorted(now)
    assert before.items() <= now.items(), "a container was started anew"
    _at_their_limits(pods, names)


def _at_their_limits(pods: Pods, names: list[str]) -> None:
    for name in names:
        said = run_client(pods, name, "alloc-to-limit")
        assert allocated(said) == 5 * GIB, f"{name}: {said}"


def _cleaned(cluster: Cluster) -> str:
    """The page's commands for what an uninstall leaves, each where it says; then nothing of the product is there."""
    page = UPGRADE.read_text("utf-8").partition("## Uninstall")[2]
    lines = page.split("```\n")[3].splitlines()
    for line in lines:
        if line.startswith("kubectl "):
            cluster.kubectl(*shlex.split(line)[1:])
        else:  # the directory below /var/lib is a mount of this cluster, and stays empty
            cluster.inside("sh", "-c", line)
    assert left(cluster) == [], left(cluster)
    assert of_node(cluster) == (set(), set()), of_node(cluster)
    assert on_node(cluster) <= {product.STATE}, on_node(cluster)
    assert not any((cluster.scratch / "agent").iterdir())
    return f"uninstalled, and nothing is left after the page's {len(lines)} commands"


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
