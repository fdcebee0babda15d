"""What people need of the console: axe finds nothing in any view, and five tasks take three clicks or keys each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files

import pytest

from tests.fakes.browser import NEEDS_A_BROWSER, Page, browsing
from tests.fakes.console import QUOTA, cluster, console, nodes, waiting
from tests.fakes.served_console import SHOWN

DATA = cluster(*nodes(8, 8, 100), waiting=waiting(16), quota=QUOTA, silent=["gpu-node-0003"])
GO = """new Promise((drawn) => {
  addEventListener("hashchange", () => requestAnimationFrame(() => drawn()), { once: true });
  location.hash = %s; })"""
VIEWS = {
    "overview": "document.querySelector('.heat .cell')",
    "overview?by=health": "document.querySelector('.heat .cell')",
    "waiting": "document.querySelector('main table')",
    "quota": "document.querySelector('main table')",
    "node/gpu-node-0000": "document.querySelector('.card .bar')",
    "card/GPU-00005": "document.querySelector('[aria-label=\"Health events\"] td')",
    "pod/team-b/job-0": "document.querySelector('.outcomes')",
    "pod/team-a/job-0-0": "document.querySelector('[aria-label=\"Advised size\"] td')",
    "find?q=gpu": "document.querySelector('.found')",
    "what-if": "document.getElementById('manifest')",
    "waste": "document.querySelector('main table')",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with console(DATA) as address:
        yield address


@NEEDS_A_BROWSER
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    page: Page, url: str, width: int, dark: bool
) -> None:
    axe = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
    page.show_as(width=width, dark=dark)
    faults = []
    page.open("about:blank", "true")
    page.open(f"{url}/ui", SHOWN)
    page.look(f"{axe}; undefined")
    for view, ready in VIEWS.items():
        page.look(GO % json.dumps(f"#/{view}"))
        page.wait(ready)
        faults += page.look(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes[0].html, v.nodes[0].failureSummary]))"
        )
        if page.look("document.documentElement.scrollWidth > innerWidth"):
            faults.append([view, "wider than the screen"])
    assert faults == [], json.dumps(faults, indent=1)


@NEEDS_A_BROWSER
def test_five_tasks_take_three_clicks_or_keys_each_from_the_overview(page: Page, url: str) -> None:
    page.show_as(width=1400, dark=False)

    def start() -> None:
        page.open("about:blank", "true")
        page.open(f"{url}/ui", SHOWN)

    start()  # which card is sick, and why: said at once, one click leads to the card
    assert "Card 5 of gpu-node-0000 is unhealthy" in page.text()
    assert "XID 79: the card is lost" in page.text()
    page.click(".troubles .unhealthy a")
    page.wait("document.querySelector('.state')?.innerText == 'unhealthy: XID 79: the card is lost'")
    page.wait("document.querySelector('[aria-label=\"Health events\"] td')")
    for said in (
        "closed: XID 79: the card is lost",
        "XID 79: the card is closed for it",
        "XID 31, of a program",
    ):
        assert said in page.text()

    start()  # why a pod waits, and what would let it run
    page.key("2")
    page.wait("document.querySelector('main h1').innerText == 'Waiting'")
    page.click("main td a")
    page.wait("document.querySelector('.line')")
    assert "8 have no room now" in page.text()
    assert "Smallest change that helps: ask 50 cores" in page.text()
    page.wait("document.querySelector('[aria-label=\"Events\"] td')")
    assert "FailedScheduling: 0/8 nodes are available: 8 have no card" in page.text()

    start()  # who wastes most now, and this hour
    assert "Most cores booked and idle now" in page.text()
    page.click("[aria-labelledby=waste-title] li a")
    page.wait("document.querySelector('main h1').innerText.startsWith('Pod team-a/job-')")
    start()
    page.key("5")
    page.wait("document.querySelector('main td')")
    assert "in the last hour" in page.text()
    assert page.look(
        "[...document.querySelectorAll('main tbody tr')].map((e) => e.innerText.replace(/\\s+/g, ' '))"
    ) == [
        "team-a/job-0-0 0.25 0.3 17 %",
        "team-a/job-9-0 < 0.01 \u2013 \u2013",
    ]
    page.click("main td a")
    page.wait("document.querySelector('main h1').innerText == 'Pod team-a/job-0-0'")
    page.wait("document.querySelector('[aria-label=\"Advised size\"] td')")
    assert "20 while it works it would use up to 20 cores" in " ".join(page.text().split())

    start()  # which node to drain first, and what is on it
    page.click("[aria-labelledby=drain-title] li a")
    page.wait("document.querySelector('main h1').innerText.startsWith('Node gpu-node-')")

    start()  # what happens if a file is applied
    page.key("4")
    page.wait("document.getElementById('manifest')")
    page.look("document.getElementById('manifest').focus()")  # one click
    page.type("kind: Pod")
    page.click(".what-if button")
    page.wait("document.querySelector('.workload')")
    assert "would have room without: a/b" in page.text()


@NEEDS_A_BROWSER
def test_the_console_asks_no_other_host(page: Page, url: str) -> None:
    page.open("about:blank", "true")
    page.requested.clear()
    page.open(f"{url}/ui", SHOWN)
    asked = [one for one in page.requested if not one.startswith(("about:", "data:"))]
    assert asked
    assert [one for one in asked if not one.startswith(url)] == []
    assert page.complaints == []
