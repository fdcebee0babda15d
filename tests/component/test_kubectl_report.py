"""``kubectl vcuda report`` over the API stand-in, with the real admission service behind its proxy."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.agent.backends import newest_record
from gpu_manager.agent.config import Config
from gpu_manager.cli.kubectl.main import run
from gpu_manager.cli.main import PROGRAM
from sandbox.api import StandInApi
from tests.fakes.admission import Service, create, known
from tests.fakes.kubectl import ADMISSION, a_node, an_agent, said
from tests.fakes.sandbox import until
from tests.unit.test_agent_records import Node

pytestmark = pytest.mark.usefixtures("kubectl_login")
REPLICA = "/api/v1/namespaces/kube-system/pods/https:admission-0:9443/proxy"
OWN = "payroll-7"
TEXT = f"bound to node n1: 30 cores of card 0; {OWN} of GPU-0 had waited"


def a_cluster(api: StandInApi) -> None:
    """A node, an agent that names a holder, and one Event of ours beside one of another."""
    a_node(api, cards=1)
    holder = {"namespace": "default", "pod": OWN, "container": "c", "cores": 30, "memory": 1}
    an_agent(api, {"node": "n1", "version": "1.2.3", "cards": [{"index": 0, "holders": [holder]}]})
    labels = {"metadata": {"labels": {"app.kubernetes.io/component": "agent"}}}
    api.patch("pods", "agent-1", labels, "kube-system")
    about = {"kind": "Pod", "namespace": "default", "name": OWN, "uid": "1"}
    for at, component in enumerate(("gpu-quota-admission", "kubelet")):
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{at}", "namespace": "default"},
            "involvedObject": about, "reason": "Placed", "message": TEXT, "type": "Normal",
            "reportingComponent": component,
        }  # fmt: skip
        api.create(event)


def files_of(place: Path) -> dict[str, str]:
    with tarfile.open(place) as archive:
        return {
            member.name: stream.read().decode()
            for member in archive
            if (stream := archive.extractfile(member)) is not None
        }


def test_a_report_holds_all_and_names_nobody_and_its_decisions_are_judged_again(
    api: StandInApi,
    serve: Callable[..., Service],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_cluster(api)
    records = tmp_path / "ring"
    service = serve(None, records)
    api.serve_behind(ADMISSION, service.behind)
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "admission-0",
                "namespace": "kube-system",
                "labels": {"app.kubernetes.io/component": "admission"},
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "admission", "image": "a"}]},
        }
    )
    api.serve_behind(REPLICA, service.behind)
    asking = create(api, OWN, core=30)
    until(known(service, OWN))
    assert service.placed(asking, ["n1"]) == "n1"
    until(lambda: any(b'"bind"' in path.read_bytes() for path in records.iterdir()))
    place = tmp_path / "r.tar.gz"
    assert run(["report", "-f", str(place)]) == 0
    out, _ = said(capsys)
    assert "names are pseudonyms" in out
    assert "left out" not in out
    found = files_of(place)
    assert set(found) == {
        "README", "versions.json", "doctor.json", "events.jsonl", "nodes.jsonl", "left-out.json",
        "records/0/decisions-00000001.jsonl",
    }  # fmt: skip
    assert [name for name, text in found.items() if OWN in text] == []
    (event,) = map(json.loads, found["events.jsonl"].splitlines())
    holder: Any = json.loads(found["nodes.jsonl"])["cards"][0]["holders"][0]
    assert event["about"]["name"] == holder["pod"]
    assert event["message"].startswith("bound to node n0")
    assert holder["pod"] in event["message"]
    ring = tmp_path / "decisions-00000001.jsonl"
    ring.write_text(found["records/0/decisions-00000001.jsonl"])
    assert PROGRAM.run(["replay", str(ring)]) == 0
    assert "none differs" in said(capsys)[0]


def test_what_cannot_be_had_is_said_and_names_are_plain_where_that_is_asked_for(
    api: StandInApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_cluster(api)
    place = tmp_path / "r.tar.gz"
    assert run(["report", "--plain", "-f", str(place)]) == 0
    out, _ = said(capsys)
    assert "left out: admission: " in out
    assert "left out: records: " in out
    assert OWN in files_of(place)["events.jsonl"]
    assert run(["report", "-f", str(place)]) == 2
    assert "cannot write" in said(capsys)[1]


def test_what_an_agent_recorded_is_in_the_report_and_is_decided_again(
    api: StandInApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path / "ring", 1)
    for _ in range(20):
        node.go_on()
    node.recorder.write()
    config = Config(state=tmp_path, records_mib=8)
    (tmp_path / "ring").rename(tmp_path / "records")
    lines = [json.loads(line) for line in newest_record(config)]
    a_node(api, cards=1)
    an_agent(api, {"node": "n1", "version": "1.2.3", "cards": [], "lines": lines})
    labels = {"metadata": {"labels": {"app.kubernetes.io/component": "agent"}}}
    api.patch("pods", "agent-1", labels, "kube-system")
    place = tmp_path / "r.tar.gz"
    assert run(["report", "-f", str(place)]) == 0
    assert "left out: /records" not in said(capsys)[0]
    (tmp_path / "agents").mkdir()
    written = files_of(place)["agents/0/decisions-00000001.jsonl"]
    assert "payroll-1-x" not in written
    (tmp_path / "agents" / "decisions-00000001.jsonl").write_text(written)
    said(capsys)
    assert PROGRAM.run(["replay-node", str(tmp_path / "agents")]) == 0
    assert "none differs" in said(capsys)[0]
