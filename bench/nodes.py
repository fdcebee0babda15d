"""The agent on nodes as they are: whether its port can be silenced, and whether it injects as the runtime
can.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench import cluster
from bench.rows import Row, in_memory, percentile
from bench.world import World
from tests.component.driver_roots import Objects
from tests.fakes import node_cases
from tests.fakes.distribution_roots import PUBLISHED
from tests.fakes.mounted import ROOTS, SEEING, MountedNode
from tests.fakes.node_roots import DEFAULTS, EVERY, LEFT_BEHIND
from tests.fakes.node_states import EVENTS, ChangingNode
from tests.fakes.power_cut import CUTS, LOSSES, stranded_after

PARTS = ("silence", "detect", "cases", "states", "injection", "power-cut", "cluster")
_CONNECTIONS = 1000
_PROBE_SECONDS, _SCRAPE_SECONDS = 5.0, 10.0  # the chart's timeout of a probe, Prometheus' of a scrape
_SCRAPE = {  # as Prometheus 3 sends them
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
}
_PODS = 50
_ORDERS = 300
_NAMED_SECONDS = 10.0


def rows(*, full: bool, only: str = "") -> list[Row]:
    """Run it; ``only`` is one of :data:`PARTS`."""
    found = []
    if only in ("", "silence"):
        found.append(_silenced(full=full))
    if only in ("", "detect"):
        found.append(_detected())
    if only in ("", "cases"):
        found.append(_cases())
    if only in ("", "states"):
        found.append(_states(full=full))
    if only in ("", "injection"):
        found.append(_unseen())
    if only in ("", "power-cut"):
        found.append(_stranded())
    if only in ("", "cluster"):
        found += cluster.beside_others(cluster.recorded())
    return found


def _detected() -> Row:
    """Detection over nodes made of files; where they are documented defaults, and where others left
    theirs.
    """
    wrong = []
    for made in (*EVERY, *PUBLISHED):
        with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
            strategy, why = made.detected(made.make(Path(place)))
        if strategy is not made.wanted:
            wrong.append(f"{made.name}: {strategy.value} ({why})")
    read = (
        f"of {len(DEFAULTS)} default configurations (containerd 1.6 to 2.1, CRI-O, k3s, RKE2, k0s, MicroK8s, "
        f"Docker with cri-dockerd, kind), {len(LEFT_BEHIND)} nodes with files that other runtimes left, and "
        f"{len(PUBLISHED)} as clouds and distributions publish their defaults"
    )
    return Row("detect_wrong", len(wrong), "nodes", "= 0", full=True, note="; ".join(wrong) or read)


def _cases() -> Row:
    """Nodes as they were reported in public: their files, their driver, their cards."""
    if not node_cases.FOLDER.is_dir():
        return Row(
            "node_cases_wrong", None, "cases", "= 0", note="the reported cases are not on this machine"
        )
    wrong = node_cases.wrong()
    read = f"of {len(set(node_cases.given()))} files and roots that users reported of nodes, each a test"
    note = "; ".join(f"{name}: {why}" for name, why in wrong.items()) or read
    return Row("node_cases_wrong", len(wrong), "cases", "= 0", full=True, note=note)


def _states(*, full: bool) -> Row:
    """Random orders of what happens to a node, on a modelled clock."""
    orders = _ORDERS if full else _ORDERS // 10
    wrong, done = [], Counter[str]()
    with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
        objects = Objects(Path(place))
        for seed in range(orders):
            here = Path(place) / str(seed)
            with ChangingNode(here, objects, seed) as node:
                wrong += [f"order {seed}: {one}" for one in node.run()]
                done.update(node.done)
            shutil.rmtree(here)
    read = (
        f"of {done['admitted']} pods bound by what the agent had published and {done['started']} starts in "
        f"{orders} random orders of {sum(done[one] for one in EVENTS)} events: "
        f"driver gone ({done['driver gone']}) and back, "
        f"/dev/nvidia-uvm missing ({done['uvm missing']}), another plugin beside ({done['plugin beside']}), "
        f"containers and agent restarted with another way of injection ({done['toolkit changed']}); a pod "
        "failed at its admission, a container started without a file or node of its card, or a card stayed "
        f"closed on a whole node; {done['start waited']} starts were tried again, on a modelled clock"
    )
    note = "; ".join(wrong) or read
    return Row("node_states_failed_pods", len(wrong), "pods", "= 0", full=full, note=note)


def _unseen() -> Row:
    """Containers whose mounts differ from their grant, on recorded process trees and a modelled clock."""
    wrong, longest = [], 0.0
    for made in ROOTS:
        with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
            named = MountedNode(Path(place), made).named_after(_NAMED_SECONDS)
        longest = max(longest, named or 0.0)
        if (named is None) is not made.sound:
            wrong.append(f"{made.name}, {made.tree}")
    read = (
        f"of {len(ROOTS)} nodes ({len(SEEING)} recorded process trees), "
        f"{sum(not one.sound for one in ROOTS)} with a container whose mounts differ from its grant, those "
        f"not named within {_NAMED_SECONDS:.0f} s of a modelled clock, or named although they do not differ; "
        f"longest {longest:.0f} s after the API shows the container"
    )
    return Row("injection_unseen", len(wrong), "nodes", "= 0", full=True, note="; ".join(wrong) or read)


def _stranded() -> Row:
    """Containers without their CDI spec after a power cut in the middle of an allocation."""
    stranded = []
    with tempfile.TemporaryDirectory(prefix="vcuda-bench-") as place:
        objects = Objects(Path(place))
        for cut in CUTS:
            stranded += [f"{cut.name}: {one}" for one in stranded_after(Path(place) / cut.name, objects, cut)]
    read = (
        f"over {len(CUTS)} states of the disk: each of {len(LOSSES)} losses of what one allocation left "
        f"unsynced a moment ago, with each of the next one's, whose books were saved or not; specs and pages "
        f"gone with the memory"
    )
    note = "; ".join(stranded) or read
    return Row("power_cut_stranded", len(stranded), "containers", "= 0", full=True, note=note)


def _silenced(*, full: bool) -> Row:
    seconds = 60 if full else 15
    with ExitStack() as stack:
        pages = stack.enter_context(in_memory()) / "pages"
        world = stack.enter_context(World(profile="a100x8", seed=3, reclaim_seconds=30.0, pages=pages))
        for _ in range(_PODS):
            world.kubelet.admit(world.bind(world.create([("c", 10, 10)]), None))
        address = f"http://127.0.0.1:{world.port}"
        bare = [_scraped(address) for _ in range(10)]
        with subprocess.Popen(
            [sys.executable, "-m", "bench.hostile_connections", str(world.port), str(_CONNECTIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as hostile:
            if hostile.stdout is None or hostile.stdin is None or hostile.stdout.readline() != "open\n":
                raise RuntimeError("the hostile connections were not opened")
            scrapes, probes, until = [], [], time.monotonic() + seconds
            while time.monotonic() < until:
                probes += [_probed(f"{address}/{name}") for name in ("healthz", "readyz")]
                scrapes.append(_scraped(address))
                time.sleep(0.2)
            hostile.stdin.close()
            opened = int(hostile.stdout.readline())
    lost = sum(one is None for one in (*scrapes, *probes))
    took = [one for one in scrapes if one is not None]
    probed = [one for one in probes if one is not None]
    return Row(
        "silenced_scrapes",
        lost,
        "requests",
        "= 0",
        full=full,
        note=f"of {len(scrapes)} scrapes, with Prometheus' headers, answered whole as gzipped OpenMetrics, "
        f"and {len(probes)} probes in {seconds} s, beside {_CONNECTIONS} "
        "connections of 50 addresses, silent, half a request, or a scrape whose answer is not read, opened "
        f"{opened} times; a scrape took at most {max(took, default=0) * 1e3:.0f} ms, a probe "
        f"{max(probed, default=0) * 1e3:.0f}; with nobody else connected a scrape took "
        f"{percentile([one or 0.0 for one in bare], 50) * 1e3:.0f} ms (median)",
    )


def _scraped(address: str) -> float | None:
    """Seconds to a whole answer in the format and encoding that Prometheus prefers; None without one."""
    started = time.perf_counter()
    try:
        asked = urllib.request.Request(f"{address}/metric", headers=_SCRAPE)
        with urllib.request.urlopen(asked, timeout=_SCRAPE_SECONDS) as answer:
            body, kind = gzip.decompress(answer.read()), answer.headers["Content-Type"]
    except (urllib.error.URLError, OSError, EOFError):
        return None
    whole = body.endswith(b"# EOF\n") and kind.startswith("application/openmetrics-text")
    return time.perf_counter() - started if whole else None


def _probed(url: str) -> float | None:
    """Seconds to a whole answer of 200; None if there was none."""
    started = time.perf_counter()
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as answer:
            answer.read()
    except (urllib.error.URLError, OSError):
        return None
    return time.perf_counter() - started
