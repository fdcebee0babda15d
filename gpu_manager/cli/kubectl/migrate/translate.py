"""Translates one document of another system: a tree of maps and lists. No I/O.

Translated pods are checked by the rules of ``gpu-manager check``; a pod that breaks one is left unchanged and
reported, and so is every name of another system that is still in the document afterwards.

A pod template is found by its shape, so that workloads of other API groups (a Rollout, a PyTorchJob, a
RayCluster) need no entry here. Argo's and KServe's templates have other shapes: they are converted to pods
and back.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.cli.kubectl.migrate.model import FindingKind, MigrationFinding, MigrationTerms, System
from gpu_manager.cli.kubectl.migrate.pod_template import PodTemplate
from gpu_manager.cli.kubectl.migrate.systems import SYSTEMS
from gpu_manager.domain.contract import CORE, GPU_MODEL, MEMORY, QUOTA_KEY
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.legal_values import check_pod


def translate(
    document: Any, terms: MigrationTerms, system: System | None = None
) -> tuple[Any, list[MigrationFinding]]:
    """Return the translated document and the findings. ``system`` None: it is detected for each pod."""
    findings: list[MigrationFinding] = []
    refused = set()
    new = _unshared(document)
    for template in pod_templates(new):
        pod = template.as_pod()
        try:
            found = PodTemplate(pod, template.where, terms).translate(system)
            if found is None:
                continue
            _judge(pod, terms)
        except RequestInvalid as error:
            findings.append(MigrationFinding(FindingKind.REFUSED, template.where, str(error)))
            refused.add(id(template.tree))
            continue
        template.put(pod)
        findings += found
    findings += _quotas(document)
    findings += left_over(new, refused)
    return new, findings


def _unshared(tree: Any) -> Any:
    """Return a copy without shared objects, which YAML's aliases make."""
    if isinstance(tree, dict):
        return {key: _unshared(value) for key, value in tree.items()}
    return [_unshared(entry) for entry in tree] if isinstance(tree, list) else tree


def _judge(pod: dict[str, Any], terms: MigrationTerms) -> None:
    faults = check_pod(parse_pod(pod), terms.unit)
    if faults:
        raise RequestInvalid("; ".join(f"{fault.message}  [{fault.rule.id}]" for fault in faults))


def _quotas(document: Any) -> Iterator[MigrationFinding]:
    """Yield a finding for each quota ConfigMap of the predecessor, which is used unchanged."""
    objects = document.get("items") if isinstance(document, dict) else None
    for entry in objects if isinstance(objects, list) else [document]:
        if not isinstance(entry, dict) or not isinstance(entry.get("metadata"), dict):
            continue
        if entry.get("kind") == "ConfigMap" and QUOTA_KEY in (entry.get("data") or {}):
            where = object_name("ConfigMap", entry["metadata"])
            yield MigrationFinding(FindingKind.KEPT, where, "the quota is read as it stands")


Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """One pod template: the name of its object, the map that holds it, and where its containers stand there.

    ``containers`` are paths below ``tree``, in the pod's order; without them ``tree`` is a pod template as
    Kubernetes has it. ``metadata`` is where ``annotations`` and ``labels`` stand, beside the spec or in a
    map of that name.
    """

    where: str
    tree: Tree
    containers: tuple[tuple[str, ...], ...] = ()
    inline_metadata: bool = False

    def as_pod(self) -> Tree:
        """Return a copy of the template as a pod."""
        if not self.containers:
            return deepcopy(self.tree)
        tree = deepcopy(self.tree)
        pod: Tree = {"spec": {key: value for key, value in tree.items() if key not in _NOT_SPEC}}
        name = "kserve-container" if self.inline_metadata else "main"  # as the two call what has no name
        containers = [found for path in self.containers for found in _at(tree, path)]
        pod["spec"]["containers"] = [{"name": name, **found} for found in containers]
        if self.inline_metadata:
            pod["metadata"] = {key: tree[key] for key in _META if key in tree}
        elif "metadata" in tree:
            pod["metadata"] = tree["metadata"]
        return pod

    def put(self, pod: Tree) -> None:
        """Write a changed copy from :meth:`as_pod` back into the manifest."""
        if not self.containers:
            self.tree.clear()
            self.tree.update(pod)
            return
        changed = iter(pod["spec"]["containers"])
        for path in self.containers:
            for found in _at(self.tree, path):
                new = {key: value for key, value in next(changed).items() if key != "name" or key in found}
                found.clear()
                found.update(new)
        _copy(pod["spec"], self.tree, _SPEC_KEYS)
        if self.inline_metadata:
            _copy(pod.get("metadata") or {}, self.tree, _META)
        else:
            _copy(pod, self.tree, ("metadata",))


_META: Final = ("annotations", "labels")
_SPEC_KEYS: Final = ("nodeSelector", "schedulerName", "runtimeClassName", "initContainers", "tolerations")
_NOT_SPEC: Final = ("metadata", "containers", *_META)
# What KServe calls the parts of a service, and the containers in them that it names by what they serve.
_PARTS: Final = ("predictor", "transformer", "explainer")
_SERVERS: Final = "model huggingface lightgbm onnx paddle pmml pytorch sklearn tensorflow triton xgboost"
_KSERVE: Final = (*((server,) for server in _SERVERS.split()), ("containers",))
# Where Argo has a template's containers.
_ARGO: Final = (("container",), ("script",), ("containerSet", "containers"), ("sidecars",))


def pod_templates(tree: Any, where: str = "object", kind: str = "") -> Iterator[FoundTemplate]:
    """Yield every pod and pod template of a document, with the name of its object."""
    if isinstance(tree, list):
        for entry in tree:
            yield from pod_templates(entry, where, kind)
    if not isinstance(tree, dict):
        return
    said, meta = tree.get("kind"), tree.get("metadata")
    if isinstance(said, str) and isinstance(meta, dict) and not said.endswith("List"):
        where, kind = object_name(said, meta), said
    spec = tree.get("spec")
    if isinstance(spec, dict) and _has_containers(spec):
        if kind.endswith("ServingRuntime"):
            yield FoundTemplate(where, spec, (("containers",),), inline_metadata=True)
        else:
            yield FoundTemplate(where, tree)
        return
    if kind.startswith(("Workflow", "ClusterWorkflow", "CronWorkflow")) and (
        found := tuple(path for path in _ARGO if _at(tree, path))
    ):
        yield FoundTemplate(where, tree, found)
        return
    for key, value in tree.items():
        if kind == "InferenceService" and key in _PARTS and isinstance(value, dict):
            if found := tuple(path for path in _KSERVE if _at(value, path)):
                yield FoundTemplate(where, value, found, inline_metadata=True)
        else:
            yield from pod_templates(value, where, kind)


def object_name(kind: str, meta: Mapping[str, Any]) -> str:
    """Return an object's name for people: ``Deployment default/web``."""
    name = meta.get("name") or meta.get("generateName") or "(no name)"
    return f"{kind} {meta.get('namespace') or 'default'}/{name}"


def _copy(source: Tree, target: Tree, keys: Sequence[str]) -> None:
    """Copy the values of these keys from source to target; remove keys that the source lacks."""
    for key in keys:
        if key in source:
            target[key] = source[key]
        else:
            target.pop(key, None)


def _has_containers(spec: Tree) -> bool:
    containers = spec.get("containers")
    return isinstance(containers, list) and bool(containers) and all(isinstance(c, dict) for c in containers)


def _at(tree: Any, path: tuple[str, ...]) -> list[Tree]:
    """Return the containers at a path; empty if there is none."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    if isinstance(tree, list) and all(isinstance(entry, dict) for entry in tree):
        return tree
    return [tree] if isinstance(tree, dict) else []


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
