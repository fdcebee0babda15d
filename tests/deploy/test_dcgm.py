"""docs/dcgm.md: one machine's figures by dcgm-exporter's names and by ours are the same, on a real promtool."""

from __future__ import annotations

import re
from pathlib import Path

import pynvml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.servers.exporter import Exporter
from gpu_manager.services.cards.card_history import CardXids
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.metrics import ServiceMetrics
from tests.deploy.test_rules import judge
from tests.fakes.nvml import FakeNvml, Gpu
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses, FakeTenants
from tests.fakes.prometheus import needs_prometheus
from tests.fakes.state import state_of

PAGE = (Path(__file__).parents[2] / "docs" / "dcgm.md").read_text()
ROW = re.compile(r"^\| `(DCGM_\w+)` \([^)]*\) \| `(vcuda_\w+)` \| ([0-9.]+) \|$", re.MULTILINE)
CLOCKS = {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1215}
GPU = Gpu(0, temperature=41, milliwatts=61_500, clocks=CLOCKS, millijoules=12_345_678, used=3 << 30)
# What dcgm-exporter says of that card, in the units of its own table of fields.
THEIRS = {
    "DCGM_FI_DEV_GPU_TEMP": 41,
    "DCGM_FI_DEV_POWER_USAGE": 61.5,
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_MEM_CLOCK": 1215,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 12_345_678,
    "DCGM_FI_DEV_FB_USED": 3072,
    "DCGM_FI_DEV_GPU_UTIL": 7,
    "DCGM_FI_DEV_XID_ERRORS": 31,
}


def ours() -> dict[str, float]:
    """Series → value, of one card of that machine."""
    cards = NvmlCards(FakeNvml(GPU), sysfs=Path("/nonexistent"))
    state, registry = state_of(tuple(cards.list())), CollectorRegistry()
    metrics = ServiceMetrics(CollectorRegistry())
    usage = UsageSampler(state, cards, FakePods(), FakeTenants(), FakeProcesses(), FakeClock(), metrics)
    usage.sample()
    xids = {state.node.cards[0].card.uuid: CardXids(last=31)}
    registry.register(Exporter(state, usage, "", xids=lambda: xids))
    return {
        f'{s.name}{{uuid="{s.labels["uuid"]}",card="{s.labels["card"]}"}}': s.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for s in family.samples
        if s.name.startswith("vcuda_card_") and set(s.labels) == {"uuid", "card"}
    }


@needs_prometheus
def test_every_figure_of_the_table_is_the_same_by_both_names_joined_by_uuid(tmp_path: Path) -> None:
    pairs = ROW.findall(PAGE)
    assert {name for name, _, _ in pairs} == set(THEIRS)
    series = {name: f"{value!r}x5" for name, value in ours().items()}
    series |= {f'{name}{{UUID="{GPU.uuid}",gpu="0"}}': f"{value}x5" for name, value in THEIRS.items()}

    def same(theirs: str, mine: str, times: str) -> dict[str, object]:
        joined = f'label_replace({theirs}, "uuid", "$1", "UUID", "(.+)")'
        expr = f"round({joined} / on (uuid) ({mine} * {times}), 0.000001)"
        return {
            "expr": expr,
            "eval_time": "2m",
            "exp_samples": [{"labels": f'{{uuid="{GPU.uuid}"}}', "value": 1}],
        }

    judge(tmp_path, ("the same figures", series, [same(*pair) for pair in pairs]))


@needs_prometheus
def test_the_join_that_the_page_shows_gives_each_container_its_part_of_the_power(tmp_path: Path) -> None:
    block = re.search(r"```\n(vcuda_container_core_usage_ratio.*?)```", PAGE, re.DOTALL)
    assert block is not None
    labels = f'namespace="a",pod="p",container="c",uuid="{GPU.uuid}",card="0"'
    series = {
        f"vcuda_container_core_usage_ratio{{{labels}}}": "0.5x5",
        f'DCGM_FI_DEV_POWER_USAGE{{UUID="{GPU.uuid}",gpu="0",pod="agent"}}': "61.5x5",
    }
    wanted = {
        "expr": block[1],
        "eval_time": "2m",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 30.75}],
    }
    judge(tmp_path, ("the join", series, [wanted]))
