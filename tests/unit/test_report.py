"""A report has no name in it, and what it records is judged as before."""

from __future__ import annotations

import json
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.replay.judges import Judges, Player
from bench.replay_history import record
from gpu_manager.adapters.record_ring import segments
from gpu_manager.cli.kubectl.report import own_words, write
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.names import Pseudonyms, alike

WORDS = own_words()


def entries(directory: Path) -> Iterator[Any]:
    return (json.loads(line) for path in segments(directory) for line in path.read_bytes().splitlines())


def written(place: Path, files: dict[str, list[Any]], *, plain: bool = False) -> dict[str, str]:
    """The files of a report of these documents."""
    write(place, {name: lambda found=found: iter(found) for name, found in files.items()}, plain=plain)
    with tarfile.open(place) as archive:
        return {
            member.name: stream.read().decode()
            for member in archive
            if (stream := archive.extractfile(member)) is not None
        }


def hidden(*documents: Any) -> list[Any]:
    pseudonyms = Pseudonyms(WORDS)
    for one in documents:
        pseudonyms.see(one)
    return [pseudonyms.replaced(one) for one in documents]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decisions under quotas, of all policies and kinds, among them refusals."""
    place = tmp_path_factory.mktemp("records")
    record(place, 3)
    return place


def test_recorded_decisions_are_judged_as_before_under_pseudonyms(tmp_path: Path, recorded: Path) -> None:
    found = written(tmp_path / "r.tar.gz", {"records/decisions-00000001.jsonl": list(entries(recorded))})
    lines = found["records/decisions-00000001.jsonl"].encode().splitlines()
    player = Player(Judges().judge)
    judged = list(player.play(lines))
    assert len(judged) > 300
    assert [(one.line["k"], one.recorded, one.now) for one in judged if not one.same] == []
    assert not player.passed
    assert any("refusal" in one.now or one.now.get("failed") for one in judged)


def test_no_planted_name_is_in_a_report(tmp_path: Path, recorded: Path) -> None:
    """Names, labels and values of 1,000 kinds, in fields and in texts, also beside each other."""
    dice = random.Random(5)
    letters = "bcdfghjklmnpqrstvwxz"
    planted = [
        "".join(dice.choices(letters, k=dice.randint(5, 12))) + dice.choice(("", "-7", ".corp", "_x", "Q"))
        for _ in range(1000)
    ]
    some = iter(planted)
    documents: list[Any] = []
    for _ in range(100):
        a, b, c, d, e, f, g, h, i, j = (next(some) for _ in range(10))
        documents += [
            {
                "namespace": a,
                "pod": b,
                "node": c,
                "labels": {d: e},
                "assigned": {f: [["GPU-1", {"cores": 1}]]},
            },
            {"text": f"pod {a}/{b} waits on {c}: {g}={h}; '{i}', ({j})", "owner": f"ReplicaSet/{b}"},
            {"annotations": {"tencent.com/note": json.dumps({"node": c, "why": f"because {j}"}), g: h}},
        ]
    files = {"a.jsonl": documents, "records/decisions-00000001.jsonl": list(entries(recorded))}
    text = "".join(written(tmp_path / "r.tar.gz", files).values())
    assert [name for name in planted if name in text] == []
    plain = "".join(written(tmp_path / "p.tar.gz", files, plain=True).values())
    assert [name for name in planted if name not in plain] == []


def test_a_report_is_for_its_owner_alone_and_replaces_no_file(tmp_path: Path) -> None:
    place = tmp_path / "r.tar.gz"
    written(place, {"a.json": [{}]})
    assert place.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RequestInvalid, match="cannot write"):
        write(place, {}, plain=False)


def test_pseudonyms_sort_as_the_names_do() -> None:
    names = ["b", "a-long-name", "zz", "a", "b-2", "b-10"]
    (found,) = hidden({"add": names})
    order = sorted(range(len(names)), key=names.__getitem__)
    assert sorted(range(len(names)), key=found["add"].__getitem__) == order
    assert len(found["add"][1]) == len("a-long-name")


def test_a_uuid_stays_one_and_begins_differently_for_each() -> None:
    uuids = [f"GPU-{n:08x}-1111-2222-3333-444455556666" for n in (7, 3)]
    (found,) = hidden({"cards": [{"uuid": uuid} for uuid in uuids], "text": f"card {uuids[0]} is away"})
    first, second = (card["uuid"] for card in found["cards"])
    assert re.fullmatch(r"GPU-[0-9a-f]{8}-0000-4000-8000-[0-9a-f]{12}", first)
    assert first[4:12] > second[4:12]
    assert found["text"] == f"card {first} is away"


def test_a_name_that_is_a_word_of_ours_is_hidden_where_it_is_a_name() -> None:
    first, second = hidden(
        {"namespace": "default", "containers": {"node": 1}, "kind": "default", "core": "30"},
        {"text": "the default quota of default/x: 30 cores", "at": "2026-01-01T00:00:00Z"},
    )
    assert first["namespace"] != "default"
    assert first["kind"] == "default"
    assert first["core"] == "30"
    assert "node" not in first["containers"]
    assert "default" not in second["text"]
    assert second["text"].endswith(": 30 cores")
    assert second["at"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00:12::9a", "0000:3B:00.0", "host7.example.net"])
def test_addresses_are_hidden(address: str) -> None:
    (found,) = hidden({"text": f"cannot reach {address} at port 443"})
    assert address not in found["text"]
    assert found["text"].endswith(" at port 443")


def test_models_keep_their_words() -> None:
    card, wanted = hidden({"model": "Zeta X9-80G"}, {"annotations": {"tencent.com/gpu-model": "X9,Y3q"}})
    assert card["model"] == "Zeta X9-80G"
    value = wanted["annotations"]["tencent.com/gpu-model"]
    assert value.startswith("X9,n")


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        ("n00001 of n00002: 3 free", "no room of n00002: 3 free", False),
        ("the n00001 quota: 3 free", "the default quota: 3 free", True),
        ("the quota: 3 free", "the quota: 4 free", False),
    ],
)
def test_texts_are_alike_but_for_names(recorded: str, now: str, same: bool) -> None:
    assert alike(recorded, now) is same


def test_a_text_that_begins_like_json_and_is_none_is_a_text() -> None:
    pseudonyms = Pseudonyms(WORDS)
    documents = [{"message": text} for text in ("{secret-pod waits", "[" * 100_000)]
    for document in documents:
        pseudonyms.see(document)
    first, second = (pseudonyms.replaced(document)["message"] for document in documents)
    assert "secret-pod" not in first
    assert first.startswith("{")
    assert second == "[" * 100_000


def test_a_directory_of_an_allocation_becomes_another_of_the_same_shape() -> None:
    name = "0123456789abcdef" * 2
    pseudonyms = Pseudonyms(WORDS)
    pseudonyms.see({"message": f"left over: {name}"})
    (found,) = re.findall(r"[0-9a-f]{32}", pseudonyms.replaced({"message": f"left over: {name}"})["message"])
    assert found != name
