"""The page for people: what a browser makes of it, what a hostile name does to it, what it costs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gpu_manager import ui
from tests.fakes.web import send, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_A_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium (Debian: apt-get install chromium)"
)
GIB = 1 << 30
EVIL = "<img src=x onerror=document.title='broken'>"


def holder(pod: str, cores: int, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "team-a",
        "pod": pod,
        "container": "main",
        "cores": cores,
        "memory": 5 * GIB,
        "planned": False,
        "core_used": None,
        "memory_used": None,
        **more,
    }


def card(index: int, *holders: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "A100",
        "healthy": True,
        "cordoned": False,
        "mig": False,
        "reason": "",
        "cores_free": 100 - sum(h["cores"] for h in holders),
        "memory": 40 * GIB,
        "memory_free": 40 * GIB - sum(h["memory"] for h in holders),
        "holders": list(holders),
        **more,
    }


class Served:
    """The page's files and `data`, on a port of their own."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"nodes": [], "waiting": None}
        self.token = ""
        self.url = ""
        self.script = ""  # runs in the page before its own
        self.asked = 0  # how often for data

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        file = ui.asset(handler.path)
        if handler.path == "/ui" and file is not None:
            file = file[0], file[1].replace(b"<script", b'<script src="ui/test.js" defer></script><script', 1)
        elif handler.path == "/ui/test.js":
            file = "text/javascript", self.script.encode()
        elif file is None:
            self.asked += 1
        kind, body = file or ("application/json", json.dumps(self.data).encode())
        given = handler.headers.get("Authorization", "")
        allowed = file is not None or not self.token or given == f"Bearer {self.token}"
        answer = body if allowed else b"a bearer token is needed\n"
        policy = {"Content_Security_Policy": ui.CONTENT_POLICY}
        send(handler, answer, 200 if allowed else 401, kind=kind, **policy)

    def browse(self, profile: Path, until: str = "--virtual-time-budget=3000") -> tuple[str, str]:
        """The page's text as drawn, and what the browser complains about."""
        assert CHROMIUM is not None
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += [f"--user-data-dir={profile}", "--enable-logging=stderr", until]
        command += ["--dump-dom", f"{self.url}/ui"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        complaints = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        return ran.stdout, "\n".join(complaints)


@pytest.fixture
def served() -> Iterator[Served]:
    running = Served()
    with serving(running.respond) as running.url:
        yield running


@NEEDS_A_BROWSER
def test_a_look_at_the_page_answers_who_uses_which_card_how_much_and_what_waits_for_what(
    served: Served, tmp_path: Path
) -> None:
    used = holder("notebook", 30, core_used=0.21, memory_used=2 * GIB)
    served.data = {
        "nodes": [
            {"node": "n1", "cards": [card(0, used), card(1, healthy=False, reason="XID 79")]},
            {"node": "n2", "cards": [card(0, cordoned=True), card(1, holder("next", 50, planned=True))]},
        ],
        "waiting": [
            {"pod": "team-b/big", "asks": "80 cores, 5 GiB", "why": "card 1 of n2 has 50 cores free"}
        ],
    }
    page, complaints = served.browse(tmp_path)
    assert complaints == ""
    assert "21 of 30 cores, 2 of 5 GiB" in page
    assert "unhealthy: XID 79" in page
    assert "cordoned: nothing new is placed here" in page
    assert "team-a/next main (not started yet)" in page
    assert "card 1 of n2 has 50 cores free" in page
    assert "card 0, A100: 30 of 100 cores and 5 GiB of 40 GiB booked" in page  # for who hears the page
    assert "2 nodes" in page


@NEEDS_A_BROWSER
def test_what_others_wrote_stays_text(served: Served, tmp_path: Path) -> None:
    served.data = {
        "nodes": [
            {"node": EVIL, "cards": [card(0, holder(EVIL, 10), model=EVIL, healthy=False, reason=EVIL)]}
        ],
        "waiting": [{"pod": EVIL, "asks": EVIL, "why": EVIL}],
    }
    page, complaints = served.browse(tmp_path)
    assert complaints == ""
    assert "<img" not in page
    assert page.count("&lt;img src=x") >= 6
    assert "<title>gpu-manager</title>" in page


# In the page, since the browser's virtual time would wait for a real answer that does not come.
SILENT = """
const ask = window.fetch;
let asked = 0;
window.fetch = (url, options) => asked++ ? new Promise((_, fail) => {
  options.signal.addEventListener("abort", () => fail(options.signal.reason));
}) : ask(url, options);
"""


@NEEDS_A_BROWSER
def test_a_server_that_accepts_and_says_nothing_is_not_called_live(served: Served, tmp_path: Path) -> None:
    served.data = {"nodes": [{"node": "n1", "cards": [card(0)]}], "waiting": None, "age": 0.4}
    served.script = SILENT
    page, complaints = served.browse(tmp_path, "--virtual-time-budget=12000")
    assert complaints == ""
    assert "Not live, these figures are out of date: no answer within 5 seconds" in page
    assert re.search(r"Figures of ([7-9]|1[0-9]) s ago", page)
    assert "card 0, A100" in page, "the last ones are shown"


@NEEDS_A_BROWSER
@pytest.mark.parametrize(("age", "said"), [(0.4, "Live, refreshed"), (41.0, "Not live: the agent answers")])
def test_the_age_of_the_figures_is_shown_and_old_ones_are_not_called_live(
    served: Served, tmp_path: Path, age: float, said: str
) -> None:
    served.data = {"nodes": [{"node": "n1", "cards": [card(0)]}], "waiting": None, "age": age}
    page, _ = served.browse(tmp_path)
    assert said in page
    assert re.search(rf"Figures of ({age:.0f}|{age + 1:.0f}) s ago", page)


SELECT = """
setTimeout(() => getSelection().selectAllChildren(document.querySelector(".card .facts")), 1000);
setInterval(() => { document.title = `selected ${getSelection()}`; }, 1000);
"""


@NEEDS_A_BROWSER
def test_a_uuid_that_is_being_copied_stays_selected_while_the_figures_go_on(
    served: Served, tmp_path: Path
) -> None:
    served.data = {"nodes": [{"node": "n1", "cards": [card(0)]}], "waiting": None, "age": 0.4}
    served.script = SELECT
    page, _ = served.browse(tmp_path, "--virtual-time-budget=7500")
    assert "<title>selected A100, GPU-0</title>" in page
    assert served.asked > 2, "figures were asked for meanwhile"
    assert "the cards are held while text is selected" in page


@NEEDS_A_BROWSER
def test_without_the_right_to_see_the_page_asks_for_a_token_and_shows_no_figure(
    served: Served, tmp_path: Path
) -> None:
    served.token = "sesame"
    page, _ = served.browse(tmp_path)
    assert re.search(r'<form id="login">', page)
    assert "Nothing to show: a bearer token is needed" in page


def test_the_page_is_small_asks_nobody_else_and_brings_no_inline_code() -> None:
    files = {path: ui.asset(path) for path in ("/ui", "/ui/page.css", "/ui/page.js")}
    bodies = {path: found[1].decode() for path, found in files.items() if found is not None}
    assert len(bodies) == 3
    assert sum(len(body.encode()) for body in bodies.values()) <= 100 * 1024
    assert not re.search(
        r"https?://|@import|innerHTML|outerHTML|insertAdjacentHTML|eval\(", "".join(bodies.values())
    )
    assert not re.search(r"<script(?! src)|<style| on\w+=| style=", bodies["/ui"])


def test_everything_that_acts_has_a_name_and_can_be_reached_with_the_keyboard() -> None:
    page = ui.asset("/ui")[1].decode()  # type: ignore[index]
    for field in re.findall(r"<input[^>]*>", page):
        before = page[: page.index(field)]
        assert before.rindex("<label>") > before.rfind("</label>"), field
    assert not re.search(r'tabindex="[1-9]', page)
    script = ui.asset("/ui/page.js")[1].decode()  # type: ignore[index]
    assert 'tabindex: "0", "aria-label": label' in script
    for section in re.findall(r'aria-labelledby="([^"]+)"', page):
        assert f'id="{section}"' in page


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["ink", "faint", "bad", "warn"])
def test_text_stands_out_from_the_paper_by_wcag_aa_in_light_and_in_dark(name: str) -> None:
    style = ui.asset("/ui/page.css")[1].decode()  # type: ignore[index]
    inks, papers = (re.findall(rf"--{what}: (#[0-9a-f]{{6}})", style) for what in (name, "paper"))
    assert len(inks) == len(papers) == 2
    for ink, paper in zip(inks, papers, strict=True):
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
