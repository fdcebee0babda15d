"""`helm test`, before a share is asked for: has some card one left?

Without, the pod of the next part would stay Pending until `--timeout`, and nobody would hear why.

Arguments: the agents' Service, the share's cores and bytes (100 cores: an idle card).
``AGENT_TOKEN`` is what the agents ask for, if anything. 1 if there is no room.
"""

import json
import os
import socket
import sys
import urllib.request
from typing import Any

SECONDS = 10
WHOLE = 100


def cards(address: str) -> list[dict[str, Any]]:
    """The cards that an agent may give; none where it does not answer, which the part before has told."""
    host = f"[{address}]" if ":" in address else address
    headers = {"Accept": "application/json", "Authorization": f"Bearer {os.environ.get('AGENT_TOKEN', '')}"}
    try:
        request = urllib.request.Request(f"http://{host}:5678/graph", None, headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found = json.load(answer)["cards"]
    except (OSError, ValueError, KeyError) as error:
        print(f"     agent {address}: {error}")
        return []
    return [c for c in found if c["healthy"] and not c["cordoned"] and not c["mig"]]


def has_room(card: dict[str, Any], cores: int, memory: int) -> bool:
    """Whether the share fits on it now."""
    if cores == WHOLE:
        return not card["holders"]
    return bool(card["cores_free"] >= cores and card["memory_free"] >= memory)


def room(service: str, cores: int, memory: int) -> bool:
    """Says how many cards have room; whether there is one."""
    try:
        found = sorted({str(i[4][0]) for i in socket.getaddrinfo(service, 5678, type=socket.SOCK_STREAM)})
    except OSError as error:
        print(f"     {service}: {error}")
        found = []
    offered = [card for address in found for card in cards(address)]
    fitting = sum(has_room(card, cores, memory) for card in offered)
    asked = "an idle card" if cores == WHOLE else f"{cores} % and {memory >> 20} MiB of it"
    print(f"{'ok  ' if fitting else 'FAIL'} room: {fitting} of {len(offered)} open cards have {asked} left")
    if not fitting:
        print("     retry a minute after a pod has ended; `--filter name=gpu-manager-test` tests the rest")
    return fitting > 0


if __name__ == "__main__":
    sys.exit(not room(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
