"""What may be asked of a running sandbox: apply, delete, break something. Answers are lines for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpu_manager.domain.errors import RequestInvalid, quoted
from sandbox.api import ApiError, StandInApi
from sandbox.api.kinds import NO_CONTROLLERS, WORKLOADS, resource_of
from sandbox.simulated_cluster import Sandbox

FAULTS: Final = (
    ("card 3 XID 79", "the card reports that error and is closed"),
    ("card 3 silent", "the card answers nothing any more"),
    ("card 3 gone", "the card vanishes"),
    ("card 3 ok", "the card is well again"),
    ("agent kill", "SIGKILL for the agent; it is started again"),
    ("admission kill", "SIGKILL for the admission service; it is started again"),
    ("kubelet restart", "the kubelet ends and begins anew; containers run on"),
    ("api away 5", "the API server refuses connections for so many seconds"),
)
_LONGEST_AWAY = 600.0
# What a manifest may change of an object that exists; of pods nothing else is, as with kubectl.
_SYSTEM_FIELDS: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


def apply(api: StandInApi, objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Create or change objects as ``kubectl apply`` would; one line each.

    Raises:
        RequestInvalid: one is refused; the text says which and why. Those before it stay.
    """
    return [apply_one(api, obj) for obj in objects]


def apply_one(api: StandInApi, obj: Mapping[str, Any]) -> str:
    """Create or change one object as ``kubectl apply`` would. Raises RequestInvalid: it is refused."""
    kind, meta = str(obj.get("kind")), obj.get("metadata")
    if not isinstance(meta, Mapping) or not (meta.get("name") or meta.get("generateName")):
        raise RequestInvalid(f"a {kind} without metadata.name cannot be applied")
    name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "default")
    shown = f"{kind.lower()}/{name or meta.get('generateName')}"
    if kind in WORKLOADS:
        raise RequestInvalid(f"{shown}: {NO_CONTROLLERS}")
    clean = {**obj, "apiVersion": obj.get("apiVersion", "v1")}
    clean["metadata"] = {k: v for k, v in meta.items() if k not in _SYSTEM_FIELDS}
    try:
        try:
            made = api.create(clean, namespace)
            return f"{kind.lower()}/{made['metadata']['name']} created"
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        plural = resource_of(clean).plural
        before = api.get(plural, name, namespace) or {}
        after = _overlaid(before, {k: v for k, v in clean.items() if k != "status"})
        if after == before:
            return f"{shown} unchanged"
        api.patch(plural, name, after, namespace)
    except ApiError as error:
        cure = ""
        if error.code == 404 and "no resource serves" in error.message:
            cure = f"; {NO_CONTROLLERS}"
        raise RequestInvalid(f"{shown}: {error.message}{cure}") from None
    return f"{shown} configured"


def _overlaid(stored: Any, wanted: Any) -> Any:
    """``wanted`` over what is stored: what it does not say stays, named entries of lists meet by name."""
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        return {**stored, **{k: _overlaid(stored.get(k), v) for k, v in wanted.items()}}
    if isinstance(stored, list) and isinstance(wanted, list) and all(map(_named, [*stored, *wanted])):
        known = {entry["name"]: entry for entry in stored}
        return [_overlaid(known.get(entry["name"]), entry) for entry in wanted]
    same_quantity = isinstance(stored, str) and isinstance(wanted, int) and str(wanted) == stored
    return stored if same_quantity else wanted


def _named(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("name"), str)


def delete(api: StandInApi, key: str) -> str:
    """Delete the pod ``namespace/name`` gracefully. Raises RequestInvalid if there is none."""
    namespace, slash, name = key.rpartition("/")
    if not name or (slash and not namespace):
        raise RequestInvalid(f"--delete {quoted(key)}: write NAMESPACE/NAME of a pod")
    try:
        api.delete("pods", name, namespace or "default")
    except ApiError as error:
        raise RequestInvalid(f"--delete {quoted(key)}: {error.message}") from None
    return f"pod/{name} deleted"


def fault(sandbox: Sandbox, text: str) -> str:
    """Break something, or mend it. Raises RequestInvalid with what there is."""
    for pattern, act in _FAULTS:
        match = pattern.fullmatch(" ".join(text.split()))
        if match is not None:
            return act(sandbox, match)
    known = ", ".join(f"{example!r}" for example, _ in FAULTS)
    raise RequestInvalid(f"--fault {quoted(text)}: there are {known}")


def _card(order: Mapping[str, Any]) -> Callable[[Sandbox, re.Match[str]], str]:
    def act(sandbox: Sandbox, match: re.Match[str]) -> str:
        index = int(match[1])
        words = {k: v.format(*match.groups()) if isinstance(v, str) else v for k, v in order.items()}
        sandbox.set_card(index, words)
        return f"card {index}: {words.get('reason') or words.get('error') or match[0].split()[-1]}"

    return act


def _kill(sandbox: Sandbox, match: re.Match[str]) -> str:
    admission = sandbox.admission.process if sandbox.admission else None
    name, process = ("agent", sandbox.agent) if match[1].lower() == "agent" else ("admission", admission)
    pid = process.pid if process is not None else 0
    if process is None or not pid:
        raise RequestInvalid(f"the {name} is not running at this moment")
    process.kill()
    return f"{name} killed (process {pid})"


def _restart(sandbox: Sandbox, _match: re.Match[str]) -> str:
    sandbox.node.restart_kubelet()
    return "kubelet restarted"


def _away(sandbox: Sandbox, match: re.Match[str]) -> str:
    seconds = float(match[1])
    if not 0 < seconds <= _LONGEST_AWAY:
        raise RequestInvalid(f"api away {match[1]}: give 1 to {_LONGEST_AWAY:g} seconds")
    sandbox.take_api_away(seconds)
    return f"API server away for {seconds:g} s"


_FAULTS: Final[tuple[tuple[re.Pattern[str], Callable[[Sandbox, re.Match[str]], str]], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.ASCII), act)
    for pattern, act in (
        (r"card (\d{1,3}) XID (\d{1,4})", _card({"healthy": False, "reason": "XID {1}"})),
        (r"card (\d{1,3}) silent", _card({"error": "the card does not answer"})),
        (r"card (\d{1,3}) gone", _card({"removed": True})),
        (r"card (\d{1,3}) ok", _card({"healthy": True})),
        (r"(agent|admission) kill", _kill),
        (r"kubelet restart", _restart),
        (r"api away (\d{1,4}(?:\.\d+)?)", _away),
    )
)
