"""The conformance cases that need real parts, by number, and which of them no test here can try.

A test says with ``@pytest.mark.case(5, 45)`` which it tries. The list is the project's own; numbers that are
missing are tried on the stand-ins alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CASES: Final[Mapping[int, str]] = {
    1: "both resources are registered with their options",
    5: "a new kubelet socket: both are registered again",
    7: "a stream that is cut while the kubelet's socket stays: registered again",
    8: "an agent and its successor overlap: the resources come back",
    9: "the agent ends: nothing is offered, capacity stays",
    10: "the agent is killed: what was granted stays, nothing is granted twice",
    11: "a plugin without options is not used",
    12: "registration by the kubelet's plugin watcher",
    15: "an unhealthy card: offered less by that card, and back",
    18: "a pod's status tells of its unhealthy card, and no other's",
    24: "the second resource follows the first one's card, in both orders",
    25: "the scheduler's card is followed where it can be, else another is taken",
    27: "the answer arrives whole: environment, mounts, annotations",
    28: "two containers of a pod have a limit each",
    29: "an init container hands its ids on: no false refusal",
    30: "a sidecar has ids of its own for the pod's life",
    33: "the other resource fails after the first was granted: nothing is lost",
    34: "the agent's words become the pod's status, the next pod is well",
    36: "equal pods admitted in another order than bound: each has its own card",
    39: "injection by CDI",
    41: "PreStartContainer at each start",
    44: "a restarted container keeps ids and card",
    45: "a restarted kubelet: nothing is allocated anew, the books are equal",
    46: "a pod deleted while the kubelet is down is given back",
    47: "a succeeded pod is not admitted again, its ids are free",
    48: "a rebooted node: no stale grant",
    52: "the kubelet's listing is what the books say",
    53: "the kubelet's Get, and its error for a pod that is not there",
    54: "failed and ended pods leave the listing",
    55: "the limiter of the listing, shared with others",
    56: "the kubelet counts registrations and allocations",
    58: "the real scheduler asks the extender",
    59: "cards and node in one write",
    60: "admission ends between binding and watch: nothing over-committed",
    61: "preemption by card",
    63: "webhook and policies judge alike",
    64: "admission is away: other pods are not hindered",
}

UNTRIED: Final[Mapping[int, str]] = {
    12: "the agent registers by the kubelet's Register alone; one that did both would be registered twice",
}
"""Cases that no test can try, each with its reason."""
