"""Random questions to the allocator of kube-scheduler, in Kubernetes' own JSON, and its answers.

``dra_allocator/`` beside this file is that allocator, built from Kubernetes' Go modules. Its answers to the
first cases are recorded for machines without Go: ``python -m tests.oracle.dra_cases`` records them anew.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import allocate
from gpu_manager.domain.dra.claim import DeviceRequest, Taint, parse_claim_spec
from gpu_manager.domain.dra.device import CORES, MEMORY, CapacityRange, SharedDevice
from gpu_manager.domain.errors import DoesNotFit, VcudaError

HERE = Path(__file__).parent / "dra_allocator"
MINORS = {
    36: ("go.mod", ""),
    37: ("go-1.37.mod", "fractional"),
}  # minor of Kubernetes → module file, build tag
POOL = NODE = "node"
MODELS = ("NVIDIA-A100", "Tesla-T4")
UNIT = 256 << 20
RECORDED = 1000
ANSWERS = Path(__file__).parents[1] / "data/dra/answers.json"

Case = dict[str, Any]


def build(minor: int, directory: Path) -> Path:
    """Build the allocator of Kubernetes 1.``minor`` and return its path. Needs Go and its module proxy."""
    module, tag = MINORS[minor]
    program = directory / f"dra_allocator-1.{minor}"
    command = ["go", "build", f"-modfile={module}", f"-tags={tag}", "-o", str(program), "."]
    subprocess.run(command, cwd=HERE, check=True)
    return program


def ask(program: Path, cases: Iterable[Case]) -> Iterator[Any]:
    """Return the allocator's answer to each case: shares of each claim, None, or ``error``."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    told = subprocess.run([str(program)], input=lines, stdout=subprocess.PIPE, check=True, text=True)
    for line in told.stdout.splitlines():
        answer = json.loads(line)
        yield "error" if "error" in answer else _plain(answer["claims"])


def _plain(claims: Any) -> Any:
    if claims is None:
        return None
    return [
        [
            [
                share["request"],
                share["device"],
                {name: _bytes(amount) for name, amount in share.get("consumedCapacity", {}).items()},
                share.get("adminAccess", False),
            ]
            for share in shares
        ]
        for shares in claims
    ]


def _bytes(amount: str) -> int:
    for number, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1):
        if amount.endswith(suffix):
            return int(amount.removesuffix(suffix)) << 10 * number
    for number, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1):
        if amount.endswith(suffix):
            return int(amount.removesuffix(suffix)) * 10 ** (3 * number)
    return int(amount)


def answer(case: Case, minor: int) -> Any:
    """Return what the project's own model says of a case, in the form of :func:`ask`."""
    devices = [_device(one) for one in case["slices"][0]["spec"]["devices"]]
    used: dict[str, dict[str, int]] = {}
    for claim in case["allocated"]:
        for result in claim["status"]["allocation"]["devices"]["results"]:
            if not result.get("adminAccess"):
                of_device = used.setdefault(result["device"], {})
                for name, amount in result["consumedCapacity"].items():
                    of_device[name] = of_device.get(name, 0) + int(amount)
    try:
        specs = [parse_claim_spec(claim["spec"]) for claim in case["claims"]]
        found = allocate(devices, used, specs, minor, _eligible, most_steps=10**7)
    except DoesNotFit:
        return "too long"
    except VcudaError:
        return "error"
    if found is None:
        return None
    return [[[s.request, s.device, dict(s.consumed), s.is_admin] for s in shares] for shares in found]


def _device(shown: dict[str, Any]) -> SharedDevice:
    """Read a published device back."""
    return SharedDevice(
        shown["name"],
        {
            name: CapacityRange(
                *(int(one["requestPolicy"]["validRange"][key]) for key in ("min", "step")), int(one["value"])
            )
            for name, one in shown["capacity"].items()
        },
        {name: next(iter(value.values())) for name, value in shown["attributes"].items()},
        tuple(Taint(one["key"], one["effect"], one.get("value", "")) for one in shown.get("taints", ())),
    )


_SELECTORS: dict[str, Callable[[SharedDevice], bool]] = {
    f"device.driver == '{DRA_DRIVER}'": lambda _: True,
    **{
        f"device.attributes['{DRA_DRIVER}'].productName == '{model}'": lambda d, m=model: (
            d.attributes["productName"] == m
        )
        for model in MODELS
    },
    **{
        f"device.attributes['{DRA_DRIVER}'].index < {index}": lambda d, i=index: d.attributes["index"] < i
        for index in (1, 3)
    },
    f"device.capacity['{DRA_DRIVER}'].memory.compareTo(quantity('16Gi')) >= 0": lambda d: (
        d.capacities[MEMORY].value >= 16 << 30
    ),
}
_CLASSES = {
    "vcuda": [f"device.driver == '{DRA_DRIVER}'"],
    "vcuda-t4": [f"device.attributes['{DRA_DRIVER}'].productName == '{MODELS[1]}'"],
}


def _eligible(request: DeviceRequest, device: SharedDevice) -> bool:
    expressions = (*_CLASSES[request.device_class], *request.selectors)
    return all(_SELECTORS[expression](device) for expression in expressions)


def random_case(draw: random.Random) -> Case:
    """Return one random question: a node of 1 to 6 cards, what is allocated there, and a pod's claims."""
    cards = [_random_device(draw, index) for index in range(draw.choice((1, 2, 2, 3, 4, 6)))]
    devices = [card.as_json() for card in cards]
    draw.shuffle(devices)
    return {
        "slices": [
            {
                "metadata": {"name": "slice"},
                "spec": {
                    "driver": DRA_DRIVER,
                    "nodeName": NODE,
                    "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
                    "devices": devices,
                },
            }
        ],
        "classes": [
            {
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": one}} for one in expressions]},
            }
            for name, expressions in _CLASSES.items()
        ],
        "allocated": [
            _random_holder(draw, card) for card in cards for _ in range(draw.choice((0, 0, 0, 1, 2)))
        ],
        "claims": [
            {
                "metadata": {"name": f"claim-{n}", "namespace": "team"},
                "spec": {"devices": _random_claim(draw)},
            }
            for n in range(draw.choice((1, 1, 1, 2, 3)))
        ],
    }


def _random_device(draw: random.Random, index: int) -> SharedDevice:
    memory = draw.choice((8, 16, 23, 80, 141)) << 30
    minimum = draw.choice((1, 1, 1, 5, 10))
    taints = draw.choices(
        (
            (),
            (Taint("cordoned", "NoSchedule"),),
            (Taint("hot", "None"),),
            (Taint("sick", "NoExecute", "xid"),),
        ),
        (12, 2, 1, 1),
    )[0]
    attributes = {
        "uuid": f"GPU-{index:08x}",
        "productName": draw.choice(MODELS),
        "index": index,
        "resource.kubernetes.io/pcieRoot": f"pci0000:{draw.choice('01')}0",
    } | ({"numa": draw.randrange(2)} if draw.random() < 0.8 else {})
    capacities = {CORES: CapacityRange(minimum, 1, 100), MEMORY: CapacityRange(UNIT, UNIT, memory)}
    return SharedDevice(f"gpu-{index:08x}", capacities, attributes, taints)


def _random_holder(draw: random.Random, card: SharedDevice) -> Case:
    consumed = {
        CORES: str(draw.choice((5, 20, 30, 50, 50, 100))),
        MEMORY: str(draw.choice((UNIT, 4 << 30, 8 << 30, card.capacities[MEMORY].value))),
    }
    result = {
        "request": "gpu",
        "driver": DRA_DRIVER,
        "pool": POOL,
        "device": card.name,
        "shareID": f"{draw.getrandbits(128):032x}",
        "consumedCapacity": consumed,
    }
    if draw.random() < 0.1:
        result["adminAccess"] = True
    return {
        "metadata": {"name": f"h{draw.getrandbits(32)}"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def _random_claim(draw: random.Random) -> Case:
    requests = []
    for number in range(draw.choice((1, 1, 2, 2, 3))):
        name = f"r{number}"
        if draw.random() < 0.25:
            alternatives = [_random_exact(draw) | {"name": f"a{n}"} for n in range(draw.choice((1, 2, 3)))]
            for one in alternatives:
                one.pop("adminAccess", None)  # an alternative has none
            requests.append({"name": name, "firstAvailable": alternatives})
        else:
            requests.append({"name": name, "exactly": _random_exact(draw)})
    constraints = []
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        attribute = draw.choice(
            (
                f"{DRA_DRIVER}/uuid",
                f"{DRA_DRIVER}/numa",
                f"{DRA_DRIVER}/productName",
                "resource.kubernetes.io/pcieRoot",
            )
        )
        names = [one["name"] for one in requests]
        names += [
            f"{one['name']}/{alternative['name']}"
            for one in requests
            for alternative in one.get("firstAvailable", ())
        ]
        constraints.append(
            {draw.choice(("matchAttribute", "distinctAttribute")): attribute}
            | ({"requests": draw.sample(names, draw.randint(1, len(names)))} if draw.random() < 0.5 else {})
        )
    return {"requests": requests, "constraints": constraints}


def _random_exact(draw: random.Random) -> Case:
    exact: Case = {"deviceClassName": draw.choices(tuple(_CLASSES), (4, 1))[0]}
    if draw.random() < 0.12:
        exact["allocationMode"] = "All"
    else:
        exact |= {"allocationMode": "ExactCount", "count": draw.choices((1, 2, 3, 33), (12, 4, 2, 0.2))[0]}
    if draw.random() < 0.9:
        amounts = {CORES: _random_cores(draw), MEMORY: _random_memory(draw)}
        for name in (CORES, MEMORY):
            if draw.random() < 0.08:
                del amounts[name]
        if draw.random() < 0.03:
            amounts["bandwidth"] = "1"
        exact["capacity"] = {"requests": amounts}
    if draw.random() < 0.2:
        exact["selectors"] = [{"cel": {"expression": draw.choice(tuple(_SELECTORS))}}]
    if draw.random() < 0.15:
        exact["tolerations"] = [
            draw.choice(
                (
                    {"operator": "Exists"},
                    {"key": "cordoned", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "sick", "operator": "Equal", "value": "xid"},
                    {"key": "sick", "value": "other"},
                )
            )
        ]
    if draw.random() < 0.05:
        exact["adminAccess"] = True
    return exact


def _random_cores(draw: random.Random) -> str:
    odd = ("0", "1m", "500m", "2500m", "30500m", "3e1", "101", "1k", "0.0001", "30.00005", "1e17")
    return (
        draw.choice(odd)
        if draw.random() < 0.15
        else str(draw.choice((1, 5, 10, 10, 13, 20, 20, 30, 40, 50, 99, 100)))
    )


def _random_memory(draw: random.Random) -> str:
    odd = ("0", "1", "1500Mi", "1G", "900Gi", "1.5Gi", "268435457", "100u", "7Ei", "9e18")
    return (
        draw.choice(odd)
        if draw.random() < 0.15
        else f"{draw.choice((256, 256, 512, 512, 1024, 2048, 4096, 8192, 16384, 81920))}Mi"
    )


def record(count: int = RECORDED) -> None:
    """Write the allocators' answers to the first random cases. Needs Go."""
    cases = recorded_cases(count)
    told: dict[str, Any] = {"cases": digest(cases)}
    with tempfile.TemporaryDirectory() as place:
        for minor in MINORS:
            told[str(minor)] = list(ask(build(minor, Path(place)), cases))
    lines = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in told.items())
    ANSWERS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def recorded_cases(count: int = RECORDED) -> list[Case]:
    """Return the cases whose answers are recorded."""
    return [random_case(random.Random(f"recorded/{number}")) for number in range(count)]


def digest(cases: list[Case]) -> str:
    """Return what tells that the cases are still those whose answers are recorded."""
    return hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()[:16]


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]"


if __name__ == "__main__":
    record()
