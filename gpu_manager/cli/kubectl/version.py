"""``gpu-manager version``, and ``kubectl vcuda version``: of the admission service and the agents too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, log_in
from gpu_manager.cli.output import TABLE, Printing
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.untrusted import text
from gpu_manager.runtime.arguments import Option

_SHOWN = 5


def own_version() -> str:
    """The version of the package that runs."""
    try:
        return version("gpu-manager")
    except PackageNotFoundError:
        return "(not installed)"


def own(printing: Printing = TABLE) -> None:
    """Print the version.

    Examples:
      gpu-manager version
    """
    number = own_version()
    if printing.for_program:
        printing.emit({"version": number})
    else:
        print(f"gpu-manager {number}")


def command(
    client: Annotated[bool, Option("--client", help="This program alone: ask nobody.")] = False,
    admission: service.Admission = service.USUAL,
    printing: Printing = TABLE,
    access: Access = BY_KUBECONFIG,
) -> None:
    """Show the versions of this program, of the admission service and of the agents, and who did not answer.

    Needs get on services/proxy and pods/proxy, and list on pods.

    Examples:
      kubectl vcuda version
      kubectl vcuda version --client
    """
    if not printing.for_program:
        print(f"kubectl vcuda {own_version()}", flush=True)
    found = {} if client else _found(access, admission)
    if printing.for_program:
        printing.emit({"version": own_version(), **found})
        return
    for name, told in found.items():
        print(printable(f"{name}: {told if isinstance(told, str) else _counted(told)}"))


def _found(access: Access, admission: str) -> Mapping[str, str | Mapping[str, str]]:
    service.root(admission if admission != "-" else service.USUAL)  # refuses what is malformed
    try:
        with log_in(access) as login:
            return {"service": _service(login, admission), "agents": _agents(login)}
    except RequestInvalid as error:
        if access != BY_KUBECONFIG or os.environ.get("KUBECONFIG"):
            raise
        return {"cluster": f"none is asked: {error}"}


def _service(login: Login, admission: str) -> str:
    try:
        return text(service.ask(login, admission, "/version").get("version")) or "of an unknown version"
    except service.Silent as why:
        return f"not known: {why}"


def _agents(login: Login) -> Mapping[str, str]:
    """Node → version of its agent, or why it is not known."""
    from gpu_manager.adapters.kube.agents import find_agents  # noqa: PLC0415  # as in log_in

    places = find_agents(login.connection)
    told, silent = service.ask_agents(
        login, places, places, "/version", lambda answer: text(answer["version"])
    )
    return {**told, **{node: f"not known: {why}" for node, why in silent.items()}}


def _counted(versions: Mapping[str, str]) -> str:
    """Each version with its nodes, by name where they are few."""
    if not versions:
        return "none runs"
    parts = []
    for number, count in Counter(versions.values()).most_common():
        nodes = [node for node, one in versions.items() if one == number]
        parts.append(f"{number} on {', '.join(nodes) if count <= _SHOWN else f'{count} nodes'}")
    return "; ".join(parts)
