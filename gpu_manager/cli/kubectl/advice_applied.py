"""``kubectl vcuda advise --apply in-place``: running containers get the size that is advised for them.

Only those whose owner allows it (annotation ``tencent.com/vcuda-advice``), within its bounds, and each at
most once a day unless its memory is too small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpu_manager.cli.kubectl.login import Login
from gpu_manager.domain.advice.opt_in import (
    SizeBounds,
    advised_size,
    next_change,
    note_change,
    read_advice_terms,
)
from gpu_manager.domain.advice.sized import Sized
from gpu_manager.domain.contract import ADVICE, ADVISED, RESIZE
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.resize.owners import KINDS
from gpu_manager.domain.resize.sizes import with_size
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.untrusted import mapping

_TRIES: Final = 3  # before the last: the status of a Deployment is written often
_PATIENCE_SECONDS: Final = 10.0  # for an admission service that starts again


@dataclass(frozen=True, slots=True)
class AppliedAdvice:
    """What became of the advice for one workload's container. ``is_refused``: it was to be followed."""

    workload: tuple[str, str, str]
    text: str
    size: Amount | None = None
    is_refused: bool = False

    def as_json(self) -> dict[str, Any]:
        """The form for programs."""
        namespace, workload, container = self.workload
        size = None if self.size is None else {"cores": self.size.cores, "memory": self.size.memory}
        return {
            "namespace": namespace,
            "workload": workload,
            "container": container,
            "applied": size,
            "refused": self.is_refused,
            "text": self.text,
        }


def apply_advice(login: Login, rows: Sequence[Sized], now: datetime) -> Iterator[AppliedAdvice]:
    """Follow the advice where that is allowed, one workload's container after the other."""
    for row in rows:
        try:
            yield _apply_in_turn(login, row, now)
        except (NodeUnready, RequestInvalid) as error:
            yield AppliedAdvice(row.workload, str(error), is_refused=True)


def _apply_in_turn(login: Login, row: Sized, now: datetime) -> AppliedAdvice:
    """As :func:`_apply`, of the workload as it is then, if another writer comes in between."""
    from gpu_manager.adapters.kube.resize import Overtaken  # noqa: PLC0415  # as in log_in

    for _ in range(_TRIES):
        with contextlib.suppress(Overtaken):
            return _apply(login, row, now)
    return _apply(login, row, now)


def _apply(login: Login, row: Sized, now: datetime) -> AppliedAdvice:
    from gpu_manager.adapters.kube.resize import annotate_workload, workload  # noqa: PLC0415  # as in log_in

    namespace, owner, container = row.workload
    kind, _, name = owner.partition("/")
    if kind not in (*KINDS, "Pod"):
        return AppliedAdvice(row.workload, f"a {kind} has no size of its own: change its template")
    there = workload(login.connection, kind, namespace, name)
    annotations = mapping(mapping(there.get("metadata")).get("annotations"))
    written = annotations.get(ADVICE, _of_template(there).get(ADVICE))
    try:
        terms = read_advice_terms(written)
    except RequestInvalid as error:
        raise RequestInvalid(f"annotation {ADVICE} is {quoted(written)}: {error}") from error
    if not terms.applies:
        return AppliedAdvice(row.workload, f"its owner does not allow it (annotation {ADVICE})")
    size = advised_size(row.advice, row.given, terms.bounds.get(container, SizeBounds()))
    if size == row.given:
        return AppliedAdvice(row.workload, "it has the size that is advised, or none is")
    if (due := next_change(annotations.get(ADVISED), container, row.need, row.given, now)) > now:
        when = due.isoformat(timespec="minutes")
        return AppliedAdvice(row.workload, f"it was changed within the last day: again from {when} on")
    changed = {
        RESIZE: with_size(annotations.get(RESIZE), container, {"cores": size.cores, "memory": size.memory}),
        ADVISED: note_change(annotations.get(ADVISED), container, now),
    }
    annotate_workload(login.connection, kind, there, changed, _PATIENCE_SECONDS)
    return AppliedAdvice(row.workload, f"{size} instead of {row.given}; running pods follow in place", size)


def _of_template(there: Mapping[str, Any]) -> Mapping[str, Any]:
    """The annotations that its pods get: all that the values of many charts let their users set."""
    template = mapping(mapping(there.get("spec")).get("template"))
    return mapping(mapping(template.get("metadata")).get("annotations"))
