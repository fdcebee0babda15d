"""The demo's chapters on admission: denied, over quota, no room, explained, urgent."""

from __future__ import annotations

import json
from typing import Final

from gpu_manager.domain.contract import CORE, NAMESPACE, QUOTA_KEY, QUOTA_MAP
from gpu_manager.domain.errors import RequestInvalid
from sandbox import commands
from sandbox.demo.output import DemoOutput
from sandbox.demo.scenes import free_cores, names_it, reason_lines, says_what_lacks
from sandbox.demo.stage import Stage, manifest
from sandbox.nodes import wanted_of

QUOTA_CARDS: Final = 4
_MAP: Final = (NAMESPACE, QUOTA_MAP, QUOTA_KEY)
_MOST_LINES: Final = 12


def denied(stage: Stage, paper: DemoOutput) -> None:
    """What can never be had is not even created."""
    title, objects = manifest("6-illegal")
    paper.heading(title)
    reason = ""
    try:
        stage.apply(objects)
    except RequestInvalid as error:
        reason = str(error)
    paper.lines(_wrapped(reason), "yellow")
    paper.check(bool(reason) and not stage.pod("illegal"), "the API server refused to create it")
    names_it(paper, reason)


def quota(stage: Stage, paper: DemoOutput) -> None:
    """Refused by quota, and let go when it is raised."""
    title, objects = manifest("8-quota")
    paper.heading(title)
    _grant(stage, QUOTA_CARDS)
    names = stage.apply(objects)
    reason = _refusal(stage, names[0])
    paper.lines(_wrapped(reason), "yellow")
    used = sum(
        wanted_of(pod).get(CORE, 0)
        for pod in stage.sandbox.api.list("pods", "default")
        if pod["spec"].get("nodeName")
    )
    paper.check(
        "ExceedsGPUQuota" in reason and f"{used / 100:g}" in reason,
        f"the reason has the sums: {used / 100:g} of {QUOTA_CARDS} cards are used, it asks for one more",
    )
    began = paper.seconds
    _grant(stage, QUOTA_CARDS + 1)
    stage.settle(names, "Running")
    took = paper.seconds - began
    paper.check(True, f"{took:.1f} s after the quota was raised to {QUOTA_CARDS + 1} cards, it runs")  # noqa: FBT003  # settle raises
    stage.remove(names)
    stage.sandbox.api.delete("configmaps", _MAP[1], _MAP[0])


def no_room(stage: Stage, paper: DemoOutput) -> None:
    """What cannot be had now waits, and says for what."""
    title, objects = manifest("7-no-room")
    paper.heading(title)
    free = free_cores(stage)
    names = stage.apply(objects)
    reason = _refusal(stage, names[0])
    paper.line(f"{names[0]} is {stage.phase(names[0])}, {stage.reason(names[0])[0]}:")
    paper.lines(reason_lines(reason), "yellow")
    paper.check(not stage.held(*names), "it holds nothing")
    says_what_lacks(paper, free, reason)


def explained(stage: Stage, paper: DemoOutput) -> None:
    """The same at length, for whoever asks."""
    paper.heading("Why it waits, card by card, with the smallest change that lets it run (/explain):")
    lines = stage.sandbox.explain("default", "no-room").splitlines()
    paper.lines(lines[:_MOST_LINES])
    told = sum(line.strip().startswith("card ") for line in lines)
    paper.check(told == len(stage.sandbox.cards), f"it accounts for each of the {told} cards")


def preempted(stage: Stage, paper: DemoOutput) -> None:
    """An urgent pod takes the place of lesser ones, on one card."""
    title, objects = manifest("9-urgent")
    paper.heading(title)
    before: dict[tuple[str, str], set[int]] = {}
    for h in stage.held():
        before.setdefault((h.pod, h.container), set()).add(h.card)
    names = stage.apply(objects)
    stage.settle(names, "Running", seconds=20)
    (mine,) = stage.held(*names)
    after = {(h.pod, h.container) for h in stage.held()}
    gone = before.keys() - after
    left = sorted({pod for pod, _ in gone})
    here = {pod for (pod, container) in gone if mine.card in before[pod, container]}
    paper.line(f"{names[0]:18} {mine}")
    paper.line(f"left for it: {', '.join(left)}")
    paper.check(
        set(left) == here and mine.cores == 50,
        f"only pods on card {mine.card} left: whom to evict is judged by card, not by the node's sum",
    )
    stage.remove([*names, "no-room"])


def _grant(stage: Stage, cards: int) -> None:
    """Write the quota of the namespace, as the predecessor's ConfigMap has it."""
    namespace, name, key = _MAP
    model = stage.sandbox.cards[0].model
    data = {key: json.dumps({"default": {"quota": {model: cards}}})}
    meta = {"name": name, "namespace": namespace}
    commands.apply(
        stage.sandbox.api, [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}]
    )


def _refusal(stage: Stage, name: str) -> str:
    """The scheduler's words, once it has looked."""
    stage.until(lambda: bool(stage.reason(name)[1]), lambda: f"{name} was not refused", 10)
    return stage.reason(name)[1]


def _wrapped(reason: str) -> list[str]:
    """At the sentence's own joints."""
    for mark in (" denied the request: ", " nodes are available: ", ": use ", "; "):
        reason = reason.replace(mark, f"{mark.rstrip()}\n  ", 1)
    return reason.splitlines()
