"""Types command lines that a program printed, as a person would: word by word, nothing added.

``kubectl vcuda`` is the program itself; of kubectl's own commands those are known that advice may contain.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from gpu_manager.cli.kubectl.main import run
from sandbox.api import StandInApi
from tests.fakes.sandbox import until

Obj = Mapping[str, Any]


class Typist:
    """Against an API stand-in. ``replaced`` is what a controller does once a pod of it was deleted."""

    def __init__(self, api: StandInApi, replaced: Callable[[Obj], None]) -> None:
        self._api = api
        self._replaced = replaced

    def type(self, line: str) -> None:
        """Carry the line out. Fails where a command would, or where nobody here knows it."""
        match shlex.split(line):
            case ["kubectl", "vcuda", *words]:
                assert run(words) == 0, line
            case ["kubectl", "-n", namespace, "delete", "pod", *names]:
                for name in names:
                    found = self._api.get("pods", name, namespace)
                    assert found is not None, line
                    self._api.delete("pods", name, namespace)
                    until(lambda name=name: self._api.get("pods", name, namespace) is None)  # type: ignore[misc]
                    self._replaced(found)
            case ["kubectl", "-n", namespace, "wait", "--for=condition=PodScheduled", "pod", "-l", labels, _]:
                wanted = dict(one.split("=") for one in labels.split(","))
                until(lambda: all(map(_scheduled, self._pods(namespace, wanted))))
                assert self._pods(namespace, wanted), line
            case ["kubectl", "-n", namespace, "wait", "--for=condition=PodScheduled", named, _]:
                name = named.removeprefix("pod/")
                until(lambda: _scheduled(self._api.get("pods", name, namespace) or {}))
            case _:
                raise AssertionError(f"nobody knows what to type for: {line}")

    def _pods(self, namespace: str, labels: Mapping[str, str]) -> list[Obj]:
        pods = [p for p in self._api.list("pods") if p["metadata"]["namespace"] == namespace]
        return [p for p in pods if labels.items() <= (p["metadata"].get("labels") or {}).items()]


def _scheduled(pod: Obj) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))
