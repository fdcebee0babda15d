"""What a protected container is charged beside best-effort ones on a card where kernels run out, against the
card's own account: a shape in which most of the card's time goes by between its kernels.
"""

from __future__ import annotations

import pytest

from bench.protected_accounts import Shape, errors


@pytest.mark.timed
def test_a_protected_container_is_charged_what_it_had_where_others_pass_between_its_kernels() -> None:
    shape = Shape("kernel", 100, 200, 0.9, [("stream", 50), ("graph", 200), ("threads", 10_000)])
    charged_more = errors(shape)[0]
    assert abs(charged_more) <= 3.5  # 3.7 and 5.8 were seen where what it met counted for half of the time
