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
        ("device.driver != 'gpu.nvidia.com' && true", True),
        (f"{OURS}.productName == 'Tesla-T4'", True),
        (f"{OURS}['productName'].lowerAscii().contains('t4')", True),
        (f"{OURS}.productName.startsWith('Tesla') && {OURS}.productName.endsWith('V100')", False),
        (f"{OURS}.productName in ['Tesla-V100', 'Tesla-T4']", True),
        (f"{OURS}.productName in []", False),
        (f"!({OURS}.uuid == 'GPU-1111')", False),
        (f"!!({OURS}.uuid == 'GPU-1111')", True),
        (f"{OURS}.index < 2 && {OURS}.index <= 1 && {OURS}.index > 0 && {OURS}.index >= 1", True),
        (f"{OURS}.index == 0 || {OURS}.numa == 0", True),
        (f"{OURS}.index == '1'", False),
        ("device.allowMultipleAllocations", True),
        ("device.allowMultipleAllocations == true && 1 == 1", True),
        ("'vcuda.tencent.com' in device.attributes", True),
        ("'gpu.nvidia.com' in device.attributes", False),
        (f"has({OURS}.uuid) && !has(device.attributes['gpu.nvidia.com'].type)", True),
        # What a card of ours never has ends the evaluation with an error, unless the rest decides.
        ("device.attributes['gpu.nvidia.com'].type == 'gpu'", False),
        ("!(device.attributes['gpu.nvidia.com'].type == 'gpu')", False),
        ("device.attributes['gpu.nvidia.com'].index < 3", False),
        ("device.attributes['gpu.nvidia.com'].type.startsWith('g')", False),
        ("device.attributes['gpu.nvidia.com'].type == 'gpu' || device.driver == 'vcuda.tencent.com'", True),
        ("device.driver == 'vcuda.tencent.com' && device.attributes['a.b'].c == 1", False),
        (f"{OURS}.index < 'a'", False),
        ("device < device", False),
        ("'a' && true", False),
        # What is not known here, or not read.
        ("device.capacity['vcuda.tencent.com'].memory.compareTo(quantity('10Gi')) > 0", None),
        (f"{OURS}.driverVersion.isGreaterThan(semver('1.2.3'))", None),
        (f"{OURS}.driverVersion == '1' || {OURS}.index == 1", True),
        (f"{OURS}.driverVersion == '1' || {OURS}.index == 0", None),
        (f"{OURS}.driverVersion == '1' || device.attributes['a.b'].c == 1", None),
        (f"{OURS}.driverVersion == '1' && {OURS}.index == 0", False),
        (f"!({OURS}.driverVersion == '1')", None),
        (f"has({OURS}.driverVersion)", None),
        (f"{OURS}.driverVersion < '1'", None),
        ("'resource.kubernetes.io' in device.attributes", None),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'a'", None),
        (f"{OURS}.productName.matches('T4$')", None),
        (f"{OURS}.productName.contains(1)", None),
        (f"{OURS}[1] == 2", None),
        ("device.attributes[''].a == 2", None),
        ("device.driver.size == 3", None),
        ("'a' in 'abc'", None),
        ("1 + 1 == 2", None),
        ("device", False),
        ("true ? true : false", None),
        ("other.driver == 'a'", None),
        ("device.", None),
        ("device.driver == ", None),
        ("[true", None),
        ("[true true]", None),
        ("(true", None),
        ("true true", None),
        ("device.'driver'", None),
        ("'a\\'b' == device.driver", None),
        ("1.5 == 1.5", None),
        ("(" * 40 + "true" + ")" * 40, None),
        ("!" * 40 + "true", None),
        (" " * 11_000, None),
        ("", None),
    ],
)
def test_an_expression_takes_a_card_or_not_or_is_left_open(expression: str, taken: bool | None) -> None:
    assert takes([expression], selected_card(T4)) is taken


def test_all_selectors_have_to_take_the_card_and_none_takes_every_card() -> None:
    assert takes([], SOME_CARD) is True
    assert takes(["true", "1 + 1 == 2"], SOME_CARD) is None
    assert takes(["1 + 1 == 2", "false"], SOME_CARD) is False


def test_of_a_model_or_of_some_card_of_ours_what_is_not_known_is_left_open() -> None:
    model = [f"{OURS}.productName == 'Tesla-T4'"]
    assert takes(model, card_of_model("Tesla-T4")) is True
    assert takes(model, card_of_model("Tesla-V100")) is False
    assert takes(model, SOME_CARD) is None
    assert takes([f"{OURS}.uuid == 'GPU-1111'"], card_of_model("Tesla-T4")) is None
    assert takes([f"{OURS}.uuid == 'GPU-1111'"], SOME_CARD) is None
    assert takes(["device.driver == 'vcuda.tencent.com'"], SOME_CARD) is True
