"""How far a resize is, from the request on the pod, the scheduler's answer and what the agent booked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, RESIZE, RESIZED, Assignment, encode_assignment
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resize.judgement import ResizeProgress, ResizeStage, held_size, resize_progress
from gpu_manager.domain.resize.sizes import ResizeAnswer, digest, encode_answer
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from tests.fakes.node import container, pod

SPEC, MORE = Amount(30, 2 * GIB), Amount(50, 4 * GIB)
BARE = parse_pod(pod("one", container("c", 30, 8), container("w", 100, 0)))
ASKS = json.dumps({"v": 1, "containers": {"c": {"cores": 50, "memory": "4Gi"}}})


def there(asks: str = "", answer: Amount | None = None, held: Amount | None = SPEC, **more: Any) -> Pod:
    """A pod of 30 cores and 2 GiB; ``more`` of the answer."""
    annotations = {RESIZE: asks} if asks else {}
    bare = replace(BARE, annotations=annotations)
    if answer is not None:
        asked = more.pop("asked", digest(bare))
        annotations[RESIZED] = encode_answer(ResizeAnswer(bare.uid, asked, {"c": answer}, **more))
    if held is not None:
        said = Assignment("n1", PodUid(bare.uid), {"c": ((CardUuid("GPU-0"), held),)})
        annotations |= {ALLOCATION: encode_assignment(said), ASSIGNED: "true"}
    return replace(bare, annotations=annotations)


@pytest.mark.parametrize(
    ("made", "stage", "wanted", "held"),
    [
        (there(ASKS), ResizeStage.ASKED, MORE, SPEC),
        (there(ASKS, SPEC, asked="of an earlier request"), ResizeStage.ASKED, MORE, SPEC),
        (there(ASKS, MORE), ResizeStage.RESERVED, MORE, SPEC),
        (there(ASKS, MORE, held=None), ResizeStage.RESERVED, MORE, None),
        (there(ASKS, MORE, held=MORE), ResizeStage.DONE, MORE, MORE),
        (there("", MORE, held=MORE, asked="of its Deployment"), ResizeStage.DONE, MORE, MORE),
        (there("", SPEC, held=MORE), ResizeStage.RESERVED, SPEC, MORE),
    ],
)
def test_each_stage_has_its_name(made: Pod, stage: ResizeStage, wanted: Amount, held: Amount | None) -> None:
    assert resize_progress(made, "c", DEFAULT_UNIT) == ResizeProgress(SPEC, wanted, held, stage)


def test_a_refusal_keeps_its_words() -> None:
    found = resize_progress(there(ASKS, SPEC, refused="no room on card 3"), "c", DEFAULT_UNIT)
    assert found == ResizeProgress(SPEC, MORE, SPEC, ResizeStage.REFUSED, "no room on card 3")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (there(), "c"),
        (there("", SPEC), "c"),
        (there(held=None), "c"),
        (there(ASKS), "w"),
        (there(ASKS), "none"),
    ],
)
def test_the_size_of_the_spec_and_what_cannot_be_resized_have_none(made: Pod, name: str) -> None:
    assert resize_progress(made, name, DEFAULT_UNIT) is None


def test_a_request_that_cannot_be_read_is_one_that_is_not_answered() -> None:
    assert resize_progress(there("{"), "c", DEFAULT_UNIT) is None
    assert resize_progress(there("{", held=MORE), "c", DEFAULT_UNIT) == ResizeProgress(
        SPEC, SPEC, MORE, ResizeStage.ASKED
    )


def test_what_the_agent_has_not_confirmed_is_not_held() -> None:
    assert held_size(there(held=MORE), "c") == MORE
    booked = there(held=MORE)
    planned = {ALLOCATION: booked.annotations[ALLOCATION]}
    assert held_size(replace(booked, annotations=planned), "c") is None
    assert held_size(there(held=None), "c") is None
