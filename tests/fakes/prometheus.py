"""A real Prometheus on loopback, from the distribution's package, for as long as a test lasts."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from sandbox.runtime import free_port
from tests.fakes.sandbox import until
from tests.fakes.waiting import PATIENCE

PACKAGE = "Debian's package prometheus is not installed (apt-get install prometheus)"
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason=PACKAGE
)


def promtool(*arguments: str | Path) -> None:
    """Run it; what it says is the failure."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """Scrapes and evaluates each ``interval``; ``jobs`` are scrape configurations, ``rules`` a file's content."""

    def __init__(
        self, directory: Path, jobs: Sequence[Mapping[str, Any]], rules: str = "", interval: str = "1s"
    ) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        config = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": ["rules.yaml"] if rules else [],
            "scrape_configs": [*jobs],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        if rules:
            (directory / "rules.yaml").write_text(rules)

    def __enter__(self) -> Self:
        port = free_port(0)
        self.url = f"http://127.0.0.1:{port}"
        arguments = [
            "prometheus",
            f"--config.file={self._directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=self._directory)
        try:
            until(self._ready)
        except AssertionError:
            self.__exit__()
            raise AssertionError((self._directory / "log").read_text()) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        """The ``data`` of an answer; what Prometheus says where it refuses."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=PATIENCE
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query}: {error.read().decode()}") from None

    def query(self, text: str) -> list[dict[str, Any]]:
        """The vector that a query gives now."""
        found = self.get("query", query=text)
        return (
            [{"metric": {}, "value": found["result"]}] if found["resultType"] == "scalar" else found["result"]
        )
