"""The agent of a node: its settings, and the composition that builds, connects, runs and stops its parts."""

import os
from typing import Final

_POLLING: Final = "poll,epoll1"
"""Names of gRPC's engines, the first that it has. An idle server wakes five times a second with ``poll`` and
ten times with ``epoll1``, whose second thread waits for the first; the agent has a handful of sockets."""

os.environ.setdefault("GRPC_POLL_STRATEGY", _POLLING)  # read once, when gRPC is first imported
