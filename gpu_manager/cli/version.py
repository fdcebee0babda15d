"""``gpu-manager version``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gpu_manager.cli.output import Form, Output, emit, for_program


def command(output: Form = Output.TABLE) -> None:
    """Print the version."""
    try:
        number = version("gpu-manager")
    except PackageNotFoundError:
        number = "(not installed)"
    if for_program(output):
        emit({"version": number}, output)
    else:
        print(f"gpu-manager {number}")
