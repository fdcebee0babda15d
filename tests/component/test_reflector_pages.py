"""Lists in pages and watches that end: what a reflector asks for again, and from where."""

from __future__ import annotations

from threading import Event

import pytest

from gpu_manager.adapters.kube.connection import Unreachable
from gpu_manager.adapters.kube.streams import PAGE_BYTES, Pages
from tests.fakes.paged_api import Watcher, pod, serving_pods, watching
from tests.fakes.waiting import PATIENCE, until


def test_news_is_heard_while_a_list_is_read() -> None:
    """What happens behind the first page is heard before the last page comes, and nothing older after it."""
    with serving_pods(*(pod(f"p-{at:03}") for at in range(450))) as (api, connection):
        watcher, heard, in_time = Watcher(connection), Event(), list[bool]()

        torn = [True]

        def spoil(limit: int) -> bool:  # the first page, whose objects are older than the next try's
            api.version = 100 if torn else 101
            return limit == 20 and bool(torn) and torn.pop()

        api.spoil = spoil

        def before_page(begin: int) -> None:
            if begin == 10:
                api.event("ADDED", pod("news", version=101))
                api.event("DELETED", pod("p-000", version=102))
                api.event("DELETED", pod("p-440", version=103))
                api.event("MODIFIED", pod("p-441", version=104))
                api.line(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"105"}}}\n')
            elif begin > 350:
                in_time.append(heard.wait(PATIENCE))

        def slowly(name: str) -> None:
            if name == "p-441":
                heard.set()
            elif name > "p-020":
                heard.wait(0.005)  # the events may take so long

        api.before_page, watcher.slowly = before_page, slowly
        watcher.reflector.start()
        try:
            until(lambda: "105" in api.watched_from)
            told = {name: [gone for one, gone in watcher.heard if one == name] for name, _ in watcher.heard}
            assert in_time == [True]
            assert told["p-000"] == [False, False, True], "it was in the page that broke off, too"
            assert told["p-440"] == [True]
            assert told["p-441"] == told["news"] == [False]
            assert len(told) == 451
            assert (api.lists, api.watched_from) == (2, ["100", "105"])
        finally:
            watcher.reflector.close()


EXPIRED = b'{"kind":"Status","code":410,"reason":"Expired","message":"too old","metadata":{"continue":"%b"}}'


@pytest.mark.parametrize(("token", "lists"), [(b"20", 1), (b"", 2)])
def test_a_list_that_expires_in_the_middle_goes_on_where_it_may(token: bytes, lists: int) -> None:
    with serving_pods(*(pod(str(at)) for at in range(120))) as (api, connection):
        api.refusals = [(410, EXPIRED % token)]
        with watching(connection) as watcher:
            assert watcher.reflector.wait(PATIENCE)
            assert {name for name, _ in watcher.heard} == {str(at) for at in range(120)}
            assert api.lists == lists
            until(lambda: len(api.watched_from) > lists)
            assert set(api.watched_from) == {"100"}, "as it began, so that no change is missed"


@pytest.mark.parametrize(
    ("status", "lists"),
    [
        (b'{"code":410}', 2),
        (b'{"reason":"Expired"}', 2),
        (b'{"reason":"Gone","code":0,"message":"gone"}', 2),
        (b'{"code":410,"metadata":{},"message":null}', 2),
        (b"{}", 1),
        (b'{"code":true,"reason":7}', 1),
        (b'{"code":500,"message":"storage is (re)initializing"}', 1),
        (b'{"code":"410"}', 1),
    ],
)
def test_a_watch_that_ends_with_an_error_begins_again_with_a_list_where_it_must(
    status: bytes, lists: int
) -> None:
    with serving_pods() as (api, connection), watching(connection) as watcher:
        assert watcher.reflector.wait(PATIENCE)
        api.line(b'{"type":"ERROR","object":' + status + b"}\n")
        until(lambda: len(api.watched_from) == 2)
        api.line(b'{"type":"BOOKMARK","object":{}}\n')
        api.line(b'{"type":"ERROR","object":7}\n{"type":"ADDED","obj')
        api.end_watch()
        until(lambda: len(api.watched_from) == 3)
        api.event("ADDED", pod("b", version=101))
        until(lambda: watcher.heard == [("b", False)])
        assert (api.lists, watcher.reflector.unreadable) == (lists, 1)


@pytest.mark.parametrize(("status", "lists"), [(500, 2), (400, 2), (403, 1), (503, 1)])
def test_a_watch_that_is_always_refused_begins_again_with_a_list_where_that_may_help(
    status: int, lists: int
) -> None:
    with serving_pods() as (api, connection):
        api.of_watches = [status] * 6
        with watching(connection) as watcher:
            until(lambda: len(api.watched_from) == 7)
            api.event("ADDED", pod("b", version=101))
            until(lambda: watcher.heard == [("b", False)])
            assert api.lists == lists


def test_pages_are_asked_for_by_what_their_objects_weigh() -> None:
    large = b'["' + b"x" * (PAGE_BYTES // 20) + b'"]'
    with serving_pods(*(pod(str(at), large) for at in range(200))) as (api, connection):
        found = [obj["metadata"]["name"] for obj in Pages(connection, "list", "/api/v1/pods").read()]
        assert found == [str(at) for at in range(200)]
        assert api.limits == [20, *[19] * 10]


def test_pages_of_small_objects_grow() -> None:
    with serving_pods(*(pod(str(at)) for at in range(1_500))) as (api, connection):
        assert sum(1 for _ in Pages(connection, "list", "/api/v1/pods").read()) == 1_500
        assert api.limits == [20, 81, 325, 500, 500, 500]


def test_a_page_that_breaks_off_is_asked_for_again_at_half_its_size() -> None:
    with serving_pods(*(pod(str(at)) for at in range(300))) as (api, connection):
        api.spoil = lambda limit: limit > 150
        names = {obj["metadata"]["name"] for obj in Pages(connection, "list", "/api/v1/pods").read()}
        assert names == {str(at) for at in range(300)}
        assert api.limits == [20, 81, 325, 162, 81, 102, 128]


def test_a_server_that_answers_no_page_is_an_error_and_the_next_list_begins_smaller() -> None:
    with serving_pods(*(pod(str(at)) for at in range(300))) as (api, connection):
        api.spoil = lambda limit: limit > 3
        pages = Pages(connection, "list pods", "/api/v1/pods")
        with pytest.raises(Unreachable, match="list pods"):
            list(pages.read())
        assert api.limits == [20, 10, 5]
        assert sum(1 for _ in pages.read()) >= 300
