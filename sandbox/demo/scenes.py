"""The demo's chapters: pods that share cards, and pods that are refused."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from gpu_manager.domain.resources import CORES_PER_CARD, GIB, MIB
from sandbox.demo.output import DemoOutput
from sandbox.demo.stage import DemoHeld, Stage, manifest
from sandbox.picture import look

BURST: Final = 20
NAME_WIDTH: Final = 18


def fraction(stage: Stage, paper: DemoOutput) -> None:
    """The smallest pod."""
    held = _run(stage, paper, "1-nginx")
    paper.check(
        [(h.cores, h.memory) for h in held] == [(30, 5 * GIB)],
        "nginx has 30 cores and 5 GiB of one card",
    )


def pair(stage: Stage, paper: DemoOutput) -> None:
    """Two containers."""
    held = _run(stage, paper, "2-pair")
    shares = {h.container: (h.cores, h.memory) for h in held}
    paper.check(
        len(held) == 2 and shares == {"model": (40, 8 * GIB), "embed": (20, 2 * GIB)},
        "each container has exactly what it asked for",
    )


def prepare(stage: Stage, paper: DemoOutput) -> None:
    """An init container."""
    held = _run(stage, paper, "3-prepare")
    rows = stage.pod("prepare")["status"]["initContainerStatuses"]
    code = rows[0]["state"].get("terminated", {}).get("exitCode")
    paper.line(f"fetch wrote: {stage.log('prepare', 'fetch')}, exit code {code}", "dim")
    booked = stage.sandbox.graph()["cards"]
    cards = {h.card for h in held}
    on = [100 - c["cores_free"] for c in booked if c["index"] in cards]
    others = sum(h.cores for h in stage.held() if h.card in cards and h.pod != "prepare")
    paper.check(
        code == 0 and len(cards) == 1 and on == [50 + others],
        "the card is charged 50 cores for this pod, not 100: the two never run together",
    )


def whole(stage: Stage, paper: DemoOutput) -> None:
    """Two whole cards."""
    held = _run(stage, paper, "4-train")
    cards = sorted({h.card for h in held})
    links = stage.sandbox.graph()["links"]
    joined = links[cards[0]][cards[1]] if len(cards) == 2 else "?"
    paper.check(
        len(cards) == 2 and all(h.cores == CORES_PER_CARD for h in held),
        f"two cards, nobody else on them, joined by {joined}",
    )


def burst(stage: Stage, paper: DemoOutput) -> None:
    """Twenty at once."""
    title, (template,) = manifest("5-burst")
    paper.heading(title)
    pods = []
    for number in range(1, BURST + 1):
        pods.append(copy.deepcopy(template))
        pods[-1]["metadata"]["name"] = f"{template['metadata']['name']}-{number:02}"
    names = stage.apply(pods)
    began = paper.seconds
    stage.settle(names, "Running", "Failed", seconds=20)
    took = paper.seconds - began
    held = stage.held(*names)
    cards = sorted({h.card for h in held})
    spread = ", ".join(f"{sum(h.card == c for h in held)} on card {c}" for c in cards)
    paper.line(f"all decided {took:.1f} s later: {spread}")
    running = [n for n in names if stage.phase(n) == "Running"]
    paper.check(
        len(running) == BURST
        and sorted(h.pod for h in held) == sorted(names)
        and all((h.cores, h.memory) == (20, 4 * GIB) for h in held),
        f"all {BURST} run, each with its own 20 cores and 4 GiB",
    )


def booked(stage: Stage, paper: DemoOutput) -> None:
    """The whole node at one glance."""
    paper.heading("Who has which share of which card, by the agent's own books:")
    picture = look(stage.sandbox)
    paper.picture(picture)
    paper.check(
        all(c.cores <= CORES_PER_CARD and c.memory_booked <= c.memory for c in picture.cards),
        "no card is promised twice: at most 100 cores and its own memory each",
    )


def illegal(stage: Stage, paper: DemoOutput) -> None:
    """What can never be had."""
    reason = _refused(stage, paper, "6-illegal")
    names_it(paper, reason)


def no_room(stage: Stage, paper: DemoOutput) -> None:
    """What cannot be had now."""
    free = free_cores(stage)
    says_what_lacks(paper, free, _refused(stage, paper, "7-no-room"))


def free_cores(stage: Stage) -> Sequence[int]:
    """By card."""
    return [max(0, int(card["cores_free"])) for card in stage.sandbox.graph()["cards"]]


def says_what_lacks(paper: DemoOutput, free: Sequence[int], reason: str) -> None:
    """Whether a refusal for want of room is one, and explains itself."""
    paper.line(f"(free cores by card: {', '.join(map(str, free))}; together {sum(free)})", "dim")
    paper.check(
        sum(free) >= 50 > max(free) and "50" in reason and "card" in reason,
        "the reason says what each card lacks",
    )


def names_it(paper: DemoOutput, reason: str) -> None:
    """Whether the refusal of a card and a half helps."""
    paper.check(
        "150" in reason and "100 or 200" in reason, "the reason names the value and the nearest legal ones"
    )


def _run(stage: Stage, paper: DemoOutput, name: str) -> Sequence[DemoHeld]:
    """Apply, wait until it runs, say who got what."""
    title, objects = manifest(name)
    paper.heading(title)
    names = stage.apply(objects)
    stage.settle(names, "Running")
    held = stage.held(*names)
    for share in held:
        who = share.pod if share.pod == share.container else f"{share.pod}/{share.container}"
        paper.line(f"{who:{NAME_WIDTH}} {share}")
    return held


def _refused(stage: Stage, paper: DemoOutput, name: str) -> str:
    title, objects = manifest(name)
    paper.heading(title)
    names = stage.apply(objects)
    (pod,) = stage.settle(names, "Failed")
    word, sentence = stage.reason(names[0])
    paper.line(f"{pod['metadata']['name']} is {pod['status']['phase']}, {word}:")
    paper.lines(reason_lines(sentence), "yellow")
    paper.check(not stage.held(*names), "it holds nothing")
    return sentence


def reason_lines(message: str) -> list[str]:
    """The agent's sentence without what the kubelet wraps it in, a line for each card."""
    own = message.partition(" desc = ")[2].removesuffix(", which is unexpected") or message
    for mark in (" no card has room", " card 0:", " Would fit now:"):
        own = own.replace(mark, f"\n {mark}", 1)
    return own.replace(" | ", "\n  ").splitlines()


def mebibytes(size: int) -> str:
    """For figures of programs: ``5120 MiB``."""
    return f"{size / MIB:.0f} MiB"
