"""Names of other systems anywhere in a document, each with its place and what to do about it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from gpu_manager.cli.files import object_name
from gpu_manager.cli.kubectl.migrate.model import (
    Becomes,
    Fate,
    FindingKind,
    MigrationFinding,
    MigrationTerms,
    Needless,
)
from gpu_manager.cli.kubectl.migrate.systems.nvidia import advice_of
from gpu_manager.cli.kubectl.migrate.systems.others import PREDECESSOR, SYSTEMS
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import parse_quantity
from gpu_manager.domain.rules.unknown_names import OF_VPA
from gpu_manager.domain.untrusted import mapping, mappings

_BY_HAND = f"write {CORE} and {MEMORY} there by hand"
_MIG = f"write {CORE}: 100 there by hand, and the profile into {GPU_MODEL}: instances are cards"
_QUOTA = "pods no longer ask for it: see docs/quota.md for ours"
_NODES = "a label of its nodes: pods find cards by what nodes offer"
_RULE = "a metric that is not written any more: docs/monitoring lists ours"
_COUNTS = f"pods ask for {CORE} and {MEMORY} instead: write these here"
_SPARK = (
    "Spark makes the resource's name, which pods then ask for, of this vendor and the resource: use a pod "
    f"template (spark.kubernetes.executor.podTemplateFile) with {CORE} and {MEMORY}"
)
_SPARK_GPU = (
    f"it takes one name: {CORE} with quantity 100 is a whole card; for a part write {CORE} and {MEMORY} into "
    "the template beside it"
)
_WHOLE_POD = (
    "a whole pod asks for CPU, memory and huge pages alone: write "
    f"{CORE} and {MEMORY} in the container that uses the card"
)
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
UNCOVERED: Final = (
    f"Kueue admits no workload that asks for a resource its queue lacks: add {CORE} and {MEMORY} to "
    "coveredResources of the ClusterQueue"
)
_UNREAD = "nothing reads it any more: take it out, and what relies on it"
_SCHEDULER = (
    "it does not call our extender, so each node chooses the card, and may refuse a pod that would fit on "
    "another; take it out unless its gangs or queues are needed"
)
_OTHERS: Final = tuple(system for system in SYSTEMS if system is not PREDECESSOR)
_FATES: Final = {
    name: fate
    for system in _OTHERS
    for name, fate in {**system.annotations, **system.labels}.items()
    if "/" in name and "*" not in name
}
_NODE_LABELS: Final = {name: fate for s in _OTHERS for name, fate in s.selectors.items() if "/" not in name}


def _advice(fate: Fate) -> str:
    return f"write {fate.key} there by hand" if isinstance(fate, Becomes) and fate.key else _UNREAD


# What a name looks like, and what to do about it; the first that matches counts.
_NAMES: Final = tuple(
    (re.compile(rf"(?<![\w-]){pattern}"), advice)
    for pattern, advice in (
        *((re.escape(name), _advice(fate)) for name, fate in _FATES.items()),
        (r"nvidia\.com/gpu\.(?:product|family)\b", f"say it with the annotation {GPU_MODEL}, or keep GFD"),
        (r"nvidia\.com/mig-[\w.-]+", _MIG),
        (r"nvidia\.com/container\.[\w.-]+", _BY_HAND),
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
        (r"(?:vGPU[A-Z_]|GPUDevice(?:Core|Memory|Shared)|nodev?GPU(?:Mem|Over))\w+", _RULE),
        (r"Host(?:GPUMemoryUsage|CoreUtilization)\b|Device_\w+_(?:of|for)_container\b", _RULE),
        (r"(?:hami|volcano_vgpu|vgpu_manager)_[a-z]\w+|runai_\w*gpu\w*", _RULE),
        (r"(?:(?:requests?|limits?)_)?(?:nvidia_com|volcano_sh|aliyun_com)_(?:v?gpu|mig)\w*", _RULE),
        (r"spark\.(?:executor|driver)\.resource\.[\w-]+\.vendor\b", _SPARK),
        (r"spark\.kubernetes\.\w+\.(?:annotation|label)\.gpu-[\w.-]+", _SPARK),
        (r"nvidia-mps\b", "no MPS daemon takes part here: take it out"),
    )
)
_HINT: Final = re.compile(
    r"nvidia|volcano|aliyun|hami|nvshare|elasticgpu|4paradigm|koordinator|qgpu|tensor-fusion|kai\.|run\.?ai|"
    r"CUDA_|ALIYUN|GPU_CORE|"
    r"GPU[A-Z_]|_of_container|CoreUtilization|spark\."
)
_LONGEST: Final = 253  # characters of a name, and of an address before it
_SCHEDULERS: Final = {"volcano", *(name for system in SYSTEMS for name in system.schedulers)}
_AMOUNTS: Final = {name for s in SYSTEMS for name in s.annotations if "/" not in name}  # no domain: KAI's


@dataclass(frozen=True, slots=True)
class ForeignName:
    """A name of another system: in which object, at which path, and what to do about it.

    The advice is empty for a name in a pod that stays as it was; ``more`` are its other places in the object.
    """

    where: str
    path: str
    name: str
    advice: str
    more: int = 0


def left_over(
    document: Any,
    refused: Container[int] = (),
    terms: MigrationTerms = MigrationTerms(),  # frozen
) -> Iterator[MigrationFinding]:
    """Yield a finding for each object and name. ``refused``: the ``id`` of the maps of unchanged pods."""
    unchanged: dict[str, dict[str, None]] = {}
    named = list(foreign_names(document, refused, terms))
    for one in named:
        if not one.advice:
            unchanged.setdefault(one.where, {})[one.name] = None
    for where, names in unchanged.items():
        yield MigrationFinding(FindingKind.LEFT, where, f"it stays as it was, with {', '.join(names)}")
    for one in named:
        if one.advice:
            more = f" and {one.more} more" if one.more else ""
            told = f"{one.name} at {one.path}{more}: {one.advice}"
            yield MigrationFinding(FindingKind.LEFT, one.where, told)


def foreign_names(
    document: Any,
    refused: Container[int] = (),
    terms: MigrationTerms = MigrationTerms(),  # frozen
) -> Iterator[ForeignName]:
    """Yield each name of another system once an object, with its first place.

    Tolerations are not reported: nodes with cards may keep NVIDIA's taint.
    """
    found: dict[tuple[str, str, str], list[ForeignName]] = {}
    for one in _walk(document, "object", "", refused, terms):
        found.setdefault((one.where, one.name, one.advice), []).append(one)
    for places in found.values():
        yield replace(places[0], more=len(places) - 1)


def _walk(
    tree: Any, where: str, path: str, refused: Container[int], terms: MigrationTerms
) -> Iterator[ForeignName]:
    if id(tree) in refused:
        yield from (replace(one, advice="") for one in _walk(tree, where, path, (), terms))
    elif isinstance(tree, str):
        for name, advice in advice_of(tree, terms) or _names(tree):
            yield ForeignName(where, path or ".", name, _for(where, advice))
    elif isinstance(tree, list):
        for index, entry in enumerate(tree):
            yield from _walk(entry, where, f"{path}[{index}]", refused, terms)
    elif isinstance(tree, dict):
        kind, meta = tree.get("kind"), tree.get("metadata")
        if isinstance(kind, str) and isinstance(meta, dict) and not kind.endswith("List"):
            where, path = object_name(kind, meta), ""
        ours = _meant(tree, terms)
        for key, value in tree.items():
            at = f"{path}.{key}" if path else str(key)
            if key in ("tolerations", "taints") or (key == "limits" and where.startswith("NodePool ")):
                continue
            if isinstance(key, str):
                for name, advice in _names(key):
                    yield ForeignName(where, path or ".", name, _for(where, ours or advice))
            if key == "resources" and isinstance(tree.get("containers"), list):
                yield from (
                    replace(one, advice=_WHOLE_POD) for one in _walk(value, where, at, refused, terms)
                )
                continue
            if key == "sharing" and (shared := advice_of({key: value}, terms)):
                yield from (ForeignName(where, at, name, advice) for name, advice in shared)
                continue
            yield from _of_key(key, value, where, at)
            if key == "gpu" and "quantity" in mapping(value):
                yield from (
                    replace(one, advice=_SPARK_GPU) for one in _walk(value, where, at, refused, terms)
                )
                continue
            yield from _walk(value, where, at, refused, terms)


def _of_key(key: Any, value: Any, where: str, at: str) -> Iterator[ForeignName]:
    """Yield names that count only under this key: they have no domain, or are words of the language."""
    names: list[tuple[object, str]] = []
    if key == "annotations" and isinstance(value, dict):
        names = [(name, _BY_HAND) for name in value if name in _AMOUNTS]
    elif key == "nodeSelector" and isinstance(value, dict):
        names = [(name, _NODES) for name, at_node in value.items() if _is_old(name, [at_node])]
    elif key == "matchExpressions" and "nodeAffinity" in at:
        terms = [(term.get("key"), term.get("values")) for term in mappings(value)]
        names = [(name, _NODES) for name, values in terms if _is_old(name, values)]
    elif key == "schedulerName" and isinstance(value, str) and value in _SCHEDULERS:
        names = [(f"{key} {value}", _SCHEDULER)]
    elif key == at == "singleuser" and any(_walk(value, where, at, (), MigrationTerms())):  # JupyterHub's
        names = [("scheduling.userScheduler", f"on by default: {_SCHEDULER}")]
    yield from (ForeignName(where, at, str(name), advice) for name, advice in names)


def _is_old(label: object, values: object) -> bool:
    """True for a node label of another system, if any of the values is one that the system writes."""
    fate = _NODE_LABELS.get(label) if isinstance(label, str) else None
    written = values if isinstance(values, list) else []
    return isinstance(fate, Needless) and (not fate.value or fate.value in written)


def _meant(amounts: dict[Any, Any], terms: MigrationTerms) -> str:
    """Translate amounts that stand outside of a pod, in a chart's values; empty if that is not possible."""
    for system in _OTHERS:
        if not any(name in amounts for name in system.resources):
            continue
        try:
            asked = {n: parse_quantity(amounts[n]) for n in system.resources if n in amounts}
            share = system.share(asked, terms)
        except RequestInvalid:
            continue
        if share is not None and (share.units is not None or len(asked) > 1):
            memory = f", {MEMORY}: {share.units}" if share.units is not None else ""
            return f"write {CORE}: {share.cores}{memory} there by hand"
    return ""


def _for(where: str, advice: str) -> str:
    if where.startswith(("ClusterQueue ", "Cohort ")):
        return UNCOVERED
    if where.startswith("VerticalPodAutoscaler "):
        return OF_VPA
    if where.startswith(("ResourceQuota ", "LimitRange ")):
        return _QUOTA
    counts = where.startswith(("PrometheusRule ", "ScaledObject ")) and advice is _BY_HAND
    return _COUNTS if counts else advice


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
