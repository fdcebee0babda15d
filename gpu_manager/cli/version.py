"""``gpu-manager version``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import typer


def command() -> None:
    """Print the version."""
    try:
        number = version("gpu-manager")
    except PackageNotFoundError:
        number = "(not installed)"
    typer.echo(f"gpu-manager {number}")
