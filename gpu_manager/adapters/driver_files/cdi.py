"""Container Device Interface: one transient spec file for each allocation, read by the container runtime.

The specification is CNCF's CDI 0.5.0, the first with device nodes of another host path.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
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


def claim_device_names(name: str, injection: Injection, shares: int) -> tuple[str, ...]:
    """The fully qualified devices of a claim, one for each of its ``shares`` of cards.

    Simulated cards have no device nodes, and a device without edits is invalid: the first stands for all.
    """
    further = range(1, shares if injection.devices else 1)
    return device_name(name), *(f"{device_name(name)}-{n}" for n in further)


def encode_claim(name: str, injection: Injection, shares: int) -> str:
    """The spec for a claim: the first device has everything, environment included, but the device nodes of
    the other cards, each of which is a device of its own.

    ``injection.devices`` begin with one node for each of the ``shares``. DRA's answer has no environment, and
    runtimes merge the devices that a container gets: a mount in two of them would collide.
    """
    names = [one.partition("=")[2] for one in claim_device_names(name, injection, shares)]
    others = injection.devices[1 : len(names)]
    first = replace(injection, devices=(*injection.devices[:1], *injection.devices[len(names) :]))
    edits = [_edits(first, env=True), *({"deviceNodes": [_node(node)]} for node in others)]
    return _spec([{"name": device, "containerEdits": one} for device, one in zip(names, edits, strict=True)])


def encode(name: str, injection: Injection) -> str:
    """The spec: mounts, device nodes and hooks of ``injection``. The kubelet passes its environment."""
    return _spec([{"name": f"a-{name}", "containerEdits": _edits(injection)}])


def _spec(devices: Sequence[Mapping[str, object]]) -> str:
    return json.dumps({"cdiVersion": VERSION, "kind": CDI_KIND, "devices": devices}, separators=(",", ":"))


def _edits(injection: Injection, *, env: bool = False) -> dict[str, object]:
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
    if env:
        edits["env"] = [f"{variable}={value}" for variable, value in injection.env.items()]
    return edits


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, "hostPath": node.host_path, "permissions": node.permissions}


class Specs:
    """The agent's spec files in the runtime's directory; other programs' files there are never touched."""

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
        """True if the directory was removed while it is mounted here: no file can be created in it any
        more.
        """
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
        """Remove all specs but these."""
        for name in self.names() - frozenset(names):
            with contextlib.suppress(OSError):
                (self.directory / f"{_PREFIX}{name}.json").unlink(missing_ok=True)
