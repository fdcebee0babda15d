"""What a lost account may write past its own names: the writes of :mod:`tests.deploy.rights` on a real API
server.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Row
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, SETS
from tests.deploy.rights import OWN, PAST, Accounts
from tests.fakes.sandbox import short_directory

_WITHOUT = "--set=policies.agent=false,policies.admission=false"


def rows(*, full: bool) -> Iterator[Row]:
    """Count the writes past their own names that the tokens of the three accounts got through."""
    name, unit, bar = "rights_past", "writes", "= 0"
    if not THERE or not HELM.exists():
        yield Row(name, None, unit, bar, full=full, note=ABSENT if not THERE else "no helm: make tools")
        return
    passed, refused = _judged()
    without, _ = _judged(_WITHOUT)
    note = (
        f"of {len(PAST)} writes: {', '.join(passed) or 'none'}; {len(OWN) - len(refused)} of {len(OWN)} "
        f"needed ones taken{''.join(f', not {one}' for one in refused)}; baseline: without the policies; "
        f"{SERVERS[-1].parent.name.removeprefix('bin-')}, the accounts' own tokens"
    )
    yield Row(name, len(passed), unit, bar, len(without), full, note)


def _judged(*values: str) -> tuple[list[str], list[str]]:
    """What passed of what must not, and what was refused of what must pass."""
    with short_directory() as directory:
        server = Server(directory, SERVERS[-1])
        try:
            server.start()
            said = server.run(
                HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["terms"], *values
            )
            if "STATUS: deployed" not in said:
                raise RuntimeError(said)
            accounts = Accounts(server)
            if not values:
                accounts.settle()
            passed = [f"{w.account}: {w.what}" for w in PAST if accounts.write(w)[0] < 400]
            needed = () if values else OWN
            return passed, [f"{w.account}: {w.what}" for w in needed if accounts.write(w)[0] >= 400]
        finally:
            server.stop()
