"""What people need of the console: axe finds nothing in any view, and five tasks take three clicks or keys each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from importlib.resources import files

import pytest

from gpu_manager import ui
from tests.fakes.browser import NEEDS_A_BROWSER, Page, browsing
from tests.fakes.console import QUOTA, TRENDS, cluster, console, nodes, past, waiting
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


SENTENCES = [
    (
        'waits: of 3 nodes, 1 has no room now, 1 keeps it off ("n1" has the taint "a=b:NoSchedule", '
        "which the pod does not tolerate), 1 could not hold it even if empty. Smallest change: ask "
        '10 cores, 256 MiB instead of 30 cores, 1 GiB for "main" (then node n2 takes it)'
    ),
    (
        "waits, but not for cards: there is room now on 1 of 2 nodes: on n2 it would get whole cards "
        '0, 1. Its scheduler "mine" has not placed it yet: its Events say what else it needs (CPU, '
        "host memory, a taint, an affinity, a volume); if there are none, no such scheduler runs"
    ),
    (
        'container "main": 4 whole cards asked, 3 of 4 idle and open: card 0: not idle, 0 cores, '
        '14.75 GiB free | cards 1, 2, 3: idle. Would fit now: whole cards 1, 2, 3 for "main"'
    ),
    (
        'held by the quota of its namespace: ExceedsGPUQuota: namespace "a": 1.5 cards of T4, 1 used '
        "or being bound, 0.8 asked: 0.5 would still fit. What helps: let the quota grow"
    ),
    (
        'held by the scheduling gate "kueue.x-k8s.io/admission": no scheduler looks at it. What '
        "helps: wait until who set it takes it off"
    ),
    (
        'never runs: container "main": tencent.com/vcuda-core is 150: use 1 to 100 for a part of one '
        "card, or a multiple of 100 for whole cards (100 or 200)"
    ),
    (
        "bound to node n1: 30 cores, 1 GiB of card 3. Priority protected: 1 best-effort tenant "
        "beside it waits for it"
    ),
    "it took at most 3 GiB so far, watched for 3 hours: a smaller size is advised after 2 days",
    'the agent of node "n1" does not tell of health: it is an older one',
]
WORDS_LEFT = '(text) => text.replace(/"[^"]*"/g, \'\').match(/\\b[a-z]{2,} [a-z]{2,}/g) || []'
HOSTILE = ["; ".join(["waits: of "] * 300), '("' * 400, ", 1 has no room now (" * 60, "ask " * 500]


@NEEDS_A_BROWSER
def test_the_services_sentences_are_chinese_but_for_names(page: Page, url: str) -> None:
    page.open(f"{url}/ui", SHOWN)
    told = page.look(
        f"""(async () => {{
          const [{{ speak }}, {{ local }}] = [await import("./ui/words.js"), await import("./ui/sentences.js")];
          const texts = {json.dumps(SENTENCES)};
          const english = texts.map(local);
          speak("zh");
          {json.dumps(HOSTILE)}.forEach(local);
          const found = [english, texts.map(local)];
          speak("en");
          return found; }})()"""
    )
    english, chinese = told
    assert english == SENTENCES
    left = page.look(f"{json.dumps(chinese)}.map({WORDS_LEFT})")
    assert left == [[]] * len(SENTENCES), chinese
    for words in (
        "其中 1 个现在没有空间",
        "最小改动",
        '"main" 用 10 算力、256 MiB 代替 30 算力、1 GiB',
        "节点 n2",
    ):
        assert words in chinese[0]


# What the server answers at the first look, while it asks the agents what they remember.
NOTHING_YET = """
const asked = new Set();
const answered = Response.prototype.json;
Response.prototype.json = async function () {
  const answer = await answered.call(this);
  const first = !asked.has(this.url) && asked.add(this.url);
  if (first && this.url.includes("/ui/trends")) answer.cards = {};
  if (first && this.url.includes("/ui/history")) answer.series = [];
  return answer;
};
"""


@NEEDS_A_BROWSER
def test_history_that_is_not_there_at_the_first_look_is_asked_for_again_at_once(page: Page, url: str) -> None:
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTHING_YET)
    try:
        page.open("about:blank", "true")
        page.open(f"{url}/ui", "document.querySelector('.heat')")
        page.wait("performance.now() > 15000 || document.querySelector('.heat .spark')")
        page.wait("performance.now() > 15000 || document.querySelector('.capacity .spark')")
        seen = page.look("performance.now()")
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert seen < 15_000, "not only after half a minute"


@NEEDS_A_BROWSER
def test_the_first_view_of_64_cards_with_its_history_takes_four_questions_and_few_bytes(
    page: Page, url: str
) -> None:
    page.open("about:blank", "true")
    page.requested.clear()
    page.open(f"{url}/ui", "document.querySelector('.charts path') && document.querySelector('.heat .spark')")
    asked = [one.removeprefix(f"{url}/") for one in page.requested if one.startswith(url)]
    files = {path.removeprefix("/") for path in ui.PATHS}
    questions = [one for one in asked if one not in files]
    assert sorted({one.partition("?")[0] for one in questions}) == ["ui/data", "ui/history", "ui/trends"]
    assert len(questions) <= 4, "the cluster, its last minutes and its last hour, the cards' trends"
    assert sorted(one for one in asked if one in files) == sorted(files), "each file once"
    sent = [found[1] for path in ui.PATHS if (found := ui.asset(path, zipped=True))]
    answers = [json.dumps(answer).encode() for answer in (DATA, past("a", "b"), past("a"), TRENDS)]
    assert sum(map(len, sent)) + sum(len(gzip.compress(body)) for body in answers) <= 80 * 1024
