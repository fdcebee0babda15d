"""Faults on request: refusals, lost answers, slow answers, watches that are late or cut."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from sandbox.api.status import REASONS, ApiError


class CutConnection(Exception):  # noqa: N818 - an order to the connection, not an error of anyone's
    """Close the connection without an answer."""


@dataclass(slots=True)
class _Rule:
    left: float
    match: str
    status: int = 0
    retry_after: int = 0
    seconds: float = 0.0
    cut: str = ""  # "before" or "after" the request takes effect


class ApiFaults:
    """The faults in force. ``match`` chooses the requests: it is part of the line

    ``verb resource/subresource namespace/name`` (``patch pods``, ``create pods/binding default/a``).
    ``watch_lag`` is by how many seconds watches are late; infinity holds them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._released = threading.Event()
        self.watch_lag = 0.0

    def fail(self, next_n: int, status: int, *, match: str = "", retry_after: int = 0) -> None:
        """Answer the next ``next_n`` matching requests with ``status``; they have no effect."""
        self._add(_Rule(next_n, match, status=status, retry_after=retry_after))

    def cut(self, next_n: int, *, match: str = "", after: bool = False) -> None:
        """Close the connection unanswered, before or (an unknown outcome for the caller) after the effect."""
        self._add(_Rule(next_n, match, cut="after" if after else "before"))

    def delay(self, seconds: float, *, match: str = "", next_n: float = math.inf) -> None:
        """Hold matching requests for so long before they take effect (:meth:`release` ends it)."""
        self._add(_Rule(next_n, match, seconds=seconds))

    def clear(self) -> None:
        """End all faults; requests held by :meth:`delay` go on."""
        with self._lock:
            self._rules.clear()
            self.watch_lag = 0.0
        self.release()

    def release(self) -> None:
        """Let the requests that are held now go on."""
        with self._lock:
            released, self._released = self._released, threading.Event()
        released.set()

    def before(self, request: str) -> bool:
        """Suffer what is due before the request takes effect; True if its answer is to be lost.

        Raises:
            ApiError: the refusal asked for.
            CutConnection: close without a word.
        """
        lose = False
        for rule in self._due(request):
            if rule.seconds:
                self._released.wait(rule.seconds)
            if rule.status:
                reason = REASONS.get(rule.status, "Unknown")
                raise ApiError(rule.status, reason, f"injected fault: {reason}", retry_after=rule.retry_after)
            if rule.cut == "before":
                raise CutConnection
            lose = lose or rule.cut == "after"
        return lose

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _due(self, request: str) -> list[_Rule]:
        with self._lock:
            due = []
            for rule in self._rules:
                if rule.match in request and rule.left > 0:
                    rule.left -= 1
                    due.append(rule)
                    if rule.status or rule.cut == "before":
                        break
            self._rules = [rule for rule in self._rules if rule.left > 0]
            return due
