"""`gpu-manager topology`: any matrix in, the best-joined cards out, and one clear line for bad input."""

import io
import json
from itertools import combinations

import pytest

from gpu_manager.cli.cards import MAX_BYTES
from gpu_manager.cli.main import run
from gpu_manager.domain.topology import Link, LinkKind, parse_topology
from tests.fakes.machines import recorded

PAIRS = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV4\tPHB\tSYS\t0-7\t0\nGPU1\tNV4\t X \tSYS\tPHB\t0-7\t0\n"
    "GPU2\tPHB\tSYS\t X \tNV4\t8-15\t1\nGPU3\tSYS\tPHB\tNV4\t X \t8-15\t1\n\nLegend:\n\n  X    = Self\n"
)


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text(PAIRS)
    return str(path)


@pytest.mark.parametrize("path", recorded())
def test_the_answer_is_the_best_for_every_recorded_machine(path, capsys):
    parsed = parse_topology(path.read_text())
    topology = parsed.topology

    nvlinks = any(link.kind is LinkKind.NVLINK for row in topology.links for link in row)

    def rank(cards, free):
        left = topology.sum(set(free) - set(cards)) if nvlinks else 0
        return -topology.sum(cards), len({parsed.nodes[card] for card in cards}), -left, cards

    for busy in ((), (0,), (0, 2)):
        free = [card for card in range(topology.size) if card not in busy]
        for pick in range(1, len(free) + 1):
            arguments = ["topology", str(path), "--pick", str(pick), "-o", "json"]
            assert (
                run([*arguments, "--busy", ",".join(str(card) for card in busy if card < topology.size)]) == 0
            )
            answer = json.loads(capsys.readouterr().out)
            best = min(combinations(free, pick), key=lambda cards, free=free: rank(cards, free))
            assert list(answer) == ["cards", "score", "links"]
            assert answer["cards"] == list(best)
            assert answer["score"] == topology.sum(best)
            weights = [Link.parse(row[j]).weight for i, row in enumerate(answer["links"]) for j in range(i)]
            assert answer["score"] == sum(weights)


def test_links_are_those_among_the_chosen_cards(matrix, capsys):
    assert run(["topology", matrix, "--pick", "2", "--busy", "0, 0", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "cards": [2, 3],
        "score": 400,
        "links": [["X", "NV4"], ["NV4", "X"]],
    }


def test_the_table_shows_the_cards_under_their_own_names(matrix, capsys):
    assert run(["topology", matrix, "--pick", "2", "--busy", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cards 2, 3, score 400",
        "",
        "      GPU2  GPU3  CPU Affinity  NUMA Affinity  GPU NUMA ID",
        "GPU2  X     NV4   8-15          1",
        "GPU3  NV4   X     8-15          1",
    ]
    assert run(["topology", matrix, "--pick", "1"]) == 0
    assert capsys.readouterr().out.startswith("card 0, score 0\n")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_and_other_encodings_are_read(encoding, monkeypatch, capsys):
    class Stream:
        buffer = io.BytesIO(PAIRS.replace("\n", "\r\n").encode(encoding))

    monkeypatch.setattr("sys.stdin", Stream)
    assert run(["topology", "-", "--pick", "4", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == 2 * 400 + 2 * 30 + 2 * 10


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--pick", "0"], "ask for 1 to that many", 2),
        (["--pick", "5"], "the machine has 4 cards", 2),
        (["--pick", "two"], "--pick", 2),
        (["--pick", "1", "--busy", "4"], "there are cards 0 to 3", 2),
        (["--pick", "1", "--busy", "-1"], "there are cards 0 to 3", 2),
        (["--pick", "1", "--busy", "x\n"], "there are cards 0 to 3", 2),
        (["--pick", "1", "-o", "xml"], "xml", 2),
        ([], "--pick", 2),
        (["--pick", "3", "--busy", "0,2"], "2 of 4 cards are free", 1),
    ],
)
def test_bad_arguments_end_in_one_line(matrix, arguments, words, code, capsys):
    assert run(["topology", matrix, *arguments]) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no GPU matrix found"),
        (b"\x00\xff\xfe\x01" * 40, "no GPU matrix found"),
        (b"GPU0 GPU1\nGPU0 X WAT\nGPU1 WAT X\n", "row GPU0, column GPU1: 'WAT'"),
        (b"GPU0 " * (MAX_BYTES // 4), "more than 1 MiB"),
    ],
)
def test_bad_files_end_in_one_line(content, words, tmp_path, capsys):
    path = tmp_path / "matrix.txt"
    path.write_bytes(content)
    assert run(["topology", str(path), "--pick", "1"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_file_that_cannot_be_read_ends_in_one_line(name, tmp_path, capsys):
    assert run(["topology", str(tmp_path / name), "--pick", "1"]) == 2
    said = capsys.readouterr().err
    assert "cannot read" in said
    assert said.count("\n") == 1
