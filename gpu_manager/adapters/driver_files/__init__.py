"""The node's driver in a container: found, mounted beside libvcuda, or named in a CDI spec.

``injector`` implements :class:`gpu_manager.ports.containers.Injector`; ``driver`` finds the driver's
libraries (``elf`` reads them, ``host`` follows links on the node), ``device_nodes`` its device nodes;
``content`` decides the mounts; ``delivery`` installs libvcuda; ``cdi`` and ``records`` keep what outlives a
call; ``detect`` chooses a strategy by the runtime (``runtimes``, ``containerd``) that the kubelet uses
(``kubelet_config``); ``extra`` reads the predecessor's extra-config.json.
"""

from __future__ import annotations

from gpu_manager.adapters.driver_files.detect import Detected, Strategy, detect
from gpu_manager.adapters.driver_files.device_nodes import DeviceNodes, extra_devices
from gpu_manager.adapters.driver_files.driver import find_nvml
from gpu_manager.adapters.driver_files.host import HostFiles
from gpu_manager.adapters.driver_files.injector import DriverFiles

__all__ = [
    "Detected",
    "DeviceNodes",
    "DriverFiles",
    "HostFiles",
    "Strategy",
    "detect",
    "extra_devices",
    "find_nvml",
]
