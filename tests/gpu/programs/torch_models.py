"""Models of the side-by-side tables, by configuration, with random weights. Imports nothing of the project.

``request(name)`` makes one request of a service, ``step(name)`` one step of a job: a function that ends when the card has.
With ``SIDE_BY_SIDE_TINY`` in the environment each model has two layers and runs on the host's processor: a dry run.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torchvision
import transformers

TINY = "SIDE_BY_SIDE_TINY" in os.environ
DEVICE = "cpu" if TINY else "cuda"
TYPE = torch.bfloat16
Step = Callable[[], None]

LAYERS = 2
"""Of every transformer in a dry run."""


def wait() -> None:
    """Until the card has done all that it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _sized(**real: int) -> dict[str, int]:
    """The configuration's figures; in a dry run as few layers and as narrow ones as still are the model."""
    if not TINY:
        return real
    small = {
        "layers": LAYERS,
        "heads": 4,
        "width": 64,
        "ffn": 128,
        "positions": 128,
        "batch": 1,
        "size": 64,
        "kv": 2,
    }
    return {name: small.get(name.split("_")[-1], value) for name, value in real.items()}


def request(name: str) -> Step:
    """``resnet50``, ``resnet152``, ``vgg16``, ``deeplabv3``, ``lstm`` or ``bert``: one request, waited for."""
    model, data = _vision(name, 1) if name in VISION else {"bert": _bert, "lstm": _lstm}[name](1)
    model.eval()

    def one() -> None:
        with torch.inference_mode():
            model(**data)
        wait()

    return one


def step(name: str) -> Step:
    """One training step (SGD) of ``resnet50``, ``gpt2``, ``whisper`` or a model of :func:`request`; waits for its end."""
    batch = {"resnet50": 128, "whisper": 16}.get(name, 1 if name == "gpt2" else 8)
    batch = min(batch, 2) if TINY else batch
    if name in VISION:
        model, data = _vision(name, batch)
    else:
        model, data = {"bert": _bert, "lstm": _lstm, "gpt2": _gpt2, "whisper": _whisper}[name](batch)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def one() -> None:
        optimiser.zero_grad(set_to_none=True)
        _loss(model(**data)).backward()
        optimiser.step()
        wait()

    return one


def _loss(answer: object) -> torch.Tensor:
    """The model's own loss, or the mean square of what it says."""
    if getattr(answer, "loss", None) is not None:
        return answer.loss
    if isinstance(answer, dict):
        answer = answer["out"] if "out" in answer else next(iter(answer.values()))
    return (answer[0] if isinstance(answer, tuple) else answer).float().square().mean()


VISION = {
    "resnet50": (torchvision.models.resnet50, 224),
    "resnet152": (torchvision.models.resnet152, 224),
    "vgg16": (torchvision.models.vgg16, 224),
    "deeplabv3": (torchvision.models.segmentation.deeplabv3_resnet50, 512),
}
Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _vision(name: str, batch: int) -> Made:
    make, size = VISION[name]
    more = {"weights_backbone": None} if name == "deeplabv3" else {}
    with torch.device(DEVICE):
        model = make(weights=None, **more).to(TYPE)
        sized = _sized(size=size)["size"]
        batch = max(2, batch) if name == "deeplabv3" else batch  # its pooled branch normalises over a batch
        images = torch.randn(batch, 3, sized, sized, dtype=TYPE)
    return model, {"x": images}


class _Lstm(torch.nn.LSTM):
    """1,024 steps of 300 words' width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


def _lstm(batch: int) -> Made:
    steps = 16 if TINY else 1024
    with torch.device(DEVICE):
        return _Lstm(300, 300, batch_first=True).to(TYPE), {"x": torch.randn(batch, steps, 300, dtype=TYPE)}


def _tokens(batch: int, length: int, most: int) -> torch.Tensor:
    return torch.randint(0, most, (batch, length), device=DEVICE)


def _bert(batch: int) -> Made:
    """BERT large, 128 tokens."""
    s = _sized(layers=24, heads=16, width=1024, ffn=4096)
    config = transformers.BertConfig(
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"], hidden_size=s["width"], intermediate_size=s["ffn"]
    )  # fmt: skip
    with torch.device(DEVICE):
        model = transformers.BertForMaskedLM(config).to(TYPE)
    ids = _tokens(batch, 128, config.vocab_size)
    return model, {"input_ids": ids, "labels": ids}


def _gpt2(batch: int) -> Made:
    """GPT-2 large, 1,024 tokens."""
    s = _sized(layers=36, heads=20, width=1280, positions=1024)
    config = transformers.GPT2Config(
        n_layer=s["layers"], n_head=s["heads"], n_embd=s["width"], n_positions=s["positions"], use_cache=False
    )  # fmt: skip
    with torch.device(DEVICE):
        model = transformers.GPT2LMHeadModel(config).to(TYPE)
    ids = _tokens(batch, s["positions"], config.vocab_size)
    return model, {"input_ids": ids, "labels": ids}


def _whisper(batch: int) -> Made:
    """Whisper large v3 on 30 s of sound: 1,500 frames go into the encoder, 64 tokens come out."""
    s = _sized(layers=32, heads=20, width=1280, ffn=5120)
    config = transformers.WhisperConfig(
        num_mel_bins=128, encoder_layers=s["layers"], decoder_layers=s["layers"], encoder_attention_heads=s["heads"],
        decoder_attention_heads=s["heads"], d_model=s["width"], encoder_ffn_dim=s["ffn"], decoder_ffn_dim=s["ffn"],
        vocab_size=51866,
    )  # fmt: skip
    with torch.device(DEVICE):
        model = transformers.WhisperForConditionalGeneration(config).to(TYPE)
    sound = torch.randn(batch, 128, 3000, dtype=TYPE, device=DEVICE)
    return model, {"input_features": sound, "labels": _tokens(batch, 64, config.vocab_size)}
