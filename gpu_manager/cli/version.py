"""``gpu-manager version``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gpu_manager.cli.output import TABLE, Printing


def own_version() -> str:
    """The version of the package that runs."""
    try:
        return version("gpu-manager")
    except PackageNotFoundError:
        return "(not installed)"


def command(printing: Printing = TABLE) -> None:
    """Print the version.

    Examples:
      gpu-manager version
    """
    number = own_version()
    if printing.for_program:
        printing.emit({"version": number})
    else:
        print(f"gpu-manager {number}")
