"""The live table of a sandbox: redrawn in place on a terminal, printed anew on each change elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_manager.domain.errors import printable
from gpu_manager.domain.resources import format_bytes
from sandbox.picture import CardRow, Picture, PodRow

SECONDS: Final = 0.5
PLAIN_SECONDS: Final = 2.0  # between two prints where nothing can be redrawn
_MOST_PODS: Final = 40
_PHASES: Final = {"Running": "green", "Succeeded": "dim", "Failed": "red", "Pending": "yellow"}


def show(look: Callable[[], Picture], stop: threading.Event, console: Console, heading: str) -> None:
    """Show until ``stop`` is set."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            while True:
                live.update(draw(look(), heading))
                if stop.wait(SECONDS):
                    return
    console.print(printable_lines(heading), markup=False, highlight=False, soft_wrap=True)
    seen: list[str] = []
    while True:
        lines = list(plain(look()))
        if lines != seen:
            stamp = time.strftime("%H:%M:%S")
            text = "\n".join([f"--- {stamp}", *lines])
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            console.file.flush()
            seen = lines
        if stop.wait(PLAIN_SECONDS):
            return


def draw(picture: Picture, heading: str = "") -> RenderableType:
    """The table for a terminal. Names come from tenants: they are text, never markup."""
    parts: list[RenderableType] = [Text(heading), cards_table(picture)] if heading else [cards_table(picture)]
    if picture.agent:
        parts.append(Text(printable(picture.agent), style="red"))
    if picture.pods:
        parts.append(pods_table(picture.pods))
    return Group(*parts)


def cards_table(picture: Picture) -> Table:
    """Cards with who holds what of them."""
    table = Table(show_edge=False, pad_edge=False, expand=False)
    table.add_column("card", justify="right")
    table.add_column("cores", justify="right")
    table.add_column("", width=10)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("who holds it: cores, memory")
    for card in picture.cards:
        who = Text("\n".join(printable(w) for w in card.who))
        if card.state:
            who = Text(printable(card.state), style="red") if not card.who else who.append(f"\n{card.state}")
        colour = "red" if card.state else "green"
        table.add_row(
            str(card.index),
            str(card.cores),
            Bar(100, 0, card.cores, width=10, color=colour),
            f"{_gib(card.memory_booked)} of {format_bytes(card.memory)}",
            who,
        )
    return table


def pods_table(pods: tuple[PodRow, ...]) -> Table:
    """Pods with what explains their state; those that run well last, and not all of very many."""
    table = Table(show_edge=False, pad_edge=False)
    for title in ("pod", "phase", "restarts", "reason"):
        table.add_column(title, no_wrap=title != "reason")
    order = {"Failed": 0, "Pending": 1, "Running": 2, "Succeeded": 3}
    rows = sorted(pods, key=lambda p: (order.get(p.phase, 0), p.key))
    for pod in rows[:_MOST_PODS]:
        reason = ": ".join(filter(None, (pod.reason, pod.message)))
        table.add_row(
            Text(printable(pod.key)),
            Text(pod.phase, style=_PHASES.get(pod.phase, "")),
            str(pod.restarts or ""),
            Text(printable(reason)),
        )
    if len(rows) > _MOST_PODS:
        table.add_row(f"and {len(rows) - _MOST_PODS} more", "", "", "")
    return table


def plain(picture: Picture) -> Iterator[str]:
    """The same as lines."""
    if picture.agent:
        yield printable(picture.agent)
    for card in picture.cards:
        yield card_line(card)
    for pod in picture.pods:
        reason = ": ".join(filter(None, (pod.reason, pod.message)))
        restarts = f", {pod.restarts} restarts" if pod.restarts else ""
        yield printable(f"pod {pod.key}: {pod.phase}{restarts}{f', {reason}' if reason else ''}")


def card_line(card: CardRow) -> str:
    """One card in one line."""
    state = f" [{card.state}]" if card.state else ""
    memory = f"{_gib(card.memory_booked)} of {format_bytes(card.memory)}"
    who = "; ".join(card.who) or "free"
    return printable(f"card {card.index}{state}: {card.cores:3} cores, {memory}: {who}")


def printable_lines(text: str) -> str:
    """``text`` made harmless line by line."""
    return "\n".join(printable(line) for line in text.splitlines())


def _gib(size: int) -> str:
    return "0" if size == 0 else format_bytes(size)
