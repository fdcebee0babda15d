"""The console in a real browser: names and texts as long as Kubernetes lets them be, and addresses of nothing."""

from __future__ import annotations

import pytest

from tests.fakes.browser import NEEDS_A_BROWSER, Page
from tests.fakes.console import card, cluster, holder, node, row
from tests.fakes.served_console import Served

NODE = f"{'n' * 63}.{'m' * 63}.{'o' * 63}.example.com"
POD = holder("p" * 253, 30, namespace="t" * 63, container="c" * 63)
QUOTA = {"namespace": "q" * 63, "model": "m" * 200, "cores": 10**9, "cores_used": 10**12}
LONG = cluster(
    node(
        NODE,
        card(0, POD, model="M" * 200, uuid="GPU-long"),
        card(1, healthy=False, open=False, reason="R" * 900),
    ),
    waiting=[row(f"{'a' * 63}/{'b' * 253}", why="w" * 900, change="c" * 900)],
    quota=[{**QUOTA, "memory": None, "memory_used": 10**18}],
)
VIEWS = (
    "overview",
    "waiting",
    "quota",
    f"node/{NODE}",
    "card/GPU-long",
    f"pod/{'t' * 63}/{'p' * 253}",
    "find?q=p",
)


@NEEDS_A_BROWSER
@pytest.mark.parametrize("width", [1200, 380])
def test_no_name_makes_a_page_wider_than_its_window(served: Served, page: Page, width: int) -> None:
    served.data = LONG
    page.show_as(width=width, dark=False)
    for view in VIEWS:
        page.call("Page.navigate", url="about:blank")
        served.open(page, f"{view}")
        assert page.look("document.documentElement.scrollWidth <= innerWidth"), view
    served.open(page, "overview", "document.querySelector('.heat .name')")
    assert page.look("document.querySelector('.heat .name').title") == NODE  # where it is cut off
    assert not page.complaints


@NEEDS_A_BROWSER
def test_an_address_that_names_nothing_says_so(served: Served, page: Page) -> None:
    served.data = cluster()
    for view in ("overview", "waiting", "quota", "node", "card", "pod", "find", "nothing/at/all"):
        page.call("Page.navigate", url="about:blank")
        served.open(page, f"{view}")
        assert "undefined" not in page.text(), view
    assert not page.complaints
