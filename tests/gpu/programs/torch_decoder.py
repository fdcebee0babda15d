"""A language model that answers, with a fixed cache and its step as a CUDA graph. Imports nothing of the project.

Written out, so that a step can be captured for certain: grouped-query attention, rotary positions, gated products, of the
sizes of Qwen3-4B and of Llama-7B. Weights are random, lengths fixed, and no token ends an answer.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from torch_models import DEVICE, TINY, TYPE, wait


@dataclass(frozen=True)
class Size:
    """A model's configuration."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    words: int


SIZES = {
    "qwen3_4b": Size(36, 2560, 32, 8, 128, 9728, 151_936),
    "llama_7b": Size(32, 4096, 32, 32, 128, 11_008, 32_000),
}
PROMPT, ANSWER = (16, 8) if TINY else (2048, 256)
"""Tokens in and out of a request."""


class Decoder:
    """``residents`` requests at once: each prompt is read by itself, then all take a token a step."""

    def __init__(self, name: str, residents: int, weights: Decoder | None = None) -> None:
        self.size = Size(2, 64, 4, 2, 16, 128, 512) if TINY else SIZES[name]
        self.residents = residents
        self.weights = weights.weights if weights else self._weights()
        s = self.size
        shape = (s.layers, 2, residents, s.kv_heads, PROMPT + ANSWER, s.head)
        self.cache = torch.zeros(shape, dtype=TYPE, device=DEVICE)
        self.places = torch.arange(PROMPT + ANSWER, device=DEVICE)
        turns = 1e6 ** (-torch.arange(0, s.head, 2, device=DEVICE) / s.head)
        angles = self.places[:, None] * turns
        self.cos, self.sin = angles.cos().to(TYPE), angles.sin().to(TYPE)
        self.token = torch.zeros(residents, 1, dtype=torch.long, device=DEVICE)
        self.place = torch.full((1,), PROMPT, dtype=torch.long, device=DEVICE)
        self.prompt = torch.randint(0, s.words, (1, PROMPT), device=DEVICE)
        self.why_not_captured = "" if DEVICE == "cuda" else "not on a card"
        self._graph = self._captured() if DEVICE == "cuda" else None
        self._steps = 0
        self._took: tuple[float, float] | None = None

    def _weights(self) -> list[torch.Tensor]:
        s = self.size
        qkv, out = (s.heads + 2 * s.kv_heads) * s.head, s.heads * s.head
        each = [(qkv, s.width), (s.width, out), (2 * s.ffn, s.width), (s.width, s.ffn)]
        shapes = [(s.words, s.width), *each * s.layers]
        return [torch.randn(shape, dtype=TYPE, device=DEVICE) * 0.02 for shape in shapes]

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor, places: torch.Tensor, rows: slice) -> torch.Tensor:
        """The next token of each; ``places`` of the new tokens are written into the cache."""
        s, batch, new = self.size, tokens.shape[0], tokens.shape[1]
        x = self.weights[0][tokens]
        cos, sin = self.cos[places], self.sin[places]
        mask = self.places <= places[:, None]
        for layer in range(s.layers):
            qkv, out, up, down = self.weights[1 + 4 * layer : 5 + 4 * layer]
            split = linear(rms_norm(x, (s.width,)), qkv).view(batch, new, -1, s.head).transpose(1, 2)
            query, key, value = split.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
            keys, values = self.cache[layer, 0, rows], self.cache[layer, 1, rows]
            keys.index_copy_(2, places, _turned(rms_norm(key, (s.head,)), cos, sin))
            values.index_copy_(2, places, value)
            query = _turned(rms_norm(query, (s.head,)), cos, sin)
            if new > 1:
                seen = scaled_dot_product_attention(
                    query, keys[:, :, :new], values[:, :, :new], is_causal=True, enable_gqa=True
                )
            else:  # the heads of a group look at the same keys, as so many tokens would: nothing is repeated
                grouped = query.view(batch, s.kv_heads, -1, s.head)
                seen = scaled_dot_product_attention(grouped, keys, values, mask).reshape(query.shape)
            x = x + linear(seen.transpose(1, 2).reshape(batch, new, -1), out)
            gate, value = linear(rms_norm(x, (s.width,)), up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * value, down)
        return linear(rms_norm(x[:, -1:], (s.width,)), self.weights[0]).argmax(-1)

    def _next(self) -> None:
        self.token.copy_(self._forward(self.token, self.place, slice(None)))
        self.place.add_(1)

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """A step as a graph; None, and why, where this driver or PyTorch captures none."""
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                self._next()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph), torch.inference_mode():
                self._next()
        except RuntimeError as error:
            self.why_not_captured = str(error).splitlines()[0]
            return None
        return graph

    def read(self, row: int) -> None:
        """Read one resident's prompt."""
        self.token[row] = self._forward(self.prompt, self.places[:PROMPT], slice(row, row + 1))[0]
        wait()

    def step(self) -> None:
        """A token for each."""
        if self._graph is None:
            self._next()
        else:
            self._graph.replay()
        wait()

    def again(self) -> None:
        """A token, of an answer that begins anew when it is at its end: a request of a service."""
        if self._steps % ANSWER == 0:
            self.begin()
        self._steps += 1
        self.step()

    def begin(self) -> None:
        """All are at the end of their prompts."""
        self.place.fill_(PROMPT)

    def run(self, seconds: float) -> dict[str, float]:
        """Answer for so long. A round that is cut counts by the part of it that was done, by what its parts take alone.

        For no time: find out how long they take. Nobody else is to work meanwhile.
        """
        if seconds <= 0 or self._took is None:
            self._took = self._alone()
        read_s, step_s = self._took
        whole = self.residents * read_s + ANSWER * step_s
        begin = time.perf_counter()
        until, done = begin + seconds, 0.0
        firsts: list[float] = []
        betweens: list[float] = []
        while time.perf_counter() < until:
            self.begin()
            arrived = time.perf_counter()
            for row in range(self.residents):
                self.read(row)
                firsts.append((time.perf_counter() - arrived) * 1e3)
                done += read_s / whole
                if time.perf_counter() > until:
                    break
            for _ in range(ANSWER if time.perf_counter() < until else 0):
                at = time.perf_counter()
                self.step()
                betweens.append((time.perf_counter() - at) * 1e3)
                done += step_s / whole
                if time.perf_counter() > until:
                    break
        wall = time.perf_counter() - begin
        figures = {"iterations": done * ANSWER * self.residents, "wall": wall}
        for name, values in (("first", firsts), ("between", betweens)):
            if len(values) > 1:
                cuts = statistics.quantiles(values, n=100, method="inclusive")
                figures |= {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}
        return figures | {"captured": float(self._graph is not None)}

    def _alone(self) -> tuple[float, float]:
        """Seconds that a prompt and a step take, the best of three."""
        reads, steps = [], []
        for _ in range(3):
            self.begin()
            at = time.perf_counter()
            self.read(0)
            reads.append(time.perf_counter() - at)
            at = time.perf_counter()
            self.step()
            steps.append(time.perf_counter() - at)
        return min(reads), min(steps)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
