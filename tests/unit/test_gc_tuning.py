"""The garbage collector of the admission service."""

import gc

from gpu_manager.runtime.program import spare_pauses


def test_no_question_waits_for_a_collection_of_all_that_is_kept() -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # whatever another test of this process has left
    ran: list[int] = []
    gc.callbacks.append(lambda phase, info: ran.append(info["generation"]) if phase == "stop" else None)
    try:
        spare_pauses()
        ran.clear()
        kept = [[number] for number in range(400_000)]
        assert len(kept) == 400_000
        assert max(ran) == 1, "without it the oldest is collected after some 70,000"
        assert gc.get_threshold()[0] > 700
        assert gc.get_threshold()[1] == 10
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
        gc.unfreeze()
