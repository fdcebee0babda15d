"""The console in a real browser: how long until it is seen, and how long an update takes to be drawn."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.console_cost import cost_row
from bench.rows import Row
from tests.fakes.browser import CHROMIUM, browsing
from tests.fakes.console import QUOTA, Obj, cluster, console, nodes, waiting

# Milliseconds from the text of an answer to the end of the frame that shows it, and from the opening.
WATCH = """
window.drawn = {};
Response.prototype.json = async function () {
  const text = await this.text();
  const begun = performance.now();
  const page = new URL(this.url);
  const kind = page.searchParams.get("since") ? "update" : page.pathname.split("/").pop();
  const note = () => { window.drawn[kind] ??= [performance.now() - begun, performance.now()]; };
  requestAnimationFrame(() => setTimeout(note));
  return JSON.parse(text);
};
"""
# The answers of the first view: what is, each card's last ten minutes, the cluster's; and the first change.
ALL = '["data", "trends", "history", "update"]'
# Name → nodes, pods, nodes in one update (an agent is asked every 5 s, at most 20 a second), bars in ms.
SIZES = {"": (8, 300, 8, "≤ 50", "≤ 500"), "_1000_nodes": (1000, 10_000, 40, "≤ 100", "≤ 1500")}
CARDS = 8
PARTS = ("browser", "cost")


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """What the browser takes, and what the service does."""
    if only in ("", "browser"):
        yield from browser_rows(full=full)
    if only in ("", "cost"):
        yield cost_row(full=full)


def browser_rows(*, full: bool) -> Iterator[Row]:
    """Two rows for each size of cluster, each the least of some openings."""
    openings = 9 if full else 5
    for suffix, (count, pods, changed, update_bar, view_bar) in SIZES.items():
        size = f"{count * CARDS} cards, {pods} pods"
        if CHROMIUM is None:
            note = "no chromium on this machine"
            yield Row(f"page_first_view_ms{suffix}", None, "ms", view_bar, full=full, note=note)
            yield Row(f"page_update_ms{suffix}", None, "ms", update_bar, full=full, note=note)
            continue
        seen = measured(answers(count, pods, changed), openings)
        first, update = min(v for v, _ in seen), min(u for _, u in seen)
        note = f"{size}; until trends and history are seen too, the least of {openings}"
        yield Row(f"page_first_view_ms{suffix}", round(first), "ms", view_bar, full=full, note=note)
        note = f"{size}, {changed} nodes changed; from the answer to its frame, the least of {openings}"
        yield Row(f"page_update_ms{suffix}", round(update, 1), "ms", update_bar, full=full, note=note)


def answers(count: int, pods: int, changed: int) -> tuple[Obj, Obj]:
    """The whole cluster, and an update after which so many nodes use something else."""
    late = waiting(200 if count > 100 else 50)
    first = cluster(*nodes(count, CARDS, pods), waiting=late, quota=QUOTA)
    again = nodes(count, CARDS, pods, seed=2)[:changed]
    return first, cluster(*again, waiting=late, quota=QUOTA, generation="x-2", full=False)


def measured(data: tuple[Obj, Obj], openings: int) -> list[tuple[float, float]]:
    """Milliseconds to the first view and of one update, for each opening in a browser that runs already."""
    found = []
    # Helpers of the browser may outlive it by a moment, and write.
    place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as name, console(*data) as url, browsing(Path(name)) as page:
        page.show_as(width=1400, dark=False)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        for _ in range(openings):
            page.open("about:blank", "true")
            page.open(f"{url}/ui", f"window.drawn && {ALL}.every((kind) => window.drawn[kind])")
            *seen, (update, _) = page.look(f"{ALL}.map((kind) => window.drawn[kind])")
            found.append((max(float(at) for _, at in seen), float(update)))
    return found
