"""Manifests as people have them beside other controllers, and what is wrong with what is made of each.

``CASES`` maps the name of a file to a function that takes its path and yields faults in words. The files are
beside the project, where they are; :func:`given` finds their folder.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

from admission.explain.explanation import FITS, explain
from admission.explain.pending_events import PendingEvents
from gpu_manager.adapters.manifests import read_documents
from gpu_manager.cli.kubectl.main import run as kubectl
from gpu_manager.cli.main import run as gpu_manager
from gpu_manager.domain.contract import CORE, MEMORY, RESIZE
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resize.judgement import NamespaceLimits, past_limits
from tests.fakes.extender import UNIT, Obj, World, node

Faults = Iterator[str]
HELM: Final = Path(__file__).parents[2] / "deploy/helm/gpu-manager/values.schema.json"
_CARDS: Final = 8


def given() -> Path | None:
    """Return the folder of the cases; None where it is absent."""
    folders = (parent / "shared/cases/cluster" for parent in Path(__file__).parents)
    return next((folder for folder in folders if folder.is_dir()), None)


def wrong(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the faults of each file that has some; a file without a case is one."""
    files = sorted(folder.glob("*.yaml"))
    found = {f.name: tuple(CASES[f.name](f)) if f.name in CASES else ("no case",) for f in files}
    return {name: faults for name, faults in found.items() if faults}


def _asked(program: Callable[[list[str]], int], *words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = program([*words])
    return code, out.getvalue(), err.getvalue()


def _migrated(file: Path, *options: str) -> tuple[int, Any, str]:
    code, out, report = _asked(kubectl, "migrate", "-o", "yaml", str(file), *options)
    return code, read_documents(out.encode())[0], report


def _told(*words: str, code: int = 1) -> Callable[[Path], Faults]:
    """``migrate`` names these words, and exits with this code."""

    def case(file: Path) -> Faults:
        found, _, report = _migrated(file)
        yield from (f"nothing is told of {word}" for word in words if word not in report)
        if found != code:
            yield f"migrate exits with {found}"

    return case


def _checked(*words: str, code: int) -> Callable[[Path], Faults]:
    """``check`` names these words, and exits with this code."""

    def case(file: Path) -> Faults:
        found, out, _ = _asked(gpu_manager, "check", str(file))
        yield from (f"check does not name {word}" for word in words if word not in out)
        if found != code:
            yield f"check exits with {found}"

    return case


def _share(document: Any) -> Any:
    """Return the limits of the first container that asks for a share, and its container and pod."""
    return next(iter(_shares(document, {})), (None, {}, {}))


def _shares(tree: Any, pod: Any) -> Iterator[tuple[tuple[Any, Any], Any, Any]]:
    if isinstance(tree, list):
        for entry in tree:
            yield from _shares(entry, pod)
    elif isinstance(tree, dict):
        limits = (
            (tree.get("resources") or {}).get("limits") if isinstance(tree.get("resources"), dict) else None
        )
        if isinstance(limits, dict) and CORE in limits:
            yield (limits[CORE], limits.get(MEMORY)), tree, pod
        for value in tree.values():
            yield from _shares(value, tree)


def _node_name(file: Path) -> Faults:
    yield from _told("nodeName n1", "hami.io/vgpu-node", code=0)(file)
    share, _, _ = _share(new := _migrated(file)[1])
    if "nodeName" in new["spec"] or share != (30, 12):
        yield f"it asks for {share}, on node {new['spec'].get('nodeName')}"


def _node_label(file: Path) -> Faults:
    yield from _told("gpu removed", code=0)(file)
    if "nodeSelector" in (spec := _migrated(file)[1]["spec"]):
        yield f"nodes are selected by {spec['nodeSelector']}"


def _serverless(file: Path) -> Faults:
    share, _, spec = _share(_migrated(file)[1])
    if share != (50, 79) or "tolerations" in spec:
        yield f"it asks for {share}; tolerations {spec.get('tolerations')}"


def _ray(file: Path) -> Faults:
    spec = _migrated(file)[1]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    if [group["rayStartParams"].get("num-gpus") for group in groups] != [None, "1"]:
        yield "Ray counts other cards than its workers have"


def _turns(file: Path) -> Faults:
    for card in ("--card-memory=40Gi", "--card-model=A100-SXM4-40GB"):
        share, _, _ = _share(_migrated(file, "--replicas", "4", card)[1])
        if share != (25, 39):
            yield f"{card}: four parts of {share} do not use a card of 157 units"


def _shown_cards(file: Path) -> Faults:
    yield from _told("NVIDIA_VISIBLE_DEVICES removed", code=0)(file)
    share, container, _ = _share(_migrated(file)[1])
    if share != (30, 16) or [one["name"] for one in container["env"]] != ["NVIDIA_DRIVER_CAPABILITIES"]:
        yield f"it asks for {share}, with {container.get('env')}"


def _held(by: str) -> Callable[[Path], Faults]:
    """The last pod of the file waits beside the others: explain names who holds it, before any arithmetic."""

    def case(file: Path) -> Faults:
        pods: list[Obj] = [dict(one) for one in read_documents(file.read_bytes()) if isinstance(one, dict)]
        for at, obj in enumerate(pods):
            obj["metadata"] = {"uid": f"uid-{at}", "annotations": {}, **obj["metadata"]}
            obj["spec"] = {"schedulerName": "gpu-scheduler", **obj["spec"]}
            obj.setdefault("status", {"phase": "Pending"})
            obj["spec"]["containers"] = [
                {**c, "resources": {"limits": {k: str(v) for k, v in c["resources"]["limits"].items()}}}
                for c in obj["spec"]["containers"]
            ]
        *others, waiting = pods
        world = World([node("n0", cards=_CARDS)])
        world.create(*pods)
        if not all(world.schedule(one) for one in others):
            yield "the other pods are not bound"
        view = world.cluster.pod(waiting["metadata"]["uid"])
        if view is None:
            yield "the pod is not known"
            return
        found = explain(view, world.cluster.snapshot(), world.quota.current, world.judge)
        if found.held != by or found.counts.get(FITS):
            yield f"held by {found.held!r}, not by {by!r}; {found.counts}"
        events = _Events()
        pending = PendingEvents(world.cluster.pod, lambda _: found, events, world.clock)
        pending.waiting([view.uid])
        pending.tell()
        if by == "gate" and events.count:
            yield "an Event is sent for what nobody here can cure"

    return case


class _Events:
    count = 0

    def event(self, *_: object, **__: object) -> None:
        self.count += 1


def _resized(file: Path) -> Faults:
    """Resized past a ResourceQuota of 50 cores and 16 units: told of both."""
    [obj] = [dict(one) for one in read_documents(file.read_bytes()) if isinstance(one, dict)]
    size = {"v": 1, "containers": {"c": {"cores": 60, "memory": "8Gi"}}}
    obj["metadata"] = {**obj["metadata"], "annotations": {RESIZE: json.dumps(size)}}
    counted = {f"requests.{CORE}": (50, 20), f"requests.{MEMORY}": (16, 16)}
    quota = {
        "metadata": {"name": "q"},
        "spec": {"hard": {key: most for key, (most, _) in counted.items()}},
        "status": {"used": {key: used for key, (_, used) in counted.items()}},
    }
    told = list(past_limits(NamespaceLimits([quota]), [parse_pod(obj)], UNIT))
    yield from (f"nothing is told of {key}" for key in counted if not any(key in line for line in told))


def _values(file: Path) -> Faults:
    schema = json.loads(HELM.read_text("utf-8"))
    [values] = read_documents(file.read_bytes())
    yield from _unknown(values, schema, schema, "")


def _unknown(value: Any, schema: Any, root: Any, path: str) -> Faults:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    known = schema.get("properties", {})
    for key, below in value.items() if isinstance(value, dict) else ():
        if key in known:
            yield from _unknown(below, known[key], root, f"{path}.{key}")
        elif schema.get("additionalProperties") is False:
            yield f"the chart's schema refuses {path}.{key}"


def _each(*cases: Callable[[Path], Faults]) -> Callable[[Path], Faults]:
    return lambda file: (fault for case in cases for fault in case(file))


CASES: Final[Mapping[str, Callable[[Path], Faults]]] = {
    "exported-nodename.yaml": _node_name,
    "gated-by-kueue.yaml": _held("gate"),
    "gpumem-16Gi.yaml": _told("nvidia.com/gpumem is 17179869184", "16Gi", "write 16384"),
    "hami-node-label.yaml": _node_label,
    "jupyterhub-values.yaml": _told(
        "nvidia.com/gpumem at", f"{CORE}: 50, {MEMORY}: 63", "scheduling.userScheduler"
    ),
    "kserve-serverless.yaml": _serverless,
    "kueue-job.yaml": _told("kueue.x-k8s.io/queue-name", "coveredResources"),
    "limitrange-cap.yaml": _checked("[limit-range]", f"{CORE} is", f"{MEMORY} is", code=0),
    "limitranged-sidecar.yaml": _checked('"istio-proxy"', "[limit-range]", code=1),
    "promrule-hami.yaml": _told(
        "vGPU_device_memory_usage_in_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "vGPUMemoryAllocated",
        "nvidia.com/gpumem ",
        "nvidia_com_gpumem",
    ),
    "ray-illegal-share.yaml": _checked("[core-not-multiple]", code=1),
    "raycluster-gpushare.yaml": _ray,
    "resize-past-resourcequota.yaml": _resized,
    "rolling-update.yaml": _held("owner"),
    "spark-vendor.yaml": _told("spark.executor.resource.gpu.vendor", "annotation.gpu-fraction"),
    "time-slicing-four.yaml": _each(_told("--like"), _turns),
    "values-istio-aks.yaml": _values,
    "visible-devices-all.yaml": _shown_cards,
}
