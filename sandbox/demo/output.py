"""Where the demo writes, and where it keeps what did not hold."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from gpu_manager.domain.errors import printable
from sandbox.picture import Picture
from sandbox.table import card_line, cards_table

_WIDTH = 110  # where the output is no terminal


class DemoOutput:
    """Headings, lines and checks; with colours on a terminal alone."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _WIDTH
        self._began = time.monotonic()
        self._chapters = 0
        self.held = 0
        self.failed: list[str] = []

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def heading(self, text: str) -> None:
        """A numbered chapter."""
        self._chapters += 1
        self._console.print()
        self._print(f"{self._chapters}. {text}", "bold")

    def line(self, text: str, style: str = "") -> None:
        """A line of text, whatever it holds; long ones are not wrapped by us."""
        self._print(f"   {text}", style)

    def lines(self, texts: Iterable[str], style: str = "") -> None:
        """Some."""
        for text in texts:
            self.line(text, style)

    def picture(self, picture: Picture) -> None:
        """The cards and their holders: a table on a terminal, else a line each."""
        if self._console.is_terminal:
            self._console.print(cards_table(picture))
        else:
            self.lines(card_line(card) for card in picture.cards)

    def check(self, holds: bool, what: str) -> None:  # noqa: FBT001  # the question and its answer
        """State what is so; it is remembered if it is not."""
        if holds:
            self.held += 1
            self._print(f"   ok  {what}", "green")
        else:
            self.failed.append(what)
            self._print(f"   NOT SO  {what}", "bold red")

    def _print(self, text: str, style: str) -> None:
        shown = "\n".join(printable(line) for line in text.splitlines())
        self._console.print(Text(shown, style=style), soft_wrap=True)
        self._console.file.flush()
