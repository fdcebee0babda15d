"""Client of Prometheus' query API, by address or through a transport of the caller."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from gpu_manager.adapters.http import HttpClient, HttpLimits, NoAnswer, proxy_of
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable
from gpu_manager.domain.untrusted import json_object

PATH: Final = "/api/v1/query"
RANGE_PATH: Final = "/api/v1/query_range"
_LARGEST_BYTES: Final = 64 << 20
_CONNECT_SECONDS: Final = 10.0
_SECONDS: Final = 120.0  # a month of a large cluster
_RANGE_LIMITS: Final = HttpLimits(connect=1.0, answer=3.0, largest=16 << 20)

# A transport: parameters of the query → JSON of the answer. Raises NodeUnready.
Way = Callable[[Mapping[str, str]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Point:
    """The value of one series at the queried time."""

    labels: Mapping[str, str]
    value: float


def query(way: Way, text: str, at: float) -> tuple[Point, ...]:
    """The vector of a query at a time (seconds since 1970). Values that are no numbers are left out.

    Raises:
        NodeUnready: no answer, or a malformed one.
    """
    answer = way({"query": text, "time": f"{at:.3f}"})
    try:
        found = [
            Point({str(k): str(v) for k, v in one["metric"].items()}, float(one["value"][1]))
            for one in answer["data"]["result"]
        ]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise NodeUnready("the answer is not Prometheus': does the address lead to it?") from error
    return tuple(point for point in found if math.isfinite(point.value))


def by_address(url: str, token: str = "") -> Way:
    """The transport to a Prometheus by its URL.

    Raises:
        RequestInvalid: the URL is malformed.
    """
    base = url.rstrip("/")
    try:
        client = HttpClient(
            base, limits=HttpLimits(_CONNECT_SECONDS, _SECONDS, _LARGEST_BYTES), proxy=proxy_of(base)
        )
    except RequestInvalid as error:
        raise RequestInvalid(
            f"--prometheus is {error}; or NAMESPACE/SERVICE, to go through the API server"
        ) from error
    headers = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }

    def ask(parameters: Mapping[str, str]) -> Mapping[str, Any]:
        body = urlencode(parameters).encode()  # POST: a query may be longer than a URL
        try:
            answer = client.ask("POST", PATH, body=body, headers=headers)
        except NoAnswer as error:
            raise NodeUnready(f"no Prometheus answers at {base} ({error}): name its address") from error
        if answer.status != 200:
            raise NodeUnready(f"Prometheus at {base} refused: {_reason(answer.body)} ({answer.status})")
        return _object(answer.body, base)

    return ask


class PrometheusRanges:
    """Ranges of a Prometheus at a URL, for interactive use. ``token``: file with its token.

    Raises:
        RequestInvalid: the URL is malformed.
    """

    def __init__(self, url: str, token: Path | None = None) -> None:
        self._base = url.rstrip("/")
        self._token = token
        try:
            self._client = HttpClient(self._base, limits=_RANGE_LIMITS, proxy=proxy_of(self._base))
        except RequestInvalid as error:
            raise RequestInvalid(f"--prometheus-url is {error}") from error

    def ask(
        self, text: str, start: float, end: float, step: int
    ) -> list[tuple[Mapping[str, str], Mapping[int, float]]]:
        """Labels and values of each series of a query; a value's key is its number from ``start`` on.

        Raises:
            NodeUnready: no answer, or a malformed one.
        """
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if self._token is not None:
            try:
                headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
            except OSError as error:
                raise NodeUnready(f"cannot read {self._token}: {error.strerror}") from error
        body = urlencode({"query": text, "start": start, "end": end, "step": step}).encode()
        try:
            answer = self._client.ask("POST", RANGE_PATH, body=body, headers=headers)
        except NoAnswer as error:
            raise NodeUnready(f"Prometheus does not answer: {error}") from error
        if answer.status != 200:
            raise NodeUnready(f"Prometheus refused: {_reason(answer.body)} ({answer.status})")
        try:
            return [
                (
                    {str(k): str(v) for k, v in one["metric"].items()},
                    {
                        round((float(at) - start) / step): number
                        for at, value in one["values"]
                        if math.isfinite(number := float(value))
                    },
                )
                for one in _object(answer.body, self._base)["data"]["result"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise NodeUnready("the answer is not Prometheus': does --prometheus-url lead to it?") from error


def _object(text: bytes, where: str) -> Mapping[str, Any]:
    data = json_object(text)
    if data is None:
        raise NodeUnready(f"{where} answered with something else: is that Prometheus?")
    return data


def _reason(text: bytes) -> str:
    try:
        data = json.loads(text)
        return printable(str(data["error"]))[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "it does not say why"
