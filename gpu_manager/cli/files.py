"""Reads the manifests that a command line names, and finds the templates of pods in them; what cannot be read
is one sentence with the file's name.

As with kubectl, ``-f`` may stand before each, and a directory means the manifests in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from gpu_manager.adapters.manifests import LONGEST_BYTES, Manifest
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.untrusted import mapping
from gpu_manager.runtime.arguments import Argument, Option

T = TypeVar("T")
SUFFIXES: Final = (".yaml", ".yml", ".json")
Files = Annotated[
    list[str] | None,
    Argument(metavar="FILE...", help="Manifests, YAML or JSON, or directories; - reads standard input."),
]
Filenames = Annotated[
    list[str] | None, Option("--filename", "-f", help="The same, as with kubectl; may be repeated.")
]


def chosen_files(files: list[str] | None, filenames: list[str] | None) -> list[str]:
    """Every file that was named, directories taken apart. Raises RequestInvalid: none was."""
    named = [*(files or ()), *(filenames or ())]
    if not named:
        raise RequestInvalid("FILE missing: name a manifest or a directory, or - for standard input")
    return [file for name in named for file in _in_directory(name)]


def _in_directory(name: str) -> list[str]:
    path = Path(name)
    try:
        if name == "-" or not path.is_dir():
            return [name]
        found = sorted(str(one) for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())
    except (OSError, ValueError):
        return [name]  # whoever opens it says why not
    if not found:
        raise RequestInvalid(f"{printable(name)}: no manifest ({', '.join(SUFFIXES)}) in this directory")
    return found


def shown(name: str) -> str:
    """The file's name for people."""
    return "standard input" if name == "-" else name


def load(name: str, parse: Callable[[bytes], T], data: bytes | None = None) -> T:
    """What ``parse`` makes of the file's bytes, or of ``data``, if they were read before.

    Raises RequestInvalid with the file's name.
    """
    try:
        return parse(_read(name) if data is None else data)
    except OSError as error:
        raise RequestInvalid(f"{printable(shown(name))}: {error.strerror or error}") from error
    except RequestInvalid as error:
        raise RequestInvalid(f"{printable(shown(name))}: {error}") from error
    except ValueError as error:  # a NUL in the name
        raise RequestInvalid(f"{printable(shown(name))}: no such file") from error


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(LONGEST_BYTES + 1)
    with Path(name).open("rb") as file:
        return file.read(LONGEST_BYTES + 1)


# Finds pod templates in any document by their shape. No I/O.
# Workloads of other API groups (a Rollout, a PyTorchJob, a RayCluster) need no entry here. Argo's and
# KServe's templates have other shapes: they are converted to pods and back. Amounts that stand by
# themselves, of which an operator or a chart makes a container (a Tekton step, a TrainJob, values), are a
# pod of that container.


Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """One pod template: the name of its object, the map that holds it, and where its containers stand there.

    ``containers`` are paths below ``tree``, in the pod's order; without them ``tree`` is a pod template as
    Kubernetes has it. ``metadata`` is where ``annotations`` and ``labels`` stand, beside the spec or in a
    map of that name. ``tolerates`` is False where a webhook of the workload's own system refuses tolerations
    (Knative's does); ``ray`` is the group of a Ray cluster whose pods the template makes.
    """

    where: str
    tree: Tree
    containers: tuple[tuple[str, ...], ...] = ()
    inline_metadata: bool = False
    tolerates: bool = True
    ray: Tree | None = None

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
_KNATIVE: Final = ("serving.knative.dev/", "serving.kserve.io/")
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
        if str(tree.get("apiVersion")).startswith(_KNATIVE):
            yield from (replace(one, tolerates=False) for one in _below(tree, where, kind))
            return
    yield from _below(tree, where, kind)


def pods_of(manifest: Manifest, entry: Mapping[str, Any]) -> Sequence[Mapping[str, object] | None]:
    """Return the pods of an object: of each template, where Kubernetes itself does not know its kind; None
    for the template that an object of a known kind lacks.
    """
    return [manifest.pod] if manifest.runs_pods else [found.as_pod() for found in pod_templates(entry)]


def drafted_pod(template: Mapping[str, Any], namespace: str, name: str) -> tuple[Pod, Tree]:
    """The pod of a template that is not created yet, on no node whatever it says, and its core/v1 Pod.

    Raises:
        RequestInvalid: it is no pod.
    """
    meta = {**mapping(template.get("metadata")), "namespace": namespace, "name": name}
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.get("spec")}
    return replace(parse_pod(obj), node="", phase=""), obj


def _below(tree: Tree, where: str, kind: str) -> Iterator[FoundTemplate]:
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
        elif (limits := _own_limits(key, value)) and not kind.startswith("Node"):
            container = {"name": tree.get("name") or key, "resources": {"limits": limits}}
            yield FoundTemplate(where, {"spec": {"containers": [container]}})
        elif key == "template" and "rayStartParams" in tree:
            yield from (replace(one, ray=tree) for one in pod_templates(value, where, kind))
        else:
            yield from pod_templates(value, where, kind)


def _own_limits(key: str, value: Any) -> Any:
    """Return our amounts in a map such as a container's ``resources``, or in one that is named as limits."""
    limits = mapping(value).get("limits", value if str(key).endswith("_limits") else None)
    if key == "gpu" and isinstance(name := mapping(value).get("name"), str):  # a SparkApplication's
        limits = {name: value.get("quantity")}
    return None if mapping(limits).keys().isdisjoint((CORE, MEMORY)) else limits


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
