"""Checks of the container runtime of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.doctor.facts import CheckGroup, RuntimeFacts, Unseen, seen
from gpu_manager.domain.errors import printable

_FIRST_TOOLKIT_OF_V2: Final = (1, 8, 0)


RUNTIME: Final = CheckGroup("runtime")


@RUNTIME.trouble(
    "cri-socket-wrong",
    "The kubelet is configured for a runtime socket that does not exist.",
    "Set containerRuntimeEndpoint of the kubelet's configuration to the socket that exists, and restart the "
    "kubelet.",
)
def _wrong_socket(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    cri = seen(runtime.cri, "the kubelet's configuration does not say which socket it uses")
    if cri not in runtime.sockets:
        there = ", ".join(runtime.sockets) or "none"
        yield f"the kubelet is told to use {cri}, which does not exist; there is {there}"


@RUNTIME.trouble(
    "runtime-config-broken",
    "The runtime will not start again with the files that it has now.",
    "Write the imported file in the version of the first, or bring the first to that of the import.",
)
def _broken(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.broken:
        yield runtime.broken


@RUNTIME.trouble(
    "runtime-binary-missing",
    "A configured runtime has no binary: pods that use it fail with `executable file not found`.",
    "Install nvidia-container-toolkit, or remove the runtime: `direct` and `cdi` need no NVIDIA runtime.",
)
def _runtime_binary(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    for name in sorted(runtime.missing):
        default = ", and it is the default" if name == runtime.default_runtime else ""
        yield f"runtime {name} in {runtime.config} is {runtime.runtimes.get(name, '')}, not there{default}"


@RUNTIME.trouble(
    "default-runtime-wrong",
    "The default runtime is not configured: no pod without a runtimeClass starts.",
    "Set default_runtime_name to `runc`, or configure the runtime it names.",
)
def _default_unknown(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    name = runtime.default_runtime
    if name and runtime.runtimes and name not in runtime.runtimes:
        known = ", ".join(sorted(runtime.runtimes))
        yield f"{runtime.config}: default_runtime_name is {name}, configured are {known}"


@RUNTIME.warning(
    "cdi-off",
    "The runtime reads no CDI specs. Cards are injected another way; `--device-injection cdi` would fail.",
    "Nothing, or set `enable_cdi = true` (containerd 1.7; 2 has it on) with `/var/run/cdi` among "
    "cdi_spec_dirs, and restart containerd.",
)
def _cdi_off(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.cdi is None:
        raise Unseen("no configuration shows whether the runtime reads CDI specs")
    if not runtime.cdi and runtime.strategy != "cdi":
        yield f"{runtime.why}; containers get their cards by {runtime.strategy} instead"


def _uses_toolkit(runtime: RuntimeFacts) -> bool:
    return runtime.strategy == "nvidia" or "nvidia" in runtime.default_runtime


@RUNTIME.trouble(
    "devices-allow",
    "The NVIDIA runtime on the node is older than cgroup v2.",
    "Upgrade nvidia-container-toolkit and libnvidia-container to 1.8 or newer, or take `nvidia` out as "
    "default runtime: `direct` needs neither.",
)
def _devices_allow(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if not _uses_toolkit(runtime):
        return
    if runtime.toolkit is None or runtime.cgroups is None:
        raise Unseen("the version of libnvidia-container, or that of the cgroups, is not known")
    if runtime.cgroups == 2 and runtime.toolkit < _FIRST_TOOLKIT_OF_V2:
        version = ".".join(map(str, runtime.toolkit))
        yield (
            f"libnvidia-container {version} knows cgroup v1 alone, the node has v2: containers end with "
            "nvidia-container-cli: mount error: devices.allow: no such file or directory"
        )


@RUNTIME.warning(
    "devices-lost-on-reload",
    "systemd removes access to devices that it does not know of.",
    "Use CDI (`enable_cdi = true`) or `--device-injection direct`: both tell the runtime of every device.",
)
def _lost_on_reload(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.strategy == "nvidia" and runtime.systemd_cgroup:
        yield (
            "the NVIDIA runtime gives devices behind systemd's back: after systemctl daemon-reload running "
            "containers lose them (Failed to initialize NVML: Unknown Error)"
        )


@RUNTIME.warning(
    "cards-by-variable",
    "Any pod can name cards by a variable.",
    "Set accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml: cards "
    "are then injected by device nodes. Or turn CDI on (`enable_cdi = true`).",
)
def _cards_by_variable(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.by_variable or runtime.strategy == "nvidia":
        default = f" {printable(runtime.default_runtime)}, the default," if runtime.default_runtime else ""
        own = ", and those that ask may have no envFrom" if runtime.strategy == "nvidia" else ""
        yield (
            f"the NVIDIA runtime{default} shows a container every card that NVIDIA_VISIBLE_DEVICES names, "
            f"also where its image sets it to all: pods that ask for no card are not judged{own}"
        )
