"""What a protected container is charged beside best-effort ones on a card where kernels run out, against the
card's own account: shapes in which most of the card's time went by between its kernels.
"""

from __future__ import annotations

import pytest

from bench.protected_accounts import Shape, errors

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(
    "shape",
    [
        Shape("kernel", 100, 200, 0.9, [("stream", 50), ("graph", 200), ("threads", 10_000)]),
        Shape("kernel", 20, 1000, 0.5, [("threads", 10_000)]),
    ],
    ids=["long requests beside three jobs", "requests whose first kernels each waited for a long one"],
)
def test_a_protected_container_is_charged_what_it_had(shape: Shape) -> None:
    charged_more = errors(shape)[0]
    assert abs(charged_more) <= 2
