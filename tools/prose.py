"""``python -m tools.prose``: draws texts of the project by a seed, for a reader who has not seen it to mark.

Sixty texts: docstrings of the product, comments of the C headers, help texts of the command lines and
paragraphs of the docs, a quarter each. The reader marks each as plain or not. At least 57 should be plain in
each of three seeds; the others are rewritten.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.size import LIBRARY, ROOT, files

TEXTS: Final = 60
LEAST_LETTERS: Final = 40  # shorter texts have nothing to mark
_COMMENT: Final = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_NO_PARAGRAPH: Final = ("#", "|", "```", "<", "- [", "![", "    ")


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it stands, as ``path:line``."""

    place: str
    words: str


def docstrings(root: Path = ROOT) -> Iterator[Text]:
    """Docstrings of modules, classes and functions whose names are public."""
    for place, _ in files(root):
        if place.endswith(".py"):
            for node in ast.walk(ast.parse((root / place).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    name = getattr(node, "name", "")
                    if (words := ast.get_docstring(node)) and not name.startswith("_"):
                        yield Text(f"{place}:{getattr(node, 'lineno', 1)}", words)


def helps(root: Path = ROOT) -> Iterator[Text]:
    """Help texts of options and arguments."""
    for place, _ in files(root):
        if place.endswith(".py"):
            for node in ast.walk(ast.parse((root / place).read_text(encoding="utf-8"))):
                match node:
                    case ast.keyword(arg="help", value=ast.Constant(value=str(words))):
                        yield Text(f"{place}:{node.value.lineno}", words)


def comments(root: Path = ROOT) -> Iterator[Text]:
    """Comments of the C library's headers."""
    for path in sorted((root / LIBRARY).rglob("*.h")):
        if "test" not in path.relative_to(root / LIBRARY).parts:
            text = path.read_text(encoding="utf-8")
            for found in _COMMENT.finditer(text):
                words = re.sub(r"\s*\n\s*\*? ?", " ", found.group(1)).strip()
                yield Text(
                    f"{path.relative_to(root).as_posix()}:{text.count(chr(10), 0, found.start()) + 1}", words
                )


def paragraphs(root: Path = ROOT) -> Iterator[Text]:
    """Paragraphs and list items of the README and the docs, without tables, headings and code."""
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced and line.strip() and not line.startswith(_NO_PARAGRAPH):
                yield Text(f"{path.relative_to(root).as_posix()}:{number}", line.strip())


SOURCES: Final[tuple[Callable[[], Iterator[Text]], ...]] = (docstrings, comments, helps, paragraphs)


def draw(seed: int, count: int = TEXTS) -> list[Text]:
    """Draw so many texts, as many of each source; a seed draws the same ones from the same tree."""
    dice = random.Random(seed)  # noqa: S311 - no secret: the same texts for a seed
    drawn = [
        text
        for source in SOURCES
        for text in dice.sample(
            [one for one in source() if len(one.words) >= LEAST_LETTERS], count // len(SOURCES)
        )
    ]
    dice.shuffle(drawn)
    return drawn


def main(arguments: list[str] | None = None) -> int:
    """Print the texts, numbered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, help="which texts (default: one drawn now, which is printed)")
    seed = parser.parse_args(arguments).seed
    seed = random.SystemRandom().randrange(1 << 16) if seed is None else seed
    print(f"seed {seed}")
    for number, text in enumerate(draw(seed), 1):
        print(f"\n{number}. {text.place}")
        print(textwrap.indent(text.words, "   "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
