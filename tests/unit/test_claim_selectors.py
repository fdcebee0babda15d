"""Selectors of claims and classes: which of our cards CEL takes, and what cannot be said."""

from __future__ import annotations

import pytest

from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.dra.selectors import SOME_CARD, card_of_model, selected_card, takes
from gpu_manager.domain.resources import GIB

T4 = Card(1, CardUuid("GPU-1111"), "Tesla-T4", 16 * GIB, numa=0)
OURS = "device.attributes['vcuda.tencent.com']"


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("device.driver == 'vcuda.tencent.com'", True),
        ('device.driver == "gpu.nvidia.com"', False),
        (f"{OURS}.productName == 'Tesla-T4'", True),
        (f"{OURS}.productName=='Tesla-V100' && {OURS}.index == 1", False),
        (f"{OURS}.productName in ['Tesla-V100', 'Tesla-T4']", True),
        (f'{OURS}.uuid in ["GPU-2222"]', False),
        (f"{OURS}.productName in []", False),
        (f"{OURS}.index == 0 || {OURS}.numa == 0", True),
        (f"{OURS}.index == '1'", False),
        (f"{OURS}.productName == '&& || (' || {OURS}.index == 1", True),
        # What a card of ours never has ends the evaluation with an error, unless the rest decides.
        ("device.attributes['gpu.nvidia.com'].type == 'gpu'", False),
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", False),
        ("device.attributes['gpu.nvidia.com'].type == 'gpu' || device.driver == 'vcuda.tencent.com'", True),
        ("device.driver == 'vcuda.tencent.com' && device.attributes['a.b'].c == 1", False),
        # What is not known here.
        (f"{OURS}.driverVersion == '1'", None),
        (f"{OURS}.driverVersion == '1' || {OURS}.index == 1", True),
        (f"{OURS}.driverVersion == '1' || {OURS}.index == 0", None),
        (f"{OURS}.driverVersion == '1' || device.attributes['a.b'].c == 1", None),
        (f"{OURS}.driverVersion == '1' && {OURS}.index == 0", False),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'a'", None),
        ("device.attributes[''].a == 2", None),
        # What is not read; a part that is read decides where it does whatever the other one says.
        (f"{OURS}.index < 2", None),
        (f"{OURS}.index < 2 && {OURS}.index == 0", False),
        (f"has({OURS}.uuid) && device.driver == 'gpu.nvidia.com'", False),
        (f"{OURS}['productName'].lowerAscii().contains('t4')", None),
        ("device.capacity['vcuda.tencent.com'].memory.compareTo(quantity('10Gi')) > 0", None),
        (f"{OURS}.productName.matches('T4$')", None),
        (f"{OURS}.productName.lowerAscii().matches('(a+)+$')", None),
        (f"{OURS}.productName.lowerAscii().matches('(^|[ _/-])(a+)+($|[ _/-])')", None),
        (f"{OURS}.index.lowerAscii().matches('(^|[ _/-])t4($|[ _/-])')", False),
        ("true", None),
        ("", None),
        # How the parts belong together is not said by && and || alone.
        ("!(a && device.driver == 'gpu.nvidia.com' && b)", None),
        ("(a || b) && device.driver == 'gpu.nvidia.com'", None),
        ("a && device.driver == 'gpu.nvidia.com' && b ? c : d", None),
        ("a // && device.driver == 'gpu.nvidia.com' && b", None),
        ("[1].exists(a, b && device.driver == 'gpu.nvidia.com' && c)", None),
        (r"'a\\' && device.driver == 'gpu.nvidia.com' && '", None),
        (r"'a\'' == a && device.driver == 'gpu.nvidia.com' && '' == b", None),
        ("a) && device.driver == 'gpu.nvidia.com' && (b", None),
    ],
)
def test_an_expression_takes_a_card_or_not_or_is_left_open(expression: str, taken: bool | None) -> None:
    assert takes([expression], selected_card(T4)) is taken


def test_all_selectors_have_to_take_the_card_and_none_takes_every_card() -> None:
    assert takes([], SOME_CARD) is True
    driver, other = "device.driver == 'vcuda.tencent.com'", "device.driver == 'gpu.nvidia.com'"
    assert takes([driver, "1 + 1 == 2"], SOME_CARD) is None
    assert takes(["1 + 1 == 2", other], SOME_CARD) is False


def test_of_a_model_or_of_some_card_of_ours_what_is_not_known_is_left_open() -> None:
    model = [f"{OURS}.productName == 'Tesla-T4'"]
    assert takes(model, card_of_model("Tesla-T4")) is True
    assert takes(model, card_of_model("Tesla-V100")) is False
    assert takes(model, SOME_CARD) is None
    assert takes([f"{OURS}.uuid == 'GPU-1111'"], card_of_model("Tesla-T4")) is None
    assert takes([f"{OURS}.uuid == 'GPU-1111'"], SOME_CARD) is None
    assert takes(["device.driver == 'vcuda.tencent.com'"], SOME_CARD) is True
