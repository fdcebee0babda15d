"""Container Device Interface: one transient spec file for each allocation, read by the container runtime.

The specification is CNCF's CDI 0.5.0, the first with device nodes of another host path.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Final

from gpu_manager.domain.contract import CDI_KIND
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import DeviceNode, Injection

VERSION: Final = "0.5.0"
# The way to name CDI devices to runtimes under a kubelet older than 1.29, which drops the field for them;
# a runtime that reads both takes a device once.
ANNOTATION: Final = "cdi.k8s.io/vcuda"
_PREFIX: Final = CDI_KIND.replace("/", "-") + "_"
_FILE: Final = re.compile(re.escape(_PREFIX) + r"(?P<name>[0-9a-f]{32})\.json", re.ASCII)


def device_name(name: str) -> str:
    """The fully qualified device of an allocation."""
    return f"{CDI_KIND}=a-{name}"


def encode(name: str, injection: Injection) -> str:
    """The spec: mounts, device nodes and hooks of ``injection``. Its environment goes by the kubelet."""
    edits: dict[str, object] = {
        "deviceNodes": [_node(node) for node in injection.devices],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in injection.mounts
        ],
    }
    if injection.hooks:
        edits["hooks"] = [
            {"hookName": hook.stage, "path": hook.path, "args": [hook.path]} for hook in injection.hooks
        ]
    device = {"name": f"a-{name}", "containerEdits": edits}
    return json.dumps({"cdiVersion": VERSION, "kind": CDI_KIND, "devices": [device]}, separators=(",", ":"))


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, "hostPath": node.host_path, "permissions": node.permissions}


class Specs:
    """The spec files in the runtime's directory; others' files there are never touched."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, name: str, spec: str) -> None:
        """Publish a spec at once and whole. Raises NodeUnready if the directory cannot be written."""
        path = self.directory / f"{_PREFIX}{name}.json"
        draft = self.directory / f".{path.name}.{secrets.token_hex(4)}"  # a runtime reads *.json and *.yaml
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_text(spec)
            draft.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise NodeUnready(
                f"the CDI spec {path} cannot be written: {error.strerror or error}; mount the node's "
                "/var/run/cdi into the agent, or choose another injection strategy"
            ) from error

    def detached(self) -> bool:
        """True if the directory was removed while it is mounted here: nothing can be made in it any more."""
        try:
            return self.directory.stat().st_nlink == 0
        except OSError:
            return False

    def names(self) -> frozenset[str]:
        """Which allocations have a spec here."""
        try:
            found = [_FILE.fullmatch(entry.name) for entry in self.directory.iterdir()]
        except OSError:
            return frozenset()
        return frozenset(match["name"] for match in found if match)

    def keep(self, names: Collection[str]) -> None:
        """Remove the specs of all others."""
        for name in self.names() - frozenset(names):
            with contextlib.suppress(OSError):
                (self.directory / f"{_PREFIX}{name}.json").unlink(missing_ok=True)
