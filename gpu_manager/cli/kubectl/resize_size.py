"""The size that somebody types, and the annotation that it makes of the one before."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.resize.sizes import WantedSize, read_wanted, with_size
from gpu_manager.domain.resources import CORES_PER_CARD, Amount


@dataclass(frozen=True, slots=True)
class AskedSize:
    """What was typed: the container, empty for the only one; hundredths of a card and a quantity of memory,
    None and empty where nothing was said. Neither means the size of the spec.
    """

    container: str
    cores: int | None
    memory: str

    @property
    def is_reset(self) -> bool:
        """True if the size of the spec is asked for."""
        return not self.cores and not self.memory

    @property
    def shown(self) -> str:
        """What was typed, for people."""
        return " and ".join(filter(None, (f"{self.cores} cores" if self.cores else "", self.memory)))

    def container_of(self, pod: Pod) -> str:
        """The container that is meant. Raises RequestInvalid: none is named, and there is not just one."""
        if self.container:
            return self.container
        names = [c.name for c in pod.containers if c.core is not None and 0 < c.core < CORES_PER_CARD]
        who = f"pod {pod.key}" if pod.uid else "the template"
        if not names:
            raise RequestInvalid(
                f"{who} has no container with a part of a card, and nothing else changes its size"
            )
        if len(names) > 1:
            raise RequestInvalid(
                f"{who} has {len(names)} containers with a part of a card ({printable(', '.join(names))}): "
                "name one with --container"
            )
        return names[0]

    def written(self, before: str | None, container: str, given: Amount | None = None) -> str | None:
        """The annotation with this size: what was not typed stays as it was asked for ``before``, else as it
        was ``given`` for the workload's sake, else it is as in the spec. None if it then asks for nothing.
        """
        if self.is_reset:
            return with_size(before, container, {})
        try:
            asked = (read_wanted(before) if before else {}).get(container, WantedSize())
        except RequestInvalid:
            asked = WantedSize()
        if given is not None and asked == WantedSize():
            asked = WantedSize(given.cores, given.memory)
        size = {"cores": self.cores or asked.cores, "memory": self.memory or asked.memory}
        return with_size(before, container, {key: value for key, value in size.items() if value is not None})
