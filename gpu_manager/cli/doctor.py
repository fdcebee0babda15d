"""``gpu-manager doctor``: what stands in the way of pods' shares on this machine, and its cure."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import structlog

from gpu_manager.cli import ask
from gpu_manager.cli.kubectl.doctor import show
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.cli.run import command as run_command
from gpu_manager.cli.run import known_injection
from gpu_manager.domain.contract import KUBELET_DIR
from gpu_manager.domain.doctor import NODE_CHECKS, examine
from gpu_manager.domain.doctor.facts import AgentFacts, Facts
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.runtime.arguments import Command, Option


def command(
    printing: Printing = TABLE,
    url: Annotated[str | None, Option(help="The agent's address.")] = None,
    token: ask.Token = "",
    host_root: Annotated[Path | None, Option(help="The host's root, as seen from here.")] = None,
    driver_root: Annotated[Path | None, Option(help="Where the driver is installed, on the host.")] = None,
    kubelet_dir: Annotated[Path | None, Option(help="The kubelet's directory, on the host.")] = None,
    device_injection: Annotated[
        str | None, Option(help="What the agent is told: auto, direct, cdi or nvidia.")
    ] = None,
) -> int:
    """Find what is wrong on this machine: driver, container runtime, kubelet, agent. Each with its cure.

    Changes nothing, and needs neither a GPU nor a cluster: what cannot be looked at is said. In the agent's
    pod it judges by that agent's own settings, unless an option says what to look at. `kubectl vcuda doctor`
    looks at the cluster. Exit code: 0 good (or warnings alone), 1 trouble, 2 bad input.

    Examples:
      gpu-manager doctor
      gpu-manager doctor --host-root /host -o json
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    told = (url, host_root, driver_root, kubelet_dir, device_injection)
    view = _of_agent() if told == (None,) * len(told) else None
    view = view or _NodeView(
        url or ask.DEFAULT,
        host_root or Path("/"),
        str(driver_root or "/"),
        str(kubelet_dir or KUBELET_DIR),
        known_injection(device_injection or "auto", simulated=False),
    )
    return show(examine(_gather(view, token or view.token), NODE_CHECKS), printing)


@dataclass(frozen=True, slots=True)
class _NodeView:
    """Where the doctor looks at the node. ``kubelet_dir`` and ``driver_root`` are paths of the host."""

    url: str
    root: Path
    driver_root: str
    kubelet_dir: str
    injection: str
    token: str = ""
    policy: str = "auto"


def _of_agent() -> _NodeView | None:
    """As the agent sees the node, if one runs in this container; None else."""
    settings = find_agent_settings()
    if settings is None:
        return None
    file = settings["metrics_auth"]
    try:
        token = file.read_text(encoding="utf-8").strip() if file else ""
    except (OSError, UnicodeDecodeError):
        token = ""
    config = settings["config"]
    address = config.http_address or "127.0.0.1"
    shown = f"[{address}]" if ":" in address else address
    return _NodeView(
        f"http://{shown}:{config.http_port}",
        config.host_root,
        str(config.driver_root),
        str(settings["kubelet_dir"]),
        settings["device_injection"],
        token,
        settings["topology_manager_policy"],
    )


def _gather(view: _NodeView, token: str) -> Facts:
    from gpu_manager.adapters.diagnosis.machine import gather_driver, gather_kubelet, gather_runtime  # noqa: PLC0415  # same
    from gpu_manager.adapters.driver_files.host import HostFiles  # noqa: PLC0415  # same
    from gpu_manager.adapters.driver_files.node_config import runtime_socket  # noqa: PLC0415  # same

    url, root, kubelet_dir = view.url, view.root, view.kubelet_dir
    if not root.is_dir():
        raise RequestInvalid(f"--host-root is {str(root)!r}: no such directory")
    host = HostFiles(root)
    agent, silent = _agent(url, token)
    kubelet = gather_kubelet(host, kubelet_dir, policy=(agent and agent.numa_policy) or view.policy)
    if kubelet is not None:
        kubelet = replace(kubelet, agent_problem=silent)
    cards = _cards(host, view.driver_root)
    try:
        driver = gather_driver(host, view.driver_root, cards)
    finally:
        cards.close()
    return Facts(
        now=time.time(),
        driver=driver,
        runtime=gather_runtime(host, runtime_socket(host, kubelet_dir), injection=view.injection),
        kubelet=kubelet,
        agent=agent,
        blind={
            "kubelet": f"there is no kubelet: no {kubelet_dir} (another place: --kubelet-dir)",
            "agent": silent,
        },
    )


def _cards(host: Any, driver_root: str) -> Any:
    from gpu_manager.adapters.driver_files.driver import find_nvml  # noqa: PLC0415  # as above
    from gpu_manager.adapters.nvml.cards import NvmlCards  # noqa: PLC0415  # the driver's library, only here

    return NvmlCards(library=lambda: find_nvml(host, driver_root))


def _agent(url: str, token: str) -> tuple[AgentFacts | None, str]:
    from gpu_manager.adapters.diagnosis.agent import gather_agent  # noqa: PLC0415  # as above

    try:
        return gather_agent(url, lambda path: ask.get(url, path, "application/json", token, (200, 503))), ""
    except NodeUnready as error:
        return None, str(error)


_PROGRAM = "gpu-manager"
_COMMAND_BYTES = 1 << 16


def find_agent_settings(proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """The arguments of the ``gpu-manager run`` that sees the same files as this process, as in its pod.

    None if there is no such process, or several that differ.
    """
    own = _mounts(proc / "self")
    try:
        pids = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    # An agent that is held and its holder have one command line.
    found = {tuple(words) for p in pids if own and _mounts(p) == own and (words := _words(p)) is not None}
    if len(found) != 1:
        return None
    try:
        return Command(f"{_PROGRAM} run", run_command).values(found.pop())
    except RequestInvalid:  # of another version
        return None


def _mounts(process: Path) -> str:
    """Its mount namespace; empty if that is hidden."""
    try:
        return str((process / "ns/mnt").readlink())
    except OSError:
        return ""


def _words(process: Path) -> Sequence[str] | None:
    """What stands behind ``gpu-manager run`` in its command line; None if it is another program."""
    try:
        text = (process / "cmdline").read_bytes()[:_COMMAND_BYTES]
    except OSError:
        return None
    words = text.decode(errors="replace").rstrip("\0").split("\0")
    at = next((n for n, word in enumerate(words[:3]) if word.rpartition("/")[2] == _PROGRAM), None)
    return words[at + 2 :] if at is not None and words[at + 1 : at + 2] == ["run"] else None
