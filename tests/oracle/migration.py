"""What manifests of other systems ought to become: worked out by hand, from what their projects document.

Knows nothing of the translation: the shares that must come out, in the order of the text, and the names that
must be told because they stay. A foreign name that stays untold, a lost comment or anchor is a fault too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_manager.adapters.manifests import read_documents

DATA: Final = Path(__file__).parents[1] / "data" / "migrate"
WHOLE: Final = None  # all memory of its cards


@dataclass(frozen=True, slots=True)
class Case:
    """A manifest, the page that it has its shape from, the command's options, and what is due.

    ``shares`` are (cores, memory units) of each container; ``told`` are words of the report, which then
    comes with exit code 1.
    """

    file: str
    shape: str
    shares: tuple[tuple[int, int | None], ...]
    told: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


_16, _40 = ("--card-memory", "16Gi"), ("--card-memory", "40Gi")
CASES: Final = (
    Case("volcano/fraction.yaml", "Volcano: vGPU user guide", ((50, 12),), ("schedulerName volcano",)),
    Case("volcano/job.yaml", "Volcano: Job with tasks", ((200, WHOLE),), ("schedulerName volcano",)),
    Case("volcano/percentage.yaml", "Volcano: vGPU user guide", ((40, 29),), (), _16),
    Case("volcano/part-of-each-of-two.yaml", "Volcano: vGPU user guide", ((20, 24),)),
    Case("volcano/exported.yaml", "Volcano: vGPU user guide", ((10, 4),)),
    Case("kai/fraction.yaml", "KAI: GPU sharing", ((50, 78),), ("kai.scheduler/queue",), _40),
    Case("kai/memory.yaml", "KAI: GPU sharing", ((10, 8),)),
    Case("kai/second-container.yaml", "KAI: GPU sharing, another container", ((30, 47),), (), _40),
    Case("kai/two-cards.yaml", "KAI: GPU sharing, several devices", ((100, 156),), (), _40),
    Case(
        "kai/runai.yaml", "Run:ai: dynamic fractions", ((25, 39),), ("gpu-fraction-limit", "runai/queue"), _40
    ),
    Case("nvidia/mig.yaml", "NVIDIA's plugin: MIG, mixed strategy", ((100, WHOLE),)),
    Case("shapes/mig-mixed.yaml", "NVIDIA's plugin: MIG, both strategies", ((100, WHOLE), (100, WHOLE))),
    Case(
        "shapes/mig-refused.yaml",
        "NVIDIA's plugin: MIG, what is not translated",
        (),
        (
            "nvidia.com/mig-1g.5gb ",
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.5gb.shared",
            "nvidia.com/mig-1c.2g.10gb",
        ),
    ),
    Case("shapes/kserve-pytorch.yaml", "KServe: TorchServe on a GPU", ((100, WHOLE),)),
    Case("shapes/kserve-model.yaml", "KServe: model format, and a transformer", ((10, 32),)),
    Case("shapes/kserve-runtime.yaml", "KServe: serving runtimes", ((60, 80),)),
    Case("shapes/argo.yaml", "Argo Workflows: template types", ((25, 16),)),
    Case("shapes/argo-patch.yaml", "Argo Workflows: podSpecPatch", (), ("volcano.sh/vgpu-memory",)),
    Case("shapes/mps.yaml", "MPS: environment variables", ((30, 24),), ("nvidia-mps",)),
    Case("shapes/mps-percentage.yaml", "MPS: provisioning by percentage", ((50, 29),), (), _16),
    Case(
        "shapes/variables.yaml",
        "HAMi-core: container without a resource",
        (),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1", "CUDA_DEVICE_SM_LIMIT"),
    ),
    Case(
        "shapes/aliyun-program.yaml",
        "gpushare: sample whose program reads its variables",
        ((10, 12),),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"),
    ),
    Case(
        "shapes/elsewhere.yaml",
        "Spark operator, Tekton, text in a ConfigMap, ResourceQuota, affinity",
        (),
        ("nvidia.com/gpu ", "nvidia.com/gpumem", "qgpu-core", "ResourceQuota", "nvidia.com/gpu.product"),
    ),
    Case("shapes/documents.yaml", "HAMi and Volcano in one file", ((10, 4), (20, 8), (5, 2))),
    Case(
        "shapes/anchors.yaml",
        "HAMi, with YAML's anchors and merge keys",
        ((20, 8), (20, 8), (20, 8)),
        ("CUDA_TASK_PRIORITY",),
    ),
)

_FOREIGN: Final = re.compile(
    r"nvidia\.com/(?:v?gpu[\w.-]*|mig-[\w.]+)|volcano\.sh/v?gpu-[\w.-]+|aliyun\.com/gpu-[\w.]+|"
    r"gpu-fraction[\w.-]*|\bgpu-memory\b|qgpu-[\w]+|hami\.io/[\w-]+|kai\.scheduler/\w+|runai/\w+|"
    r"CUDA_DEVICE_[A-Z]+_LIMIT\w*|CUDA_MPS_\w+|CUDA_TASK_PRIORITY|ALIYUN_COM_GPU_\w+"
)


def faults(case: Case, text: str, report: str, code: int) -> Iterator[str]:
    """What is wrong with what came out: the new text, what was told, and the exit code."""
    shares = [share for document in read_documents(text.encode()) for share in _shares(document)]
    if shares != list(case.shares):
        yield f"shares are {shares}, due are {list(case.shares)}"
    if code != bool(case.told):
        yield f"exit code {code}"
    yield from (f"nothing is told of {word}" for word in case.told if word not in report)
    plain = re.sub(r"(?m)(?:^|\s)#.*$", "", re.sub(r"(?m)^.*tolerations:\n(?:.*\n){3}", "", text))
    for name in set(_FOREIGN.findall(plain)):
        if name not in report:
            yield f"{name} is left, and nothing told of it"
    before = (DATA / case.file).read_text(encoding="utf-8")
    for mark in (r"# kept[^\n]*", r"[&*]\w+\b"):
        if re.findall(mark, before) != (there := re.findall(mark, text)):
            yield f"of comments and anchors only {there} are left"


def _shares(tree: Any) -> Iterator[tuple[int, int | None]]:
    """Of each container in turn; values that only others refer to (``x-…``) are no container."""
    if isinstance(tree, list):
        for entry in tree:
            yield from _shares(entry)
    elif isinstance(tree, dict):
        limits = tree.get("limits")
        if isinstance(limits, dict) and "tencent.com/vcuda-core" in limits:
            yield limits["tencent.com/vcuda-core"], limits.get("tencent.com/vcuda-memory", WHOLE)
        for key, value in tree.items():
            if not str(key).startswith("x-"):
                yield from _shares(value)
