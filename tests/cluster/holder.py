"""First process of the cluster's namespaces: lays out the file system and the network, then only reaps.

Run by ``unshare --mount --pid --net --fork --mount-proc``. What is written to /var, /etc and /run stays below the
scratch directory; the machine's own are read through.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OWN = {"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd", "agent": "/var/lib/gpu-manager"}


def main() -> None:
    """``holder.py SCRATCH NODE_ADDRESS NODE SERVICE_ADDRESS…``: the last are the node's own too."""
    scratch = Path(sys.argv[1])
    address, node, *services = sys.argv[2:]
    run("mount", "--make-rprivate", "/")
    for name in ("var", "etc"):
        upper, work = scratch / f"{name}.upper", scratch / f"{name}.work"
        for directory in (upper, work):
            directory.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, f"/{name}")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name, path in OWN.items():
        (scratch / name).mkdir(exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(scratch / name), path)
    for needed in ("/run/netns", "/run/lock", "/etc/cni/net.d"):
        Path(needed).mkdir(parents=True, exist_ok=True)
    run("mount", "--make-rshared", "/")
    with Path("/etc/hosts").open("a", encoding="utf-8") as hosts:
        hosts.write(f"{address} {node}\n")
    run("ip", "link", "set", "lo", "up")
    for service in services:
        run("ip", "addr", "add", f"{service}/32", "dev", "lo")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "addr", "add", f"{address}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", "utf-8")
    (scratch / "held").touch()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with contextlib.suppress(ChildProcessError):
            os.wait()
            continue
        time.sleep(0.2)  # no child yet


def run(*command: str) -> None:
    """Run a program; raises CalledProcessError."""
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
