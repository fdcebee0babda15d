"""``kubectl vcuda report``: one archive from which others can find out what went wrong, and no name in it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import gpu_manager
from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.doctor import document
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, log_in
from gpu_manager.cli.kubectl.version import own_version
from gpu_manager.domain.contract import ADMISSION_NAME, TOKEN_HEADER
from gpu_manager.domain.doctor import CLUSTER_CHECKS, examine
from gpu_manager.domain.doctor.facts import Facts
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.names import WORD, Pseudonyms
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.runtime.arguments import Option

_MOST_BYTES: Final = 16 << 20  # of records, compressed: the newest files
_MOST_LINES: Final = 100_000  # of agents' records, each of some 800 bytes
_MOST_EVENTS: Final = 2000
_COMPONENTS: Final = (ADMISSION_NAME, "gpu-manager")
_PORT: Final = 9443  # of the service's pods
_RECORD: Final = re.compile(r"decisions-\d{8}\.jsonl")
_ABOUT: Final = """\
A report of gpu-manager: versions, findings of doctor, the agents' books, Events and recorded decisions.
{names}
Judge the decisions again: gpu-manager replay records/0 (one directory for each replica of admission), and
gpu-manager replay-node agents/0 (one for each agent that records)
"""
_HIDDEN: Final = """\
Names of nodes, pods, namespaces, containers and labels, UIDs, UUIDs and addresses are pseudonyms: equal
names have equal ones, in the same order. There is no list of which is which. Models of cards, figures and
times are plain. Of environment variables only the cards and capabilities that NVIDIA's two name are there."""
_PLAIN: Final = "Names are plain (--plain)."

Lines = Callable[[], Iterator[Any]]
"""The documents of one file, read anew with each call."""


def command(
    file: Annotated[str, Option("--file", "-f", metavar="FILE", help="Where to write it.")] = "",
    plain: Annotated[bool, Option("--plain", help="Names as they are, no pseudonyms.")] = False,
    admission: service.Admission = service.USUAL,
    access: Access = BY_KUBECONFIG,
) -> None:
    """Write what a bug report needs into one archive: versions, doctor's findings, books, Events, records.

    Names, labels, UIDs, UUIDs and addresses become pseudonyms, in texts too; decisions in it can still be
    judged again. Needs get on services/proxy and pods/proxy, and list on pods and events; what you may not
    see is left out and said.

    Examples:
      kubectl vcuda report
      kubectl vcuda report -f report.tar.gz --plain
    """
    place = Path(file or f"vcuda-report-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    with log_in(access) as login:
        files = gathered(login, admission)
    size = write(place, files, plain=plain)
    print(f"{place}: {size / (1 << 20):.1f} MiB, {'names are plain' if plain else 'names are pseudonyms'}")
    for name, why in next(files["left-out.json"]()).items():
        print(f"left out: {name}: {why}")


def gathered(login: Login, admission: str) -> Mapping[str, Lines]:
    """The files of a report by their names, with names as they are."""
    from gpu_manager.adapters.diagnosis.cluster import gather_cluster  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.agents import find_agents  # noqa: PLC0415  # as in log_in

    cluster = login.connection.request("ask it", "GET", "/version")  # an answer there must be
    silent: dict[str, str] = {}

    def tried(what: str, work: Callable[[], Any], instead: Any) -> Any:
        try:
            return work()
        except (NodeUnready, service.Silent) as why:
            silent[what] = str(why)
            return instead

    places = tried("agents", lambda: find_agents(login.connection), {})
    pages = {}
    for page in ("/version", "/graph"):
        pages[page], missed = service.ask_agents(login, places, places, page, lambda answer: answer)
        silent |= {f"{page} of {node}": why for node, why in missed.items()}
    versions = {
        "kubectl": own_version(),
        "cluster": cluster,
        "admission": tried("admission", lambda: service.ask(login, admission, "/version"), {}),
        "by_node": {node: mapping(told).get("version") for node, told in pages["/version"].items()},
    }
    facts = tried("doctor", lambda: gather_cluster(login.connection), None)
    found = {} if facts is None else document(examine(Facts(time.time(), cluster=facts), CLUSTER_CHECKS))
    events = tried("events", lambda: list(_events(login)), [])
    agents, missed = service.ask_agents(login, places, places, "/records", _recorded_lines, named=True)
    silent |= {f"/records of {node}": why for node, why in missed.items()}
    records = tried("records", lambda: dict(_records(login, admission)), {})
    return {
        "versions.json": _one(versions),
        "doctor.json": _one(found),
        "events.jsonl": lambda: iter(events),
        "nodes.jsonl": lambda: iter(pages["/graph"].values()),
        **{f"records/{name}": _entries(content) for name, content in records.items()},
        **dict(_of_agents(agents, silent)),
        "left-out.json": _one(silent),
    }


def write(place: Path, files: Mapping[str, Lines], *, plain: bool) -> int:
    """Write the archive, readable by its owner alone; returns its size. Raises RequestInvalid."""
    pseudonyms = None if plain else Pseudonyms(own_words())
    if pseudonyms is not None:
        for each in files.values():
            for one in each():
                pseudonyms.see(one)
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
            about = _ABOUT.format(names=_HIDDEN if pseudonyms else _PLAIN)
            _add(archive, "README", about.encode())
            for name, each in files.items():
                lines = (_line(one if pseudonyms is None else _hidden(pseudonyms, one)) for one in each())
                _add(archive, name, b"".join(lines))
        return place.stat().st_size
    except OSError as error:
        raise RequestInvalid(f"cannot write {quoted(str(place))}: {error.strerror}") from error


def own_words() -> frozenset[str]:
    """The words of this program's sources: of its texts, fields and constants."""
    root = Path(gpu_manager.__file__).parent
    sources = [path for place in (root, root.parent / "admission") for path in place.rglob("*.py")]
    return frozenset(word for path in sources for word in WORD.findall(path.read_text(encoding="utf-8")))


def _hidden(pseudonyms: Pseudonyms, document: Any) -> Any:
    found = pseudonyms.replaced(document)
    for entry in found if isinstance(found, list) else ():
        if entry.get("k") == "ring":
            entry["pseudonyms"] = True
    return found


def _recorded_lines(answer: Any) -> Sequence[Any]:
    found = mapping(answer).get("lines")
    return found if isinstance(found, list) else ()


def _of_agents(agents: Mapping[str, Sequence[Any]], silent: dict[str, str]) -> Iterator[tuple[str, Lines]]:
    """The files of agents that record, numbered, up to :data:`_MOST_LINES` in all."""
    left, number = _MOST_LINES, 0
    for node, lines in sorted(agents.items()):
        if left < len(lines):
            silent[f"/records of {node}"] = "the report has enough records of agents"
        elif lines:
            yield f"agents/{number}/decisions-00000001.jsonl", partial(iter, lines)
            left, number = left - len(lines), number + 1


def _one(document: Any) -> Lines:
    return lambda: iter((document,))


def _entries(content: bytes) -> Lines:
    """The entries of recorded decisions; a line that is cut off ends them."""

    def read() -> Iterator[Any]:
        for line in io.BytesIO(content):
            try:
                yield json.loads(line)
            except ValueError:
                return

    return read


def _line(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = len(content), 0o600, int(time.time())
    archive.addfile(about, io.BytesIO(content))


def _events(login: Login) -> Iterator[Mapping[str, Any]]:
    """The project's own Events, the newest last."""
    from gpu_manager.adapters.kube.streams import Pages  # noqa: PLC0415  # as in log_in
    from gpu_manager.domain.cluster.pod_events import read_pod_event  # noqa: PLC0415  # as in log_in

    found = []
    for obj in Pages(login.connection, "list Events", "/api/v1/events").read():
        event, about = read_pod_event(obj), mapping(obj.get("involvedObject"))
        if event.source in _COMPONENTS:
            subject = {key: text(about.get(key)) for key in ("kind", "namespace", "name", "uid")}
            found.append({**asdict(event), "about": subject})
    return iter(sorted(found, key=lambda one: one["last"] or 0.0)[-_MOST_EVENTS:])


def _records(login: Login, admission: str) -> Iterator[tuple[str, bytes]]:
    """Each replica's newest files of recorded decisions; the leader's have the decisions. Raises Silent,
    NodeUnready.
    """
    service.ask(login, admission, "/records")  # says why there are none
    left = _MOST_BYTES
    headers = {TOKEN_HEADER: f"Bearer {login.connection.token}"}
    for number, root in enumerate(_replicas(login, admission) or [service.root(admission)]):
        names = json.loads(login.connection.text("list records", f"{root}/records", headers=headers))["files"]
        for name in sorted(filter(_RECORD.fullmatch, names), reverse=True):
            answer = login.connection.page(f"read {name}", "GET", f"{root}/records/{name}", None, headers)
            left -= len(answer.body)
            if answer.status != HTTPStatus.OK or left < 0:
                break
            yield f"{number}/{name}", gzip.decompress(answer.body)


def _replicas(login: Login, admission: str) -> Sequence[str]:
    """The roots of the pages of the service's pods."""
    from gpu_manager.adapters.kube.connection import pod_page, pods_path  # noqa: PLC0415  # as in log_in
    from gpu_manager.adapters.kube.streams import Pages  # noqa: PLC0415  # as in log_in

    namespace = admission.partition("/")[0]
    query = {"labelSelector": "app.kubernetes.io/component=admission"}
    pods = Pages(login.connection, "list the service's pods", pods_path(namespace), query).read()
    names = sorted(text(mapping(pod.get("metadata")).get("name")) for pod in pods)
    return [pod_page(namespace, name, _PORT, "", "https") for name in names]
