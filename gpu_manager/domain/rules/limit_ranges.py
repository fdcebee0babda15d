"""LimitRanges that give containers a request for cards that their authors did not write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.untrusted import mapping, mappings

_NOTE: Final = "kubernetes.io/limit-ranger"  # annotation in which the API server lists what it filled in
_FILLED: Final = re.compile(r"(.+) (?:limit|request) for (?:init )?container (\S+)")


def warn_limit_range(obj: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a warning for each card resource that a LimitRange gives to containers which request none."""
    for limit in mappings(mapping(obj.get("spec")).get("limits")):
        for field in (CORE, MEMORY) if limit.get("type") == "Container" else ():
            for kind in ("default", "defaultRequest", "max"):
                value = mapping(limit.get(kind)).get(field)
                if value is None:
                    continue
                how = "makes its default of max" if kind == "max" else f"has a {kind}"
                yield _warning("", field, f"is {quoted(value)} in a LimitRange that {how}: every container")
                break


def warn_limited(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for each container for which a LimitRange has filled in a card resource."""
    told: set[tuple[str, str]] = set()
    for part in pod.annotations.get(_NOTE, "").partition(": ")[2].split("; "):
        found = _FILLED.fullmatch(part)
        for field in found[1].split(", ") if found else ():
            name = found[2] if found else ""
            if field in (CORE, MEMORY) and (name, field) not in told:
                told.add((name, field))
                yield _warning(name, field, "was filled in by a LimitRange of the namespace: each container")


def _warning(container: str, field: str, reason: str) -> Violation:
    return violation(Rule.LIMIT_RANGE, container, field, "", reason=reason)
