"""The console in a real browser: what it shows, what a hostile name does to it, how it says that figures are old."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from gpu_manager import ui
from tests.fakes.browser import NEEDS_A_BROWSER, Page
from tests.fakes.console import GIB, card, cluster, holder, node, past, row
from tests.fakes.served_console import EVIL, SHOWN, Served
from tests.fakes.waiting import until

FOLDER = Path(ui.__file__).parent
USED = holder("notebook", 30, core_used=0.21, memory_used=2 * GIB)
TWO_NODES = cluster(
    node("n1", card(0, USED), card(1, healthy=False, open=False, reason="XID 79", uuid="GPU-sick")),
    node("n2", card(0, cordoned=True, uuid="GPU-c"), card(1, holder("next", 50, planned=True), uuid="GPU-d")),
    waiting=[row("team-b/big"), row("team-b/huge", group="never", change="")],
    quota=[
        {
            "namespace": "team-a",
            "model": "*",
            "cores": 100,
            "cores_used": 130,
            "memory": None,
            "memory_used": 0,
        }
    ],
)


@NEEDS_A_BROWSER
def test_the_overview_says_who_needs_a_person_and_leads_to_the_card_in_one_click(
    served: Served, page: Page
) -> None:
    served.show(page, TWO_NODES)
    text = page.text()
    assert "Card 1 of n1 is unhealthy" in text
    assert "Pod team-b/huge can never run as it is" in text
    page.click(".troubles a")
    page.wait(
        "location.hash == '#/card/GPU-sick' && document.querySelector('main h1').innerText.includes('Card 1')"
    )
    assert "unhealthy: XID 79" in page.text()
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_each_view_has_an_address_and_says_what_the_cards_hold_and_what_waits(
    served: Served, page: Page
) -> None:
    served.data = TWO_NODES
    served.said = {
        "pod": "x",
        "line": "waits: of 2 nodes, 2 have no room",
        "change": "",
        "nodes": [],
        "quota": [],
    }
    served.open(page, "node/n1")
    assert "21 of 30 cores, 2 GiB of 5 GiB" in page.text()
    served.open(page, "node/n2", "document.querySelector('main h1')?.innerText == 'Node n2'")
    assert "cordoned: nothing new is placed here" in page.text()
    assert "team-a/next main (not started yet)" in page.text()
    served.open(page, "waiting", "document.querySelector('main h1')?.innerText == 'Waiting'")
    assert re.search(r"No room now \(1\).*team-b/big.*ask 50 cores", page.text(), re.DOTALL)
    served.open(page, "quota", "document.querySelector('main h1')?.innerText == 'Quota'")
    assert "1.3 of 1 over the quota" in page.text()
    growing = {
        "spec": {"cores": 30, "memory": 5 * GIB},
        "wanted": {"cores": 90, "memory": 5 * GIB},
        "held": {"cores": 30, "memory": 5 * GIB},
        "stage": "refused",
        "why": "the card has 20 cores free",
    }
    served.data = cluster(
        node("n1", card(0, holder("train", 30, resize=growing, refusals=3))), generation="x-9"
    )
    served.open(page, "card/GPU-0", "document.querySelector('[aria-label=\"Who holds it\"] td')")
    page.wait(
        "document.body.innerText.includes('asks for 90 cores, 5 GiB, refused: the card has 20 cores free')"
    )
    served.open(page, "pod/team-a/train", "document.querySelector('[aria-label=\"What it holds\"] td')")
    assert "asks for 90 cores, 5 GiB, refused" in page.text()
    assert "3 times" in page.text()
    served.data = TWO_NODES
    page.open("about:blank", "true")
    served.open(page, "pod/team-b/big", "document.querySelector('.line')")
    assert "waits: of 2 nodes, 2 have no room" in page.text()
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_a_divided_card_has_no_shares_of_its_own_and_leads_to_its_instances(
    served: Served, page: Page
) -> None:
    whole = {"mig": True, "open": False, "cores_free": 0, "memory": 0, "memory_free": 0}
    part = card(100, holder("notebook", 30), uuid="MIG-a", parent="GPU-0")
    served.data = cluster(
        node("n1", card(0, **whole), card(1, uuid="GPU-1", **whole), part, card(2, uuid="GPU-2"))
    )
    served.open(page, "node/n1", "document.querySelector('main h1')?.innerText == 'Node n1'")
    text = page.text()
    assert "divided into MIG instances, no share of the card itself: 100" in text
    assert "in MIG mode: no share of the card itself, and its instances are not given here" in text
    assert "30 of 300" in text, (
        "three cards count: an instance, a card, and one whose instances are not given"
    )
    page.click(".state a")
    page.wait("location.hash == '#/card/MIG-a'")
    assert re.search(r"MIG instance of\s+Card 0", page.text())
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_what_others_wrote_stays_text_in_every_view(served: Served, page: Page) -> None:
    served.data = cluster(
        node(EVIL, card(0, holder(EVIL, 10), model=EVIL, healthy=False, reason=EVIL, uuid=EVIL)),
        waiting=[row(f"team-a/{EVIL}", asks=EVIL, why=EVIL, change=EVIL)],
        quota=[
            {"namespace": EVIL, "model": EVIL, "cores": 1, "cores_used": 1, "memory": None, "memory_used": 0}
        ],
    )
    outcome = {"node": EVIL, "outcome": EVIL, "line": EVIL, "victims": [EVIL]}
    served.said = {"pod": EVIL, "line": EVIL, "change": EVIL, "nodes": [outcome], "quota": [EVIL]}
    seen = 0
    quoted = "encodeURIComponent(" + json.dumps(EVIL) + ")"
    for address in ("", "waiting", "quota", "node/", "card/", "pod/team-a/", "find?q="):
        page.open("about:blank", "true")
        full = json.dumps(f"{served.url}/ui#/{address}") + (
            f" + {quoted}" if address[-1:] in ("/", "=") else ""
        )
        page.open(page.look(full), SHOWN)
        if address.startswith("card"):
            page.wait("document.querySelector('[aria-label=\"Health events\"] td')")
        if address.startswith("pod"):
            page.wait("document.querySelector('.outcomes')")
            page.wait("document.querySelector('[aria-label=\"Advised size\"] td')")
            page.wait("document.querySelector('[aria-label=\"Events\"] td')")
        assert page.look("document.querySelectorAll('img').length") == 0, address
        seen += page.text().count("<img src=x")
    assert seen > 20
    assert page.look("document.title").startswith("gpu-manager")
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_a_server_that_accepts_and_says_nothing_is_not_called_live(served: Served, page: Page) -> None:
    served.data = cluster(node("n1", card(0)))
    hasty = "const wait = AbortSignal.timeout; AbortSignal.timeout = () => wait.call(AbortSignal, 300);"
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source=hasty)["identifier"]
    served.open(page)
    served.silent = True
    page.wait("document.getElementById('status').className == 'bad'")
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert "Not live, these figures are out of date: no answer within 5 seconds" in page.text()
    assert page.look("document.querySelectorAll('.heat .cell').length") == 1, "the last ones are shown"
    assert page.complaints == []


@NEEDS_A_BROWSER
@pytest.mark.parametrize(("age", "said"), [(0.0, "Live, refreshed"), (41.0, "Not live: the API server")])
def test_a_cluster_that_the_api_server_tells_nothing_of_is_not_called_live(
    served: Served, page: Page, age: float, said: str
) -> None:
    served.show(page, cluster(node("n1", card(0)), age=age))
    assert said in page.text()
    shown = re.search(r"Figures of (\d+) s ago", page.text())
    assert shown
    assert int(shown[1]) >= int(age)


@NEEDS_A_BROWSER
@pytest.mark.parametrize(("age", "said"), [(0.4, "Live, refreshed"), (41.0, "Not live: the agent answers")])
def test_the_age_of_the_figures_is_shown_and_old_ones_are_not_called_live(
    served: Served, page: Page, age: float, said: str
) -> None:
    served.show(page, {"nodes": [node("n1", card(0))], "waiting": None, "age": age})
    assert said in page.text()
    shown = re.search(r"Figures of (\d+) s ago", page.text())
    assert shown
    assert int(shown[1]) >= int(age)
    assert "Waiting" not in page.text(), "an agent knows no pod that waits"


@NEEDS_A_BROWSER
def test_text_that_is_selected_stays_selected_and_focus_stays_while_figures_go_on(
    served: Served, page: Page
) -> None:
    served.show(page, TWO_NODES, "node/n1")
    page.look("getSelection().selectAllChildren(document.querySelector('.card .facts'))")
    page.look("document.querySelector('.card h2 a').focus()")
    before = len(served.asked)
    changed = holder("notebook", 30, core_used=0.29, memory_used=3 * GIB)
    served.data = {**TWO_NODES, "nodes": [node("n1", card(0, changed)), *TWO_NODES["nodes"][1:]]}
    page.wait("document.body.innerText.includes('29 of 30 cores')")
    assert len(served.asked) > before
    assert page.look("String(getSelection())") == "A100 GPU-0copy"
    assert page.look("document.activeElement.innerText") == "Card 0"


@NEEDS_A_BROWSER
def test_a_later_answer_holds_only_what_changed(served: Served, page: Page) -> None:
    served.show(page, TWO_NODES)
    change = {"generation": "x-2", "full": False, "gone": ["n2"]}
    served.data = cluster(node("n3", card(0, uuid="GPU-new")), **change)
    page.wait("[...document.querySelectorAll('.heat .name')].map((e) => e.innerText).join() == 'n1,n3'")
    assert {"since": ["x-1"]} in served.asked
    served.data = cluster(generation="x-3", full=False)
    page.wait("!document.body.innerText.includes('can never run')")
    assert page.look("document.querySelectorAll('.heat .name').length") == 2


@NEEDS_A_BROWSER
def test_without_the_right_to_see_the_console_asks_for_a_token_and_a_namespace(
    served: Served, page: Page
) -> None:
    served.token = "sesame"
    served.show(page, TWO_NODES, ready="document.querySelector('form.login')")
    assert "Nothing is shown to strangers: a token says who you are." in page.text(), "nobody is scolded yet"
    assert page.look("document.activeElement.name") == "token"
    page.look("document.querySelector('[name=namespace]').focus()")
    page.type("team-a")
    page.look("document.querySelector('[name=token]').focus()")
    page.type("sesame")
    refused = len(served.asked)
    again = "document.dispatchEvent(new Event('visibilitychange'))"
    until(lambda: page.look(again) and len(served.asked) > refused + 1)  # the form is drawn again meanwhile
    page.key("Enter")
    page.wait(SHOWN)
    assert served.asked[-1]["namespace"] == ["team-a"]
    assert page.look("location.hash") == "#/overview?namespace=team-a"
    assert page.look("document.querySelector('nav a:nth-child(2)').hash") == "#/waiting?namespace=team-a"
    assert page.look("document.querySelector('form.login')") is None


@NEEDS_A_BROWSER
def test_a_card_shows_who_used_it_when_and_a_gap_where_nothing_answered(served: Served, page: Page) -> None:
    served.data = {**TWO_NODES, "namespace": "team-a"}
    served.past = past("notebook", EVIL, left_out=2)
    served.open(page, "card/GPU-0?namespace=team-a", "document.querySelector('.lines li')")
    assert served.remembered[0] == {
        "subject": ["card"],
        "name": ["GPU-0"],
        "span": ["10m"],
        "namespace": ["team-a"],
    }
    text = page.text()
    assert "team-a/notebook main" in text
    assert EVIL in text
    assert "and 2 more" in text
    assert "Waiting for their share" in text
    lines = page.look("[...document.querySelectorAll('.plot path')].map((e) => e.getAttribute('d'))")
    assert [line.count("M") for line in lines] == [2] * 6, "two lines in each chart, each broken once"
    served.past = past("hourly")
    # A page that is drawn anew between a look and the click may move the link away: a person clicks again.
    until(lambda: "range=1h" in page.look("location.hash") or page.click(".history .switch a:nth-of-type(2)"))
    page.wait("document.querySelector('.lines a')?.innerText == 'team-a/hourly main'")
    until(lambda: served.remembered[-1]["span"] == ["1h"])  # one for the time before may have come between
    page.click(".lines a")
    page.wait("location.hash == '#/pod/team-a/hourly?namespace=team-a&range=1h'")
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_a_container_that_crashes_is_no_running_one_and_needs_attention(served: Served, page: Page) -> None:
    stuck = holder("crash", 40, stuck="CrashLoopBackOff")
    served.show(page, cluster(node("n1", card(0, stuck))))
    assert "Pod team-a/crash holds cards and does not run: container main, CrashLoopBackOff" in page.text()
    assert "kubectl -n team-a describe pod crash" in page.text()
    page.click(".troubles a")
    page.wait("document.querySelector('main td .bad')")
    assert "running" not in page.look("document.querySelector('main table').innerText")


@NEEDS_A_BROWSER
def test_a_container_has_one_colour_in_bars_and_charts_of_every_page(served: Served, page: Page) -> None:
    names = ["embed", "train", "pair"]
    served.data = cluster(node("n1", card(0, *(holder(name, 20) for name in names))))
    served.past = past(*reversed(names))
    hue = "(one) => one.style.getPropertyValue('--hue')"
    served.open(page, "card/GPU-0", "document.querySelector('.lines li')")
    bars = page.look(f"[...document.querySelectorAll('.bar:not(.thin) .part')].map({hue})")
    lines = page.look(f"[...document.querySelectorAll('.lines li')].map({hue})")
    assert bars == lines[::-1]
    assert len(set(bars)) == 3
    page.look("location.hash = '#/node/n1'")
    page.wait("document.querySelector('.card li')")
    assert page.look(f"[...document.querySelectorAll('.card li')].map({hue})") == bars


@NEEDS_A_BROWSER
def test_a_token_that_is_wrong_is_called_so(served: Served, page: Page) -> None:
    served.token = "sesame"
    served.show(page, TWO_NODES, ready="document.querySelector('form.login')")
    page.look("document.querySelector('[name=token]').focus()")
    page.type("wrong")
    page.key("Enter")
    page.wait("document.body.innerText.includes('This token is not accepted')")


@NEEDS_A_BROWSER
def test_without_figures_the_history_says_why(served: Served, page: Page) -> None:
    served.show(page, TWO_NODES, ready="document.querySelector('.history .none')")
    assert "Nothing is known of that time." in page.text()
    page.click(".history .switch a:nth-of-type(2)")
    page.wait("location.hash.includes('range=1h') && document.body.innerText.includes('Nothing is known of')")


@NEEDS_A_BROWSER
def test_search_finds_everything_and_the_keyboard_reaches_every_card_in_one_stop(
    served: Served, page: Page
) -> None:
    served.show(page, TWO_NODES)
    assert page.look("document.querySelectorAll('.heat [tabindex=\"0\"]').length") == 1
    page.look("document.querySelector('.heat [tabindex=\"0\"]').focus()")
    page.key("ArrowRight")
    assert page.look("document.activeElement.ariaLabel") == "card 1 of n1, A100, Cores booked 0 %, unhealthy"
    page.key("2")
    page.wait("location.hash == '#/waiting'")
    page.key("/")
    page.type("notebook")
    page.wait("document.querySelector('main h1').innerText == 'Search: notebook'")
    page.key("Enter")
    page.wait("location.hash == '#/pod/team-a/notebook'")
    page.wait("document.activeElement.matches('main h1')")


@NEEDS_A_BROWSER
def test_a_field_that_is_written_in_keeps_the_focus_when_the_browser_tells_of_an_address_late(
    served: Served, page: Page
) -> None:
    served.show(page, TWO_NODES)
    page.look("(() => { location.hash = '#/waiting'; document.getElementById('search').focus(); })()")
    page.wait("document.querySelector('main h1').innerText == 'Waiting'")
    assert page.look("document.activeElement.id") == "search"


@NEEDS_A_BROWSER
def test_a_search_before_the_first_figures_waits_for_them(served: Served, page: Page) -> None:
    served.silent = True
    served.open(page, ready="document.getElementById('search')")
    page.key("/")
    page.type("notebook")
    page.key("Enter")
    assert page.look("location.hash") == "#/find?q=notebook"
    assert not page.complaints


@NEEDS_A_BROWSER
def test_a_manifest_is_judged_before_it_is_applied(served: Served, page: Page) -> None:
    served.data = TWO_NODES
    outcome = {
        "node": "n1",
        "outcome": "room",
        "line": "card 0 has 70 cores free",
        "victims": ["team-a/notebook"],
    }
    said = {"line": "waits: no room", "change": "ask 70 cores", "nodes": [outcome], "quota": []}
    served.judged = [
        {"kind": "Deployment", "name": "team-a/web", "copies": 3, "said": said},
        {"kind": "Pod", "name": "team-b/x", "copies": 1, "error": EVIL},
    ]
    served.open(page)
    page.key("4")
    page.wait("document.getElementById('manifest')")
    page.look("document.getElementById('manifest').focus()")
    page.type("kind: Deployment")
    page.click(".what-if button")
    page.wait("document.querySelectorAll('.workload').length == 2")
    text = page.text()
    assert "Deployment team-a/web (3 copies)" in text
    assert "would have room without: team-a/notebook" in text
    assert "ask 70 cores" in text
    assert EVIL in text
    assert page.complaints == []


@NEEDS_A_BROWSER
def test_the_console_speaks_chinese(served: Served, page: Page) -> None:
    served.show(page, TWO_NODES)
    page.click("header button[lang=zh]")
    page.wait(
        "document.documentElement.lang == 'zh-CN' && document.querySelector('main h1').innerText == '总览'"
    )
    page.click("header button[lang=en]")
    page.wait("document.querySelector('main h1').innerText == 'Overview'")


def texts() -> dict[str, str]:
    return {path: found[1].decode() for path in ui.PATHS if (found := ui.asset(path))}


def test_every_sentence_has_a_chinese_one() -> None:
    words = (FOLDER / "words.js").read_text()
    translated = set(re.findall(r'^  ("(?:[^"\\]|\\.)*"):', words, re.MULTILINE))
    scripts = "\n".join(
        text for path, text in texts().items() if "words" not in path and "vendor" not in path
    )
    used = set(re.findall(r'\bt\(("(?:[^"\\]|\\.)*")', scripts))
    assert len(used) > 60
    assert used <= translated, used - translated
    assert not {text for text in translated if text not in scripts}, "translated, but never said"


def test_the_console_is_small_asks_nobody_else_and_brings_no_inline_code() -> None:
    files = texts()
    assert set(files) == set(ui.PATHS)
    loaded = {f"/{path}" for path in re.findall(r'(?:href|src)="(ui/[^"]+)"', files["/ui"])}
    assert loaded == set(ui.PATHS) - {"/ui"}, "all at once, not one after the other"
    zipped = {path: ui.asset(path, zipped=True) for path in ui.PATHS}
    sent = {path: found[1] for path, found in zipped.items() if found}
    assert {path: gzip.decompress(body).decode() for path, body in sent.items()} == files
    assert sum(map(len, sent.values())) <= 80 * 1024
    ours = "".join(text for path, text in files.items() if not path.endswith(("preact.mjs", "htm.module.js")))
    assert not re.search(
        r"https?://|@import|innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|eval\(|new Function", ours
    )
    assert not re.search(r"<script(?! type=\"module\" src)|<style| on[a-z]+=| style=", files["/ui"])


def test_vendored_modules_are_those_of_the_registry() -> None:
    lines = [
        line.split()
        for line in (FOLDER / "vendor" / "vendor.lock").read_text().splitlines()
        if line[0] != "#"
    ]
    there = {path.name for path in (FOLDER / "vendor").iterdir()} - {"vendor.lock"}
    assert {name for name, *_ in lines} == there
    for name, _, integrity, digest in lines:
        assert integrity.startswith("sha512-")
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["ink", "faint", "bad", "warn", "link"])
def test_text_stands_out_from_the_paper_by_wcag_aa_in_light_and_in_dark(name: str) -> None:
    style = texts()["/ui/console.css"]
    inks, papers = (re.findall(rf"--{what}: (#[0-9a-f]{{6}})", style) for what in (name, "paper"))
    assert len(inks) == len(papers) == 2
    for ink, paper in zip(inks, papers, strict=True):
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
