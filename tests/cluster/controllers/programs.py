"""Each controller at one pinned version of its own module, with the dependencies that it pins, and its image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.cluster import build, images
from tests.cluster.cluster import Cluster
from tests.cluster.parts import BUILD, GoPrograms, MissingError


@dataclass(frozen=True, slots=True)
class Controller:
    """``digest`` is that of the module's files by Go's own count (``h1:…``); ``program`` lies at ``place`` in the image."""

    name: str
    module: str
    version: str
    digest: str
    package: str
    program: str
    place: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        """Its module's files: charts and manifests of the same version are among them."""
        return BUILD / "source" / f"{self.name}-{self.version}"

    @property
    def image(self) -> str:
        """Its name in the cluster."""
        return f"cluster-test/{self.name}:{self.version}"

    @property
    def programs(self) -> GoPrograms:
        """What is built of it."""
        name, directory = f"{self.name} {self.version}", BUILD / f"{self.name}-{self.version}"
        return GoPrograms(name, self.source, directory, {self.program: self.package}, self.variables)

    def make(self) -> None:
        """Download and build what is not there yet. Raises MissingError."""
        if not self.source.exists():
            self._fetch()
        if not self.programs.built:
            build.build(self.programs)

    def load(self, cluster: Cluster) -> None:
        """Give the cluster its image. Raises MissingError: it is not built."""
        if not self.programs.built:
            raise MissingError(f"{self.programs.name} is not built: make cluster CMD=controllers")
        program = self.programs.paths[self.program]
        cluster.load(images.of_program(program, self.place, self.image, cluster.scratch / "images"))

    def _fetch(self) -> None:
        go = shutil.which("go")
        if go is None:
            raise MissingError(f"Go is not installed, and {self.name} is not built: get Go 1.26 or newer")
        done = subprocess.run(
            [go, "mod", "download", "-json", f"{self.module}@{self.version}"],
            env={**os.environ, **build.ENVIRONMENT},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(done.stdout or "{}")
        if done.returncode or found["Sum"] != self.digest:
            why = found.get("Error") or found.get("Sum") or done.stderr.strip()
            raise MissingError(f"{self.module}@{self.version} is not what was wanted: {why}")
        draft = self.source.with_name(f"draft-{self.source.name}")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(found["Dir"], draft)
        for path in (draft, *draft.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)  # Go's own copy is read-only
        draft.rename(self.source)


KUEUE: Final = Controller(
    "kueue",
    "sigs.k8s.io/kueue",
    "v0.17.0",
    "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
    "./cmd/kueue",
    "kueue",
    "manager",
    {"sigs.k8s.io/kueue/pkg/version.GitVersion": "v0.17.0"},
)
KUBERAY: Final = Controller(
    "kuberay",
    "github.com/ray-project/kuberay/ray-operator",
    "v1.5.0",
    "h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=",
    ".",
    "ray-operator",
    "manager",
)
COSCHEDULING: Final = Controller(  # a kube-scheduler 1.33 with the plugins of its repository
    "coscheduling",
    "sigs.k8s.io/scheduler-plugins",
    "v0.33.5",
    "h1:9u4QAYbuoxa59aStrJKP4Bii2EQrZmGPN2tzvfs2gL0=",
    "./cmd/scheduler",
    "scheduler",
    "bin/kube-scheduler",
    {"k8s.io/component-base/version.gitVersion": "v1.33.5"},  # of its Kubernetes: it judges its gates by it
)
KNATIVE: Final = Controller(
    "knative",
    "knative.dev/serving",
    "v0.42.2",
    "h1:yKieg3MeNvpVz+4JJPbvmpee3v3LK3zO5h5HJBtzaNk=",
    "./cmd/webhook",
    "webhook",
    "webhook",
)
ALL: Final = (KUEUE, KUBERAY, COSCHEDULING, KNATIVE)


def main() -> None:
    """Build all of them. Raises MissingError."""
    for controller in ALL:
        controller.make()
