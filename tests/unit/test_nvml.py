"""The real cards' adapter over a hand-made machine: inventory, links, figures, errors."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.adapters.nvml.errors import MEANINGS, NvmlErrorKind, meaning, sentence, to_domain
from gpu_manager.adapters.nvml.faults import RECOVERY_ACTIONS, XIDS, FaultPolicy, Grade
from gpu_manager.domain.errors import Bug, NodeUnready
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.ports.cards import CardSensors, CardUse, ProcessUse
from tests.fakes.nvml import GIB, FakeNvml, Gpu
from tests.fakes.waiting import PATIENCE, until

NOW = 1_700_000_000.0
STAMP = int(NOW * 1e6)
LOST = pynvml.NVML_ERROR_GPU_IS_LOST


class Ticks:
    def __init__(self) -> None:
        self.value = 100.0

    def __call__(self) -> float:
        return self.value


def cards_of(
    nvml: FakeNvml, tmp_path: Path = Path("/nonexistent"), ticks: Ticks | None = None, **options
) -> NvmlCards:
    return NvmlCards(nvml, sysfs=tmp_path, monotonic=ticks or Ticks(), wall=lambda: NOW, **options)


def test_a_card_is_listed_with_everything_the_driver_tells(tmp_path):
    numa = tmp_path / "bus/pci/devices/0000:10:00.0/numa_node"
    numa.parent.mkdir(parents=True)
    numa.write_text("1\n")
    (state,) = cards_of(FakeNvml(Gpu(0)), tmp_path).list()
    card = state.card
    assert state.healthy
    assert state.open
    assert state.reason == ""
    assert card.model == "NVIDIA-A100-SXM4-40GB"
    assert (card.index, card.minor, card.numa, card.mig) == (0, 0, 1, False)
    assert (card.memory, card.reserved, card.pci_bus_id) == (40 * GIB, GIB // 2, "0000:10:00.0")


def test_an_old_driver_without_reserved_memory_still_lists():
    (state,) = cards_of(FakeNvml(Gpu(0), v2=False)).list()
    assert (state.card.memory, state.card.reserved, state.healthy) == (40 * GIB, 0, True)


def test_what_the_driver_has_reserved_once_is_not_given_away_later():
    gpu = Gpu(0)
    nvml = FakeNvml(gpu)
    cards = cards_of(nvml)

    def reserved(now: int) -> int:
        gpu.reserved = now
        (state,) = cards.list()
        return state.card.reserved

    assert [reserved(n) for n in (GIB // 2, GIB // 4, GIB, GIB // 2)] == [GIB // 2, GIB // 2, GIB, GIB]
    nvml.v2 = False
    assert reserved(0) == GIB, "one answer without the figure changes nothing"
    gpu.total, nvml.v2 = 39 * GIB, True
    assert reserved(GIB // 4) == GIB // 4, "with ECC switched on it is another card"


@pytest.mark.parametrize(
    ("text", "affinity", "expected"),
    [("-1", 0, None), ("-1", 0b100, 2), ("-1", 0b11, None), ("3", 0, 3), ("?", 1, 0)],
)
def test_the_numa_node_is_sysfs_then_memory_affinity_then_unknown(tmp_path, text, affinity, expected):
    numa = tmp_path / "bus/pci/devices/0000:10:00.0/numa_node"
    numa.parent.mkdir(parents=True)
    numa.write_text(text)
    (state,) = cards_of(FakeNvml(Gpu(0, affinity=affinity)), tmp_path).list()
    assert state.card.numa == expected


def test_a_mig_card_is_listed_and_left_alone():
    nvml = FakeNvml(Gpu(0, mig=1, compute={5: GIB}), Gpu(1, mig=None))
    cards = cards_of(nvml)
    mig, plain = cards.list()
    assert mig.card.mig
    assert not mig.open
    assert mig.healthy
    assert not plain.card.mig
    uses, processes = cards.usage()
    assert uses[0] == CardUse(mig.card.uuid, 3 * GIB, None, lists_processes=False, samples_processes=False)
    assert processes == []


def test_one_lost_card_takes_no_other_down_and_keeps_its_name():
    nvml = FakeNvml(Gpu(0), Gpu(1), Gpu(2))
    cards = cards_of(nvml)
    before = [s.card for s in cards.list()]
    nvml.gpus[1].failing = LOST
    states = cards.list()
    assert [s.card for s in states] == before
    assert [s.healthy for s in states] == [True, False, True]
    assert "fallen off the bus" in states[1].reason
    assert "reboot" in states[1].reason
    uses, _ = cards.usage()
    assert [u.uuid for u in uses] == [before[0].uuid, before[2].uuid]


def test_a_card_that_never_answered_is_listed_with_nothing_to_give():
    states = cards_of(FakeNvml(Gpu(0), Gpu(1, failing=LOST))).list()
    assert not states[1].healthy
    assert states[1].card.memory == 0
    assert states[1].card.uuid.startswith("GPU-")
    assert states[0].healthy


def test_a_silent_card_takes_no_other_cards_name_when_indices_have_shifted():
    nvml = FakeNvml(Gpu(0), Gpu(1), Gpu(2))
    cards = cards_of(nvml)
    names = [s.card.uuid for s in cards.list()]
    del nvml.gpus[0]  # now the second card has index 0, and the third, at 1, is silent
    nvml.gpus[1].fail["uuid"] = LOST
    first, second = cards.list()
    assert (first.card.uuid, first.healthy) == (names[1], True)
    assert second.card.uuid not in names
    assert not second.healthy


@pytest.mark.parametrize("function", ["handle", "uuid", "memory", "fields", "rows"])
def test_a_card_that_fails_one_vital_question_is_unhealthy_with_the_reason(function):
    nvml = FakeNvml(Gpu(0, fail={function: pynvml.NVML_ERROR_UNKNOWN}), Gpu(1))
    states = cards_of(nvml).list()
    assert [s.healthy for s in states] == [False, True]
    assert "NVML UNKNOWN" in states[0].reason


def test_a_card_without_memory_of_its_own_is_healthy_and_has_none_to_share():
    """Unified memory: nvmlDeviceGetMemoryInfo says that it is not supported."""
    (state,) = cards_of(FakeNvml(Gpu(0, fail={"memory": pynvml.NVML_ERROR_NOT_SUPPORTED}))).list()
    assert state.healthy
    assert state.card.capacity(DEFAULT_UNIT) == Amount(100, 0)


@pytest.mark.parametrize(
    ("mode", "name"), [(1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (3, "EXCLUSIVE_PROCESS")]
)
def test_a_card_whose_compute_mode_keeps_a_second_process_off_is_given_whole(mode, name):
    gpu = Gpu(1, compute_mode=mode)
    cards = cards_of(FakeNvml(Gpu(0), gpu))
    open_, whole = cards.list()
    assert (open_.card.whole_only, whole.healthy) == ("", True)
    assert whole.card.whole_only.startswith(f"compute mode {name} lets ")
    assert "cure: nvidia-smi -i 1 -c DEFAULT" in whole.card.whole_only
    gpu.compute_mode = 0
    assert cards.list()[1].card.whole_only == ""
    gpu.fail["compute_mode"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert cards.list()[1].card.whole_only == ""


def test_what_a_card_does_not_support_is_absent_not_zero():
    gpu = Gpu(0, gpu_percent=None, samples=None, compute={7: None})
    uses, processes = cards_of(FakeNvml(gpu)).usage()
    assert uses == [CardUse(uses[0].uuid, 3 * GIB, None, samples_processes=False)]
    assert processes == [ProcessUse(uses[0].uuid, 7, None, None)]


def test_a_process_in_two_lists_is_counted_once_and_mps_and_graphics_count():
    gpu = Gpu(0, compute={7: 2 * GIB, 0: GIB}, graphics={7: 2 * GIB, 8: GIB})
    _, processes = cards_of(FakeNvml(gpu)).usage()
    assert [(p.pid, p.memory, p.utilisation) for p in processes] == [(7, 2 * GIB, 0.0), (8, GIB, 0.0)]


def test_a_driver_with_older_process_lists_is_asked_in_its_own_way():
    gpu = Gpu(0, compute={7: GIB}, fail={"processes_v3": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    _, processes = cards_of(FakeNvml(gpu)).usage()
    assert [p.pid for p in processes] == [7]


def test_repeated_samples_of_one_process_are_not_added_up():
    at = STAMP
    gpu = Gpu(0, compute={7: GIB})
    gpu.samples = [
        (7, at, 40),
        (7, at, 30),
        (7, at + 10, 60),
        (9, at, 250),
        (9, at - 5_000_000, 90),
        (0, at, 5),
    ]
    time = [NOW]
    cards = NvmlCards(FakeNvml(gpu), sysfs=Path("/nonexistent"), wall=lambda: time[0])

    def seen() -> list[tuple[int, float | None]]:
        return [(p.pid, p.utilisation) for p in cards.usage()[1]]

    assert seen() == [(7, 50.0)]
    assert seen() == [(7, 50.0)], "the same samples again: the next one is not due yet"
    gpu.samples.append((7, at + 20, 10))
    assert seen() == [(7, 10.0)]
    time[0] += 1.1
    assert seen() == [(7, 0.0)], "no sample for a second: it did nothing"
    gpu.samples, gpu.compute = [(7, at + 1_100_000, 80)], {7: GIB}
    assert seen() == [(7, 80.0)]
    gpu.compute = {}
    assert seen() == [], "it has ended"
    gpu.compute = {7: GIB}
    time[0] -= 3600
    assert seen() == [(7, 0.0)], "a sample of an hour ahead is no sample"


def test_a_clock_that_was_set_back_hides_no_work():
    """Samples bear the wall clock: by the last one seen none would be new for an hour, and all would idle."""
    gpu, time = Gpu(0, compute={7: GIB}), [STAMP / 1e6]
    cards = NvmlCards(FakeNvml(gpu), sysfs=Path("/nowhere"), wall=lambda: time[0])
    gpu.samples = [(7, STAMP, 40)]
    assert [p.utilisation for p in cards.usage()[1]] == [40.0]
    time[0] -= 3600
    gpu.samples.append((7, STAMP - 3_600_000_000 + 10, 60))
    assert [p.utilisation for p in cards.usage()[1]] == [60.0]
    gpu.samples = [(7, STAMP - 3_600_000_000 + 20, 20)]
    assert [p.utilisation for p in cards.usage()[1]] == [20.0]


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        (Gpu(0, remapped=(0, 1, 0, 1)), "replace"),
        (Gpu(0, remapped=(0, 1, 1, 0)), "waits for a reset"),
        (Gpu(0, remapped=None, retired_pending=1), "page waits for a reset"),
        (Gpu(0, action=1), "asks for a reset"),
        (Gpu(0, action=77), "recovery action 77"),
        (Gpu(0, failing=pynvml.NVML_ERROR_RESET_REQUIRED), "needs a reset"),
    ],
)
def test_a_card_in_a_bad_condition_is_closed_with_what_to_do(gpu, word):
    (state,) = cards_of(FakeNvml(gpu)).list()
    assert not state.healthy
    assert word in state.reason


def test_a_pending_remap_closes_nothing_if_the_operator_says_so():
    policy = FaultPolicy(pending_remap_closes=False)
    (state,) = cards_of(FakeNvml(Gpu(0, remapped=(0, 1, 1, 0))), policy=policy).list()
    assert state.healthy


def test_a_card_recovers_after_it_answers_and_a_quiet_time():
    ticks, nvml = Ticks(), FakeNvml(Gpu(0))
    cards = cards_of(nvml, ticks=ticks, policy=FaultPolicy(quiet_seconds=60))
    nvml.gpus[0].action = 4
    assert not cards.list()[0].healthy
    nvml.gpus[0].action = 0
    ticks.value += 59
    assert not cards.list()[0].healthy
    nvml.gpus[0].action = 4
    ticks.value += 30
    assert not cards.list()[0].healthy  # the quiet time begins anew
    nvml.gpus[0].action = 0
    ticks.value += 59
    assert not cards.list()[0].healthy
    ticks.value += 1
    assert cards.list()[0].healthy


def test_nvml_is_opened_anew_while_a_card_is_lost_but_not_at_every_look():
    ticks, nvml = Ticks(), FakeNvml(Gpu(0), Gpu(1))
    cards = cards_of(nvml, ticks=ticks, policy=FaultPolicy(quiet_seconds=60))
    cards.list()
    nvml.gpus[1].failing = LOST
    cards.list()
    cards.list()
    assert nvml.opened == 1
    ticks.value += 60
    cards.list()
    assert (nvml.opened, nvml.open) == (2, 1)


def test_a_missing_library_is_said_with_its_cure_and_tried_again():
    nvml = FakeNvml(Gpu(0))
    nvml.broken = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    cards = cards_of(nvml)
    for call in (cards.list, cards.topology, cards.usage):
        with pytest.raises(
            NodeUnready, match=r"^could not load the NVML library: .*install the NVIDIA driver"
        ):
            call()
    nvml.broken = 0
    assert cards.list()[0].healthy
    assert nvml.open == 1


def test_the_real_binding_on_a_machine_without_a_driver_says_the_same(tmp_path):
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(NodeUnready, match="NVML"):
            NvmlCards().list()
    else:
        pynvml.nvmlShutdown()
        assert NvmlCards().list()


def test_a_library_path_that_does_not_load_is_named(tmp_path):
    wrong = tmp_path / "libnvidia-ml.so.1"
    wrong.write_text("no library")
    with pytest.raises(NodeUnready, match=rf"could not load the NVML library: .*{wrong}"):
        cards_of(FakeNvml(Gpu(0)), library=lambda: wrong).list()


def test_a_driver_that_goes_away_raises_for_the_node_and_blames_no_card():
    nvml = FakeNvml(Gpu(0))
    cards = cards_of(nvml)
    cards.list()
    nvml.broken = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(NodeUnready, match=r"different versions.*reboot the node or reload"):
        cards.list()
    nvml.broken = 0
    assert cards.list()[0].healthy
    nvml.gpus[0].fail["uuid"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(NodeUnready, match="not loaded"):
        cards.list()
    nvml.gpus[0].fail.clear()
    assert cards.list()[0].healthy
    cards.close()
    assert nvml.open == 0


def error_codes() -> dict[str, int]:
    return {n: getattr(pynvml, n) for n in dir(pynvml) if n.startswith("NVML_ERROR_")}


@pytest.mark.parametrize("name", sorted(error_codes()))
def test_every_nvml_error_has_a_meaning_and_a_cure(name):
    code = error_codes()[name]
    row = MEANINGS[code]
    assert row.name == name.removeprefix("NVML_ERROR_")
    assert row.what
    assert row.cure
    error = to_domain(code, "count the cards")
    assert type(error) is (Bug if row.kind is NvmlErrorKind.OURS else NodeUnready)
    assert row.cure in str(error)


def test_the_error_table_holds_nothing_that_nvml_does_not_know():
    assert set(MEANINGS) == set(error_codes().values())


@pytest.mark.parametrize("code", sorted({*error_codes().values(), 4711} - {0}))
@pytest.mark.parametrize(
    "function",
    [
        "handle",
        "uuid",
        "name",
        "memory",
        "pci",
        "mig",
        "minor",
        "rows",
        "fields",
        "pages",
        "affinity",
        "rates",
        "processes_v3",
        "samples",
        "topology",
        "nvlink",
    ],
)
def test_no_nvml_error_leaks_whatever_call_fails(code, function):
    nvml = FakeNvml(
        Gpu(0),
        Gpu(
            1, fail={function: code}, links=[(1, "x")], remapped=None if function == "pages" else (0, 0, 0, 0)
        ),
    )
    cards = cards_of(nvml)
    for call in (cards.list, cards.usage, cards.topology):
        try:
            call()
        except NodeUnready:
            assert meaning(code).kind is NvmlErrorKind.NODE
    nvml.gpus[1].fail.clear()
    assert cards.list()[0].healthy


def test_a_code_of_a_newer_driver_still_gets_a_sentence():
    assert "4711" in sentence(4711)


def test_recovery_actions_are_the_drivers():
    known = {getattr(pynvml, n) for n in dir(pynvml) if n.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert set(RECOVERY_ACTIONS) == known


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 69, 94, 109])
def test_errors_of_one_program_close_no_card_that_others_share(xid):
    assert XIDS[xid][0] is Grade.APPLICATION
    assert FaultPolicy().closes(xid, 0) == ""
    assert FaultPolicy().closes(xid, None) == ""
    assert "asks for a reset" in FaultPolicy().closes(xid, 1)


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 79, 95, 119, 120, 140])
def test_errors_of_the_card_close_it_whatever_the_driver_says(xid):
    for action in (None, 0, 1):
        assert FaultPolicy().closes(xid, action).startswith(f"XID {xid}: ")


@pytest.mark.parametrize(("action", "closes"), [(None, True), (0, False), (2, True)])
def test_an_unknown_xid_is_as_bad_as_the_driver_says_and_bad_if_it_cannot_say(action, closes):
    assert bool(FaultPolicy().closes(9999, action)) is closes
    assert bool(FaultPolicy().closes(74, action)) is closes


def test_the_operator_regrades_xids():
    policy = FaultPolicy(application=frozenset({48}), critical=frozenset({31}))
    assert policy.closes(48, None) == ""
    assert policy.closes(31, 0).startswith("XID 31")


def test_an_announcement_alone_closes_nothing():
    assert FaultPolicy().closes(154, None) == ""
    assert FaultPolicy().closes(154, 0) == ""
    assert "reboot" in FaultPolicy().closes(154, 2)


def test_sensors_are_told_in_base_units_and_read_every_ten_seconds():
    clocks = {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1215}
    gpu = Gpu(0, temperature=41, milliwatts=61_500, clocks=clocks, millijoules=12_345_678)
    ticks = [100.0]
    cards = NvmlCards(FakeNvml(gpu, Gpu(1)), sysfs=Path("/nonexistent"), monotonic=lambda: ticks[0])

    def sensors(index: int = 0) -> CardSensors:
        return cards.usage()[0][index].sensors

    first = CardSensors(41.0, 61.5, 1.41e9, 1.215e9, pytest.approx(12_345.678))
    assert sensors() == first
    assert sensors(1) == CardSensors(), "a card that cannot tell"
    gpu.temperature, gpu.millijoules = 55, None
    ticks[0] += 9
    assert sensors() == first
    ticks[0] += 1
    assert sensors() == replace(first, temperature=55.0, energy=None)
    gpu.mig = 1
    cards.list()
    assert sensors().power == 61.5, "a card in MIG mode too"


def test_a_card_that_hangs_is_closed_and_named_and_the_others_usage_goes_on():
    first, second = Gpu(0, compute={7: GIB}), Gpu(1, compute={8: 2 * GIB})
    nvml = FakeNvml(first, second)
    cards = cards_of(nvml, patience=0.05)
    assert all(state.healthy for state in cards.list())
    free, threads = nvml.hang(first), threading.active_count()
    for _ in range(3):
        uses, processes = cards.usage()
        assert [use.uuid for use in uses] == [second.uuid]
        assert [process.pid for process in processes] == [8]
    closed, open_ = cards.list()
    assert (closed.card.uuid, closed.healthy, open_.healthy) == (first.uuid, False, True)
    assert "did not answer in time" in closed.reason
    assert threading.active_count() <= threads + 1  # however often it is asked
    free.set()
    until(lambda: not cards._patience.hangs)
    assert len(cards.list()) == 2
    assert [use.uuid for use in cards.usage()[0]] == [first.uuid, second.uuid]


def test_a_driver_that_hangs_as_a_whole_is_said_and_answers_again_later():
    nvml = FakeNvml(Gpu(0))
    free = threading.Event()
    count = nvml.nvmlDeviceGetCount
    nvml.nvmlDeviceGetCount = lambda: (free.wait(PATIENCE), count())[1]
    cards = cards_of(nvml, patience=0.05)
    for _ in range(2):
        with pytest.raises(NodeUnready, match="did not answer in time"):
            cards.list()
    free.set()
    until(lambda: not cards._patience.hangs)
    assert len(cards.list()) == 1
