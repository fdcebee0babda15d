"""The console in a real browser: cards that are not given by the device plugin's shares, and nodes that take no pods."""

from __future__ import annotations

from tests.fakes.browser import NEEDS_A_BROWSER, Page
from tests.fakes.console import card, cluster, holder, node
from tests.fakes.served_console import Served

SHARED = holder(
    "shared", 30, container="shared/gpu", claim="shared", request="gpu", pods=["a", "b"], gone=None
)
UNUSED = holder("kept", 20, container="kept/gpu", claim="kept", request="gpu", pods=[], gone=None)
CLAIMS = {"open": False, "held": "vcuda.tencent.com"}
NODES = cluster(
    node(
        "n1",
        card(0, SHARED, UNUSED, uuid="GPU-claims", **CLAIMS),
        card(1, uuid="GPU-lent", open=False, held="nvidia.com/gpu"),
    ),
    node("n2", card(0, uuid="GPU-c", open=False, reason="its agent is starting or has left")),
)


@NEEDS_A_BROWSER
def test_cards_given_by_claims_are_usable_and_name_the_pods_of_their_claims(
    served: Served, page: Page
) -> None:
    served.show(page, NODES, "node/n1")
    boxes = page.look("[...document.querySelectorAll('article.card')].map((box) => box.innerText)")
    assert "given by ResourceClaims" in boxes[0]
    assert "team-a/a, team-a/b shared/gpu" in boxes[0]
    assert "team-a/kept kept/gpu" in boxes[0]  # nobody has taken the claim: there is no pod to go to
    assert "gone" not in boxes[0]
    assert "given away whole as nvidia.com/gpu" in boxes[1]
    assert "Not usable\n1" in page.text()
    page.click("article.card li a:nth-of-type(2)")
    page.wait("location.hash == '#/pod/team-a/b' && document.querySelector('main td')")
    assert "shared/gpu" in page.text()


@NEEDS_A_BROWSER
def test_a_node_is_said_to_take_no_pods_where_it_takes_none_and_not_where_claims_have_its_cards(
    served: Served, page: Page
) -> None:
    served.show(page, NODES)
    troubles = page.look("[...document.querySelectorAll('.troubles li')].map((one) => one.innerText)")
    assert troubles == ["Node n2 takes no pods\nits agent is starting or has left"]
    cells = page.look(
        "[...document.querySelectorAll('.heat .cell')].map((one) => [one.innerText, one.title])"
    )
    assert cells == [
        ["50", "card 0 of n1, A100, Cores booked 50 %, given by ResourceClaims"],
        ["=", "card 1 of n1, A100, Cores booked 0 %, given away whole"],
        ["\u2013", "card 0 of n2, A100, Cores booked 0 %, takes no pods"],
    ]


@NEEDS_A_BROWSER
def test_a_node_that_is_closed_to_smaller_pods_says_for_whom_and_until_when(
    served: Served, page: Page
) -> None:
    kept = {"pod": "team-a/train-0", "since": "2026-01-01T00:00:00Z", "cards": 8, "left": 57}
    served.show(
        page,
        cluster({**node("n1", card(0)), "kept": kept}, {**node("n2"), "kept": {**kept, "pod": ""}}),
        "node/n2",
    )
    assert "fewer than 8 cards and have no higher priority, for a pod of another namespace." in page.text()
    served.open(page, "node/n1", "document.querySelector('main .state a')")
    assert "or when 57 more pods with cards have left their nodes" in page.text()
    served.show(page, cluster({**node("n1", card(0)), "kept": {**kept, "seconds": 360}}), "node/n1")
    page.wait("document.body.innerText.includes('or when its cards have been free for 6 minutes')")
    page.click("main .state a")
    page.wait("location.hash == '#/pod/team-a/train-0'")
