"""Objects as an API server may send them: each is read by itself, whatever its author wrote into it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.kube import objects
from gpu_manager.adapters.kube.objects import ListReader, Unreadable, decode, lines

SPEC = {"containers": [{"name": "c"}]}
# What the field manager of a real API server stores and sends as it was written.
STORED = {
    "deep": b'{"f:a":' * 1_500 + b"{}" + b"}" * 1_500,
    "as deep as the API server goes": b"[" * 9_990 + b"]" * 9_990,
    "deep beside wide": b'{"f:a":' * 1_500 + b"[" + b",".join([b"[]"] * 5_000) + b"]" + b"}" * 1_500,
    "brackets in strings": b'{"f:]}\\"[{":' * 1_500 + b'"\\\\"' + b"}" * 1_500,
    "bytes": b'{"f:\xff\xc3":{}}',
    "a number": b"[" + b"1" * 5_000 + b",-" + b"2" * 5_000 + b"]",
    "a number below": b'{"f:a":' * 1_500 + b"1" * 5_000 + b"}" * 1_500,
    "half a character": b'["\\ud800"]',
}


def pod(name: str, fields: bytes = b"{}") -> bytes:
    head = json.dumps(
        {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": "7"}
    ).encode()
    spec = json.dumps(SPEC).encode()
    return b'{"metadata":%b,"managedFields":[{"fieldsV1":%b}]},"spec":%b}' % (head[:-1], fields, spec)


def pod_list(items: Sequence[bytes]) -> bytes:
    head = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"c"},"items":['
    return head + b",".join(items) + b"]}\n"


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("fields", STORED.values(), ids=list(STORED))
def test_what_an_api_server_stores_is_read(fields: bytes) -> None:
    found = decode(pod("a", fields))
    assert (found["metadata"]["name"], found["spec"]) == ("a", SPEC)


@pytest.mark.parametrize("size", [1, 7, 1_000, 1 << 16])
def test_a_list_is_read_however_it_arrives(size: int) -> None:
    told: list[Unreadable] = []
    text = pod_list([pod(str(at), fields) for at, fields in enumerate(STORED.values())])
    reader = ListReader(pieces(text, size), told.append)
    assert [(item["metadata"]["name"], item["spec"]) for item in reader] == [
        (str(at), SPEC) for at in range(len(STORED))
    ]
    assert reader.head["metadata"] == {"resourceVersion": "12", "continue": "c"}
    assert told == []


def test_an_object_that_nests_deep_and_arrives_in_pieces_costs_time_by_its_size() -> None:
    fields = b"[" + STORED["deep"] + b',"' + b"x" * (2 << 20) + b'"]'
    broken = pod("b", b'["' + b"x" * (2 << 20) + b'" 7]')
    text = pod_list([pod("a", fields), broken, pod("c", fields)])
    began = time.thread_time()
    found = [item["metadata"]["name"] for item in ListReader(pieces(text, 1 << 16), lambda _: None)]
    assert found == ["a", "c"]
    assert time.thread_time() - began < 10  # one that looks at each character for each takes an hour


NAMED = b'"metadata":{"name":"a","namespace":"team","uid":"u-a","resourceVersion":"7"}'
# What no API server of today sends, but a proxy or the next one may.
ODD = {
    "metadata twice": (b'{"metadata":{"name":"b"},%b}' % NAMED, "a"),
    "keys of another case": (b'{"Metadata":{"name":"b"},"METADATA":7,%b}' % NAMED, "a"),
    "half a character": (b'{"metadata":{"name":"\\uD800","x":"\\udc00\\ud800"}}', "\ufffd"),
    "half a character below": (b'{"a":"\\ud800","b":%b,%b}' % (b"[" * 992 + b"]" * 992, NAMED), "a"),
    "a whole character and a backslash": (
        b'{"metadata":{"name":"\\ud83d\\ude00\\\\ud800"}}',
        "\U0001f600\\ud800",
    ),
    "half a key": (b'{"\\uD800":{"\\udfff":[["\\ud800"]]},%b}' % NAMED, "a"),
    "zero escaped": (b'{"metadata":{"name":"a\\u0000"}}', "a\0"),
    "more than a float": (b'{"spec":[1e999,-1e999,1e%b,1.%b],%b}' % (b"9" * 5_000, b"1" * 5_000, NAMED), "a"),
    "digits in a text": (b'{"spec":"%b",%b}' % (b"1" * 5_000, NAMED), "a"),
    "no numbers": (b'{"spec":[NaN,Infinity,-Infinity],%b}' % NAMED, "a"),
    "zero": (b'{"spec":"\0",%b}' % NAMED, None),
    "a byte order mark": (b"\xef\xbb\xbf{%b}" % NAMED, None),
    "a comma too many": (b"{%b,}" % NAMED, None),
    "single quotes": (b"{'spec':1,%b}" % NAMED, None),
    "a key that is none": (b"{1:1,%b}" % NAMED, None),
}


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(("item", "name"), ODD.values(), ids=list(ODD))
def test_an_odd_item_is_read_or_costs_itself(item: bytes, name: str | None, size: int) -> None:
    told: list[Unreadable] = []
    reader = ListReader(pieces(pod_list([pod("before"), item, pod("after")]), size), told.append)
    read = [found["metadata"]["name"] for found in reader]
    assert read == (["before", name, "after"] if name else ["before", "after"])
    assert [one.uid for one in told] == ([] if name else ["u-a"])
    assert list(lines(iter((item + b"\n",)), told.append)) == [item]
    "".join(read).encode()  # half of a surrogate pair cannot be written


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b'{"items":[{}],"kind":"PodList","metadata":{}}', 1),
        (b'{"kind":"PodList","metadata":{},"items":null}', 0),
        (b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"metadata":{},"items":[]}', 0),
        (b'{"kind":"PodList","more":%b,"metadata":{},"items":[{}]}' % (b"[" * 9_000 + b"]" * 9_000), 1),
    ],
)
def test_the_parts_of_a_list_come_in_any_order(text: bytes, count: int) -> None:
    reader = ListReader(iter((text,)), lambda _: None)
    assert len(list(reader)) == count
    assert (reader.head["kind"], reader.head["metadata"]) == ("PodList", {})


def test_fields_that_others_manage_are_dropped() -> None:
    (found,) = ListReader(iter((pod_list([pod("a", b'{"f:a":{}}')]),)), lambda _: None)
    assert sorted(found["metadata"]) == ["name", "namespace", "resourceVersion", "uid"]


@pytest.mark.parametrize("beyond", [0, 1])
def test_an_object_is_read_up_to_the_bound_in_lists_and_watches(
    beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AHEAD", 64)
    item = pod("a", b'"' + b"x" * 2_000 + b'"')
    monkeypatch.setattr(objects, "LARGEST", len(item) - beyond)
    told: list[Unreadable] = []
    assert len(list(ListReader(pieces(pod_list([item]), 1), told.append))) == 1 - beyond
    monkeypatch.setattr(objects, "_ENVELOPE", len(b'{"type":"MODIFIED","object":}'))
    event = b'{"type":"MODIFIED","object":%b}' % item
    assert len(list(lines(pieces(event + b"\n", 7), told.append))) == 1 - beyond
    assert [one.uid for one in told] == ["u-a"] * 2 * beyond


BROKEN = b'{"metadata":{"name":"b","namespace":"team","uid":"u","resourceVersion":"7"} "spec":[{}]}'


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("item", "known"), [(BROKEN, ("team", "b", "u", "7")), (b"null", ("", "", "", "")), (b"[7]", ("",) * 4)]
)
def test_an_item_that_is_no_json_costs_itself(item: bytes, known: tuple[str, ...], size: int) -> None:
    told: list[Unreadable] = []
    reader = ListReader(pieces(pod_list([pod("a"), item, pod("c")]), size), told.append)
    assert [found["metadata"]["name"] for found in reader] == ["a", "c"]
    assert [(one.namespace, one.name, one.uid, one.version) for one in told] == [known]
    assert told[0].reason


def test_an_item_that_is_too_large_costs_itself_and_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LARGEST", 4_096)
    monkeypatch.setattr(objects, "AHEAD", 1_024)
    told: list[Unreadable] = []
    text = pod_list([pod("a"), pod("b", b"[" + b"[]," * 20_000 + b"[]]"), pod("c")])
    reader = ListReader(pieces(text, 512), told.append)
    held = 0
    found = []
    for item in reader:
        found.append(item["metadata"]["name"])
        held = max(held, len(reader._text))
    assert found == ["a", "c"]
    assert [(one.key, one.reason) for one in told] == [("team/b", "it has more than 4096 characters")]
    assert held <= 2 * 4_096 + 512


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"7",
        b'{"kind":"PodList","metadata":{}}',
        b'{"items":{"a":1}}',
        b'{"items":[{}',
        b'{"items":[{}]',
        b'{"items":[{"a":"',
        b'{"items":[{"a":]}',
        b'{"items":[1 2]',
        b'{[]:1,"items":[]}',
        b"<html>",
    ],
)
def test_what_is_no_list_or_was_cut_short_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"list|value|[eE]xpect"):
        list(ListReader(iter((text,)), lambda _: None))


def test_of_a_list_no_more_is_held_than_an_object_and_what_arrived_with_it() -> None:
    text = pod_list([pod(str(at), b'["' + b"x" * 1_000 + b'"]') for at in range(3_000)])
    reader = ListReader(pieces(text, 1 << 12), lambda _: None)
    assert max(len(reader._text) for _ in reader) <= objects.AHEAD + (2 << 12)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5), st.integers(1, 40), st.booleans())
def test_a_list_reads_as_the_decoder_reads_it_whole(
    items: list[dict[str, Any]],
    size: int,
    ascii_alone: bool,
) -> None:
    text = json.dumps({"kind": "L", "items": items, "metadata": {"a": 1.5e3}}, ensure_ascii=ascii_alone)
    reader = ListReader(pieces(text.encode("utf-8", "surrogatepass"), size), lambda _: None)
    whole = json.loads(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    assert list(reader) == whole["items"]
    assert reader.head == {"kind": "L", "metadata": {"a": 1500.0}}


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_lines_are_whole_and_one_that_is_too_long_costs_itself(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LARGEST", 400)
    told: list[Unreadable] = []
    long = pod("b", b'"' + b"x" * 1_000 + b'"')
    text = b"\n".join([b"one", b"", long, b"two", b"cut"])
    assert list(lines(pieces(text, size), told.append)) == [b"one", b"two"]
    assert len(told) == 1
    assert "more than 400" in told[0].reason
