"""How wrong a container's account of a card's time may be: half the width of an interval around it.

The library measures some launches by themselves and charges the others the mean of their kind (ADR 14), so
the account has a variance, which its page publishes. Errors that sampling does not show are added, as
observed on the modelled card with an H100's costs (bench/limits_core.py). In 95 of 100 cases the true use
must lie in the interval. Pure.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

CERTAIN: Final = 2.0
"""Standard deviations: 95 of 100 sums of many launches lie within them."""
LAUNCH_SECONDS: Final = 0.2e-6
"""What the pause between two kernels and the clock leave open of each launch."""
STARTS: Final = 0.005
"""What starts that are told by clocks leave open, as a part of the account, ..."""
SOME: Final = 0.004
"""... and as a share of the card, where anything ran: what waits for a function of the host, for a stream."""
TURNS: Final = 0.075
"""As a part of the account: what the card takes to turn from one process of a busy container to another is
charged as its use, and so is what its short kernels wait for one another."""
BUSY: Final = 0.75
"""Share of a card from which several processes of a container seldom leave it a pause between two turns."""
BESIDE: Final = 0.02
"""Share of a card: beside another container a kernel's wait for its turn is told from its work by length."""


def account_error(
    account: float, variance: float, launches: float, *, processes: int = 1, shared: bool = False
) -> float:
    """Half the width of the interval, as a share of the card.

    ``account`` is the account over some time as a share of the card, ``variance`` its variance over that time
    (a share, squared), ``launches`` the launches per second. ``processes``: the number of the container's
    processes; ``shared``: other containers used the card too.
    """
    if account <= 0:
        return 0.0
    turns = TURNS * account if processes > 1 and account > BUSY else 0.0
    unseen = SOME + STARTS * account + launches * LAUNCH_SECONDS + turns + (BESIDE if shared else 0.0)
    return min(1.0, CERTAIN * sqrt(max(0.0, variance)) + unseen)
