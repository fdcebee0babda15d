"""What a container's root does to others through its pages, its card's gate and the kubelet's port."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.kube.kube import KubeletPods
from gpu_manager.adapters.machine import SystemClock
from tests.fakes.certificates import self_signed
from tests.fakes.hostile_attacks import ATTACKS, UNANSWERED
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.hostile_world import hostile_world, may_mount
from tests.fakes.page_looks import ModelledClock, fill_slots, second_of_looks
from tests.fakes.pages import LIMIT, NAME, usage_file
from tests.fakes.web import send, serving

_TOKEN = "the agent's token"
_SECONDS = 5


def file_rows(*, full: bool) -> Iterator[Row]:
    """``hostile_file_harm``: attacks by which others wait over a second, or whose author is not named."""
    name, unit, bar = "hostile_file_harm", "attacks", "= 0"
    if not may_mount():
        yield Row(name, None, unit, bar, full=full, note="needs the right to mount file systems")
        return
    from tests.native.tools import build_tests  # noqa: PLC0415 - builds the watcher

    program = build_tests("vcuda-gates") / "vcuda-gates"
    wrong: list[str] = []
    worst = (0.0, "")
    for attack in (*ATTACKS, *UNANSWERED):
        with tempfile.TemporaryDirectory(prefix="gm-") as base, hostile_world(Path(base), program) as world:
            judged = world.play(attack)
            if judged.wrong:
                wrong.append(f"{attack}: {judged.wrong}")
            worst = max(worst, *((seconds, what) for what, seconds in judged.seconds.items()))
    yield Row(
        name,
        len(wrong),
        unit,
        bar,
        full=full,
        note=(
            f"of {len(ATTACKS) + len(UNANSWERED)}: {'; '.join(wrong) or 'none'}; longest that anybody "
            f"waited: {worst[0]:.2f} s, for {worst[1]}; leases taken while agent and watcher are away and "
            "never given up: the container's own limit and protection on that card wait for the kernel (45 s)"
        ),
    )


def sampling_rows(*, full: bool) -> Iterator[Row]:
    """``sampling_budget_ms``: of the agent's processor time a second, the most that one page costs."""
    counts = (0, 4000, 20_000) if full else (0, 4000)
    costs: dict[str, float] = {}
    gc.collect()
    gc.freeze()
    for count in counts:
        for alive in (0, 1, 16):
            with tempfile.TemporaryDirectory(prefix="gm-") as base, HostileTenant() as tenant:
                root, clock = Path(base), ModelledClock()
                pages = FileControlPages(root, monotonic_ns=clock)
                pages.open(NAME, [LIMIT])
                fill_slots(usage_file(root))
                tenant.order("locks", usage_file(root), count=alive, start=1023 - 2 * alive)
                tenant.order("locks", usage_file(root), count=count, start=1 << 20)
                seconds = [second_of_looks(pages, clock, NAME)[0] for _ in range(_SECONDS)]
                costs[f"{count} locks, {alive} of 1,024 slots locked"] = max(seconds) * 1e3
                pages.close()
    gc.unfreeze()
    worst = max(costs, key=lambda shape: costs[shape])
    note = f"worst of {_SECONDS} seconds of {len(costs)} pages: {worst}; 40 looks a second are asked for"
    yield Row("sampling_budget_ms", round(costs[worst], 1), "ms", "≤ 100", full=full, note=note)


def token_rows(*, full: bool) -> Iterator[Row]:
    """``token_leaks``: impostors at the kubelet's port that got the agent's token."""
    leaks, tried = 0, 0
    with tempfile.TemporaryDirectory(prefix="gm-") as base:
        folders = {name: Path(base) / name for name in ("kubelet", "other", "name", "old")}
        for folder in folders.values():
            folder.mkdir()
        token = Path(base) / "token"
        token.write_text(_TOKEN)
        kubelet = self_signed(folders["kubelet"], 1, "n1")
        impostors = {
            "signs itself": self_signed(folders["other"]),
            "another node's": self_signed(folders["name"], 1, "n2"),
            "expired": self_signed(folders["old"], 0, "n1"),
            "plain HTTP": None,
        }
        for who, certificate in impostors.items():
            # An authority that signed the wrong name, or long ago, is still the authority.
            authority = certificate[0] if certificate and who != "signs itself" else kubelet[0]
            heard: list[str] = []
            with serving(lambda h, heard=heard: _listen(h, heard), certificate) as url:  # type: ignore[misc]
                asked = KubeletPods(url.replace("http://", "https://"), SystemClock(), token, authority, "n1")
                found = asked.pods()
                asked.close()
            tried += 1
            leaks += found is not None or any(_TOKEN in one for one in heard)
        heard = []
        with serving(lambda h: _listen(h, heard), kubelet) as url:
            asked = KubeletPods(url, SystemClock(), token, kubelet[0], "n1")
            served = asked.pods() is not None and _TOKEN in heard[0]
            asked.close()
    note = f"of {tried} impostors ({', '.join(impostors)}); the kubelet got it: {'yes' if served else 'no'}"
    yield Row("token_leaks", leaks if served else tried, "impostors", "= 0", full=full, note=note)


def _listen(handler: object, heard: list[str]) -> None:
    heard.append(str(handler.headers))  # type: ignore[attr-defined]
    send(handler, json.dumps({"items": []}).encode())  # type: ignore[arg-type]
