"""Reads the predecessor's extra-config.json: device nodes that every container with a card receives."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_manager.domain.errors import NodeUnready


def extra_devices(path: Path) -> tuple[str, ...]:
    """The nodes under ``default.devices``, in order; none if there is no file. Other keys are ignored.

    Raises:
        NodeUnready: the file is not of that form. A node that is left out in silence is missed for days.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise NodeUnready(f"{path} cannot be read: {error}") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NodeUnready(f"{path} is not JSON: {error}") from error
    default = data.get("default", {}) if isinstance(data, dict) else None
    devices = default.get("devices") or [] if isinstance(default, dict) else None
    if not isinstance(devices, list):
        raise NodeUnready(f'{path}: write {{"default": {{"devices": ["/dev/…"]}}}}')
    for device in devices:
        if not isinstance(device, str) or not device.startswith("/dev/") or ".." in device.split("/"):
            raise NodeUnready(f"{path}: {device!r} is not the path of a device node (/dev/…)")
    return tuple(dict.fromkeys(devices))
