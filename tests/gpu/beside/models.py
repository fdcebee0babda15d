"""Which models the tables have, what each takes of a card, and which kernels take its place in a dry run."""

from __future__ import annotations

from typing import Final

from tests.gpu.beside.workers import Model

_SHORT: Final = ("--us", "200", "--kernels", "10")
_LONG: Final = ("--us", "1000", "--kernels", "20")


def request(name: str, gib: float) -> Model:
    """A service's model."""
    return Model(name, ("request", name), gib, _SHORT)


def step(name: str, gib: float) -> Model:
    """A job that trains."""
    return Model(name, ("step", name), gib, _LONG)


SERVICES: Final = (request("resnet50", 1.5), request("bert", 2), request("llama_7b", 15))
JOBS: Final = (step("resnet50", 16), step("gpt2", 10), step("whisper", 50))
RESIDENTS: Final = (2, 8, 32)
HALVES: Final = tuple(residents // 2 for residents in RESIDENTS)
WHOLE_LLM: Final = Model(
    "qwen3_4b",
    ("decode", "qwen3_4b", ",".join(map(str, (*RESIDENTS, *(h for h in HALVES if h not in RESIDENTS))))),
    32,
    _SHORT,
)
HALF_LLM: Final = Model("qwen3_4b_halves", ("decode", "qwen3_4b", ",".join(map(str, HALVES))), 18, _SHORT)
_NETWORKS: Final = (
    ("resnet50", 4.0),
    ("resnet152", 5.0),
    ("vgg16", 5.0),
    ("deeplabv3", 5.0),
    ("lstm", 2.0),
)
COSTED: Final = (
    *(make(name, gib) for name, gib in _NETWORKS for make in (request, step)),
    Model("qwen3_4b", ("first", "qwen3_4b"), 12, _SHORT),
)
"""HAMi's networks, and a language model's time to the first token."""
KERNELS: Final = Model("kernels", (), 0.6, ("--us", "1000"))
"""The C client, on a card as well: kernels of a millisecond, each waited for."""
