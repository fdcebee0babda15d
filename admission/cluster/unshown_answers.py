"""Answers to pods that asked for another size: written, and not shown by the watch yet."""

from __future__ import annotations

from admission.cluster.pod_view import PodView, answered
from gpu_manager.domain.contract import RESIZED
from gpu_manager.domain.pod import PodUid


class UnshownAnswers:
    """Each answer, and the pod as the watch has shown it last. Not thread-safe."""

    def __init__(self) -> None:
        self._answers: dict[PodUid, tuple[str, PodView]] = {}

    def shown(self, occupant: PodView) -> PodView:
        """The pod that the watch shows, as it counts: with its answer, until that or another is shown."""
        text, before = self._answers.get(occupant.uid, ("", occupant))
        if not text:
            return occupant
        written = occupant.pod.annotations.get(RESIZED)
        if written == text or written != before.pod.annotations.get(RESIZED):
            del self._answers[occupant.uid]  # it is written, or another replica's is
            return occupant
        self._answers[occupant.uid] = text, occupant
        return answered(occupant, text)

    def give(self, uid: PodUid, text: str | None, known: PodView | None) -> PodView | None:
        """Count with this answer from now on, with none for None: the pod is written so, or was not.

        Returns the pod as the watch has shown it last, ``known`` if no answer was given before.
        """
        _, before = self._answers.pop(uid, ("", known))
        if before is not None and text is not None:
            self._answers[uid] = text, before
        return before

    def forget(self, uid: PodUid) -> None:
        """The pod is gone."""
        self._answers.pop(uid, None)
