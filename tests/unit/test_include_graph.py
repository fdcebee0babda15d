"""Headers of libvcuda say who depends on whom: a file and its header are one part, and no part needs itself."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "vcuda/lib/src"
INCLUDE = re.compile(r'^#include "([^"]+)\.h"$', re.MULTILINE)


def graph(root: Path) -> dict[str, set[str]]:
    """What each part (``cuda/throttle`` for its .c and its .h) includes of the others."""
    files = [path for path in root.rglob("*") if path.suffix in {".c", ".h"}]
    parts: dict[str, set[str]] = {str(path.relative_to(root).with_suffix("")): set() for path in files}
    for path in files:
        part = str(path.relative_to(root).with_suffix(""))
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            beside = str((path.parent / name).relative_to(root))
            found = next((known for known in (name, beside) if known in parts), part)
            parts[part] |= {found} - {part}
    return parts


def circle(parts: dict[str, set[str]]) -> list[str]:
    """The parts of one circle in order, the first again at the end; empty if there is none."""
    try:
        TopologicalSorter(parts).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_part_of_the_library_depends_on_itself() -> None:
    parts = graph(SOURCES)
    assert len(parts) > 40, "the library's sources have moved"
    assert "page" in parts["cuda/throttle"], "includes are no longer understood"
    assert circle(parts) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "page.c").write_text('#include "page.h"\n#include "cuda/note.h"\n')
    (tmp_path / "page.h").write_text("")
    (tmp_path / "cuda/note.c").write_text('#include "cuda/note.h"\n')
    (tmp_path / "cuda/note.h").write_text('#include "page.h"\n')
    assert sorted(set(circle(graph(tmp_path)))) == ["cuda/note", "page"]
