"""Leases of the API server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease: its holder (empty if none), and its duration from each renewal on.

    ``mark`` changes with each renewal, and only then. The Lease's own times come from another machine's clock
    and must not be compared with the local one.
    """

    holder: str
    seconds: float
    transitions: int
    mark: str
