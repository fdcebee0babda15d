"""PyTorch's loops, as programs run them: ``step(kind)`` makes one iteration. Imports nothing of the project."""

from __future__ import annotations

from collections.abc import Callable

import torch

LAYERS, WIDTH = 24, 1024


def step(kind: str) -> Callable[[], None]:
    """One iteration of ``training``, ``inference``, ``eager`` (batch 1) or ``decode`` (a token at a time)."""
    return {"training": _training, "inference": _inference, "eager": _eager, "decode": _decode}[kind]()


def _model(layers: int, width: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()


def _training() -> Callable[[], None]:
    model, data = _model(8, WIDTH), torch.randn(256, WIDTH, device="cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def one() -> None:
        optimiser.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimiser.step()
        torch.cuda.synchronize()

    return one


def _inference() -> Callable[[], None]:
    model, data = _model(8, WIDTH), torch.randn(256, WIDTH, device="cuda")

    def one() -> None:
        with torch.no_grad():
            model(data)
        torch.cuda.synchronize()

    return one


def _eager() -> Callable[[], None]:
    """Batch 1, many small kernels, the host slower than the card; the answer is read every 50 iterations."""
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 1024, dropout=0.0, batch_first=True) for _ in range(6)]
    model = torch.nn.Sequential(*layers).cuda().train()  # in train() no fused path is taken
    data = torch.randn(1, 16, 512, device="cuda")
    count = 0

    def one() -> None:
        nonlocal count
        with torch.no_grad():
            model(data)
        count += 1
        if count % 50 == 0:
            torch.cuda.synchronize()

    return one


def _decode() -> Callable[[], None]:
    """A token: attention over a cache and two products a layer, and the token read back to the host."""
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.float16) * 0.02  # noqa: E731
    weights = [
        (make(WIDTH, 3 * WIDTH), make(WIDTH, 4 * WIDTH), make(4 * WIDTH, WIDTH)) for _ in range(LAYERS)
    ]
    caches = [(make(16, 512, 64), make(16, 512, 64)) for _ in range(LAYERS)]
    head, hidden = make(WIDTH, 32_000), make(1, WIDTH)

    def one() -> None:
        x = hidden
        with torch.no_grad():
            for (qkv, up, down), (keys, values) in zip(weights, caches, strict=True):
                query, _, _ = (x @ qkv).view(16, 3, 64).unbind(1)
                scores = torch.softmax(torch.bmm(keys, query.unsqueeze(-1)).squeeze(-1) / 8, dim=-1)
                x = x + torch.bmm(scores.unsqueeze(1), values).reshape(1, WIDTH)
                x = torch.nn.functional.layer_norm(x + torch.relu(x @ up) @ down, (WIDTH,))
            int((x @ head).argmax())

    return one
