"""The elastic ceiling of a running pod, in the whole agent: from the annotation to the container's page."""

from __future__ import annotations

from pathlib import Path

from gpu_manager.domain.contract import CORE_LIMIT
from tests.component.test_agent import World
from tests.fakes.node import container, pod
from tests.fakes.waiting import until
from vcuda.page.limits import read_limits


def test_annotating_a_running_pod_is_enough(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        result = world.run(pod("one", container("c", 30, 8)))
        (mount,) = [m for m in result.containers["c"].mounts if m.container_path == "/etc/vcuda/limits"]

        def in_force() -> list[int | None]:
            return [card.core_ceiling for card in read_limits(Path(mount.host_path).read_bytes()).cards]

        assert in_force() == [30]
        world.api.patch("pods", "one", {"metadata": {"annotations": {CORE_LIMIT: "80"}}})
        until(lambda: in_force() == [80])
