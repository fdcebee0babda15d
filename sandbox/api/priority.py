"""A pod's priority comes of its class alone, as the API server's Priority plugin has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandbox.api.status import ApiError

_SYSTEM: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_POLICY: Final = "PreemptLowerPriority"


def set_priority(pod: dict[str, Any], classes: Sequence[Mapping[str, Any]]) -> None:
    """Write priority and preemptionPolicy into a new pod.

    Raises:
        ApiError: 403, there is no such class, or the pod brings figures of its own.
    """
    spec, name = pod["spec"], str(pod["metadata"]["name"])
    by_name = {str(one["metadata"]["name"]): one for one in classes}
    wanted = spec.get("priorityClassName") or next(
        (n for n, c in by_name.items() if c.get("globalDefault")), ""
    )
    if wanted and wanted not in by_name and wanted not in _SYSTEM:
        raise _forbidden(name, f"no PriorityClass with name {wanted} was found")
    found = by_name.get(wanted, {})
    value = int(found.get("value") or _SYSTEM.get(wanted, 0))
    policy = str(found.get("preemptionPolicy") or _POLICY)
    computed = "must not be provided in pod spec; priority admission controller computed"
    given = "from the given PriorityClass name"
    if spec.get("priority") not in (None, value):
        raise _forbidden(
            name, f"the integer value of priority ({spec['priority']}) {computed} {value} {given}"
        )
    if spec.get("preemptionPolicy") not in (None, policy):
        said = spec["preemptionPolicy"]
        raise _forbidden(name, f"the string value of PreemptionPolicy ({said}) {computed} {policy} {given}")
    spec |= {"priority": value, "preemptionPolicy": policy}
    if wanted:
        spec["priorityClassName"] = wanted


def _forbidden(name: str, why: str) -> ApiError:
    return ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {why}')
