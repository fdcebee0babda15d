"""Finds names of other systems that are still in a document after its pods were translated. No I/O."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any, Final

from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationFinding
from gpu_manager.cli.kubectl.migrate.systems import SYSTEMS
from gpu_manager.cli.kubectl.migrate.templates import object_name
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY

_BY_HAND = f"only pods that are found here are translated; write {CORE} and {MEMORY} there by hand"
_QUOTA = "pods no longer ask for it: see docs/quota.md for ours"
_UNREAD = "nothing reads it any more: take it out, and what relies on it"
_SCHEDULER = (
    "it does not call our extender, so each node chooses the card, and may refuse a pod that would fit on "
    "another; take it out unless its gangs or queues are needed"
)
# What a name looks like, and what to do about it; the first that matches counts.
_NAMES: Final = tuple(
    (re.compile(rf"(?<![\w-]){pattern}"), advice)
    for pattern, advice in (
        (r"nvidia\.com/gpu\.(?:product|family)\b", f"say it with the annotation {GPU_MODEL}, or keep GFD"),
        (r"nvidia\.com/mig-[\w.-]+", "cards in MIG mode are left to NVIDIA's plugin"),
        (r"nvidia\.com/(?:gpu|vgpu|use-gpu|nouse-gpu)[\w.-]*", _BY_HAND),
        (r"nvidia\.com/(?:priority|numa-bind|mps\.capable|device-[\w.-]+)", _BY_HAND),
        (r"(?:gpu|mig)\.nvidia\.com\b", "devices of a claim are NVIDIA's driver's to share"),
        (r"volcano\.sh/v?gpu-[\w.-]+", _BY_HAND),
        (r"aliyun\.com/gpu-[\w.-]+", _BY_HAND),
        (r"hami\.io/[\w.-]+", _UNREAD),
        (r"(?:nvshare\.com|elasticgpu\.io|4paradigm\.com|koordinator\.sh)/v?gpu[\w.-]*", _BY_HAND),
        (r"tke\.cloud\.tencent\.com/qgpu-[\w.-]+", _BY_HAND),
        (r"tensor-fusion\.ai/[\w.-]+", _BY_HAND),
        (r"(?:kai\.scheduler|runai|run\.ai)/[\w.-]+", _UNREAD),
        (r"(?:CUDA_DEVICE_MEMORY_LIMIT|CUDA_DEVICE_SM_LIMIT|ALIYUN_COM_GPU_|CUDA_MPS_)\w*", _UNREAD),
        (r"CUDA_(?:OVERSUBSCRIBE|DISABLE_CONTROL|TASK_PRIORITY)\b|GPU_CORE_UTILIZATION_POLICY\b", _UNREAD),
        (r"nvidia-mps\b", "no MPS daemon takes part here: take it out"),
    )
)
_HINT: Final = re.compile(
    r"nvidia|volcano|aliyun|hami|nvshare|elasticgpu|4paradigm|koordinator|qgpu|tensor-fusion|kai\.|run\.?ai|"
    r"CUDA_|ALIYUN|GPU_CORE"
)
_LONGEST: Final = 253  # characters of a name, and of an address before it
_SCHEDULERS: Final = {"volcano", *(name for system in SYSTEMS for name in system.schedulers)}
_AMOUNTS: Final = {name for s in SYSTEMS for name in s.annotations if "/" not in name}  # no domain: KAI's


def left_over(document: Any, refused: Container[int] = ()) -> Iterator[MigrationFinding]:
    """Yield a finding for each object and name. ``refused``: the ``id`` of the maps of pods left unchanged.

    Tolerations are not reported: nodes with cards may keep NVIDIA's taint.
    """
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    unchanged: dict[str, dict[str, None]] = {}
    for where, path, name, advice in _walk(document, "object", "", refused):
        if advice:
            found.setdefault((where, name), []).append((path, advice))
        else:
            unchanged.setdefault(where, {})[name] = None
    for where, names in unchanged.items():
        yield MigrationFinding(FindingKind.LEFT, where, f"it stays as it was, with {', '.join(names)}")
    for (where, name), places in found.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        path, advice = places[0]
        yield MigrationFinding(FindingKind.LEFT, where, f"{name} at {path}{more}: {advice}")


def _walk(tree: Any, where: str, path: str, refused: Container[int]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (object, path, name, advice) of each name; the advice is empty in a pod that was refused."""
    if id(tree) in refused:
        yield from ((where, path, name, "") for where, path, name, _ in _walk(tree, where, path, ()))
    elif isinstance(tree, str):
        for name, advice in _names(tree):
            yield where, path or ".", name, _for(where, advice)
    elif isinstance(tree, list):
        for index, entry in enumerate(tree):
            yield from _walk(entry, where, f"{path}[{index}]", refused)
    elif isinstance(tree, dict):
        kind, meta = tree.get("kind"), tree.get("metadata")
        if isinstance(kind, str) and isinstance(meta, dict) and not kind.endswith("List"):
            where, path = object_name(kind, meta), ""
        for key, value in tree.items():
            at = f"{path}.{key}" if path else str(key)
            if key in ("tolerations", "taints"):
                continue
            if isinstance(key, str):
                yield from ((where, path or ".", name, _for(where, advice)) for name, advice in _names(key))
            if key == "annotations" and isinstance(value, dict):
                yield from ((where, at, name, _BY_HAND) for name in value if name in _AMOUNTS)
            if key == "schedulerName" and isinstance(value, str) and value in _SCHEDULERS:
                yield where, at, f"{key} {value}", _SCHEDULER
            yield from _walk(value, where, at, refused)


def _for(where: str, advice: str) -> str:
    return _QUOTA if where.startswith(("ResourceQuota ", "LimitRange ")) else advice


def _names(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, advice) of each name in a text, once; names in URLs do not count."""
    if _HINT.search(text) is None:
        return
    seen: set[str] = set()
    taken: set[int] = set()
    for pattern, advice in _NAMES:
        for match in pattern.finditer(text):
            start = match.start()
            word = re.split(r"\s", text[max(0, start - _LONGEST) : start])[-1]
            if start in taken or "://" in word:
                continue
            taken.add(start)
            name = match[0][:_LONGEST].rstrip(".-")
            if name not in seen:
                seen.add(name)
                yield name, advice
