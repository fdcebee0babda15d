"""``gpu-manager sandbox``: bad input, one running sandbox for many terminals, a clean and quick end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from gpu_manager.adapters import profiles
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.cli.main import run
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.legal_values import check_pod
from sandbox.api import StandInApi
from sandbox.commands import FAULTS, apply, delete
from sandbox.control import SandboxOrder, send
from sandbox.demo.stage import PODS, manifest
from sandbox.picture import CardRow, Holder, Picture, PodRow
from sandbox.simulated_cluster import LOCK, default_directory
from sandbox.table import card_line, draw, plain
from tests.fakes.background import SIGINT_IGNORED
from tests.fakes.sandbox import alive, short_directory, until
from tests.fakes.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
NGINX = ROOT / "docs/examples/nginx.yaml"


class Command:
    """One ``gpu-manager sandbox`` in a process of its own."""

    def __init__(self, directory: Path, *arguments: str, started_by: Sequence[str] = ()) -> None:
        self.directory = directory
        self.output = directory.with_name(f"{directory.name}.out")
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [*started_by, *program("--directory", str(directory), *arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_running(self) -> None:
        until(lambda: self.process.poll() is not None or "Ctrl-C ends it" in self.text())
        assert self.process.poll() is None, self.text()

    def text(self) -> str:
        return self.output.read_text()

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            program("--directory", str(self.directory), *arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)


def scrape(port: str) -> str:
    """The agent's metrics, empty while it does not answer."""
    link = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)
    try:
        link.request("GET", "/metric")
        return link.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        link.close()


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from gpu_manager.cli.main import main; main()", "sandbox", *arguments]


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "s"


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """The one line of a command line that ends with 2."""
    assert run(["sandbox", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_an_unknown_profile_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    line = refusal(capsys, ["--directory", str(place), "--profile", "b200x8"])
    assert "'b200x8'" in line
    assert "a100x8" in line


def test_an_unknown_topology_policy_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    line = refusal(capsys, ["--directory", str(place), "--topology-policy", "strict"])
    assert "strict: one of none, best-effort, restricted, single-numa-node" in line
    assert not place.exists()


def test_a_matrix_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    place.mkdir()
    text = place / "matrix.txt"
    text.write_text("no matrix at all\n")
    assert "matrix.txt" in refusal(capsys, ["--directory", str(place / "x"), "--profile", str(text)])


def test_a_manifest_that_is_none_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    place.mkdir()
    bad = place / "bad.yaml"
    bad.write_text("kind: [unclosed")
    assert "bad.yaml" in refusal(capsys, ["--directory", str(place / "x"), "--apply", str(bad)])
    assert "absent.yaml" in refusal(
        capsys, ["--directory", str(place / "x"), "--apply", str(place / "absent.yaml")]
    )
    assert not (place / "x").exists()


@pytest.mark.parametrize("arguments", [["--fault", "agent kill"], ["--delete", "default/nginx"]])
def test_an_order_without_a_sandbox_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], place: Path, arguments: list[str]
) -> None:
    line = refusal(capsys, ["--directory", str(place), *arguments])
    assert "no sandbox runs" in line
    assert "gpu-manager sandbox" in line


def test_a_directory_with_other_files_is_left_alone(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    place.mkdir()
    (place / "thesis.tex").write_text("five years of work")
    assert "other files" in refusal(capsys, ["--directory", str(place)])
    assert [p.name for p in place.iterdir()] == ["thesis.tex"]


def test_a_directory_too_deep_for_sockets_is_named(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert "too long" in refusal(capsys, ["--directory", str(place / ("d" * 90))])


def test_a_link_in_place_of_the_directory_is_not_followed(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    victim = place.with_name("victim")
    victim.mkdir()
    (victim / LOCK).touch()
    (victim / "state").mkdir()
    place.symlink_to(victim)
    assert "not a directory of yours" in refusal(capsys, ["--directory", str(place)])
    assert (victim / "state").exists()


def test_a_taken_port_is_refused(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"--port {port}" in refusal(capsys, ["--directory", str(place), "--port", port])


@pytest.mark.parametrize("port", ["-1", "70000", "http"])
def test_a_port_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert "--port" in refusal(capsys, ["--port", port])


def test_a_build_without_a_stand_in_driver_is_refused(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    place.mkdir()
    line = refusal(capsys, ["--directory", str(place / "x"), "--native", str(place)])
    assert "libvcuda.so" in line


def test_the_demo_takes_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--demo" in refusal(capsys, ["--demo", "--apply", str(NGINX)])
    assert "--demo" in refusal(capsys, ["--demo", "--profile", "t4x4"])


def test_a_socket_left_behind_is_no_sandbox(place: Path) -> None:
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place / "control.sock"))
    assert not send(place, SandboxOrder(faults=["agent kill"]), print)


def test_one_sandbox_serves_many_terminals_and_ends_within_5_seconds(place: Path) -> None:
    sandbox = Command(place, "--apply", str(NGINX))
    try:
        sandbox.await_running()
        text = sandbox.text()
        assert "pod/nginx created" in text
        for word in ("kubeconfig", "metrics", "logs"):
            assert word in text
        until(lambda: "nginx 30, 5 GiB" in sandbox.text())
        assert "unchanged" in sandbox.ask("--apply", str(NGINX))
        assert "card 3: XID 79" in sandbox.ask("--fault", "card 3 XID 79")
        until(lambda: "card 3 [unhealthy: XID 79]" in sandbox.text())
        (agent,) = re.findall(r"agent killed \(process (\d+)\)", sandbox.ask("--fault", "agent kill"))
        until(lambda: not alive(int(agent)))
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/metric", text)
        until(lambda: "vcuda_card_healthy" in scrape(port))  # it comes back, with the card that is still sick
        assert "kubelet restarted" in sandbox.ask("--fault", "kubelet restart")
        assert "pod/nginx deleted" in sandbox.ask("--delete", "default/nginx")
        assert "away for 0.2 s" in sandbox.ask("--fault", "api away 0.2")
        with pytest.raises(RequestInvalid, match="there are 'card 3 XID 79'"):
            send(place, SandboxOrder(faults=["card 3 melt"]), print)
        with pytest.raises(RequestInvalid, match="no card 99"):
            send(place, SandboxOrder(faults=["card 99 ok"]), print)
        with pytest.raises(RequestInvalid, match="not found"):
            send(place, SandboxOrder(delete=["default/nobody"]), print)
        second = subprocess.run(
            program("--directory", str(place)), check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        assert second.returncode == 2
        assert "runs in" in second.stderr
        sandbox.end(signal.SIGTERM)
        assert sandbox.process.returncode == 0
        assert "the sandbox has ended" in sandbox.text()
        assert "Traceback" not in sandbox.text()
    finally:
        sandbox.process.kill()
        sandbox.process.wait()


def test_a_sandbox_that_is_killed_takes_agent_and_containers_along(place: Path) -> None:
    sandbox = Command(place)
    try:
        sandbox.await_running()
        pod = place.with_name("pod.yaml")
        pod.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "lasting"},
                    "spec": {
                        "containers": [{"name": "c", "command": ["sh", "-c", "echo $$$$; exec sleep 60"]}]
                    },
                }
            )
        )
        sandbox.ask("--apply", str(pod))
        log = place / "logs/default_lasting_c.log"
        pid = int(until(lambda: log.exists() and log.read_text().strip()))
        agents = [p for p in _descendants(sandbox.process.pid) if alive(p)]
        assert len(agents) >= 3  # shim, agent, container
        sandbox.end(signal.SIGKILL)
        until(lambda: not any(map(alive, [pid, *agents])))
        again = Command(place, started_by=SIGINT_IGNORED)
        again.await_running()
        again.end(signal.SIGINT)
        assert again.process.returncode == 0
    finally:
        sandbox.process.kill()
        sandbox.process.wait()


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def test_objects_are_created_changed_and_refused_as_kubectl_does() -> None:
    api = StandInApi()
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    pod = yaml.safe_load(NGINX.read_text())
    assert apply(api, [config, pod]) == ["configmap/c created", "pod/nginx created"]
    assert apply(api, [config, pod]) == ["configmap/c unchanged", "pod/nginx unchanged"]
    assert apply(api, [{**config, "data": {"a": "2"}}]) == ["configmap/c configured"]
    other = json.loads(json.dumps(pod).replace("30", "40"))
    with pytest.raises(RequestInvalid, match="pod updates may not change"):
        apply(api, [other])
    with pytest.raises(RequestInvalid, match="no controllers"):
        apply(api, [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}])
    with pytest.raises(RequestInvalid, match=r"without metadata\.name"):
        apply(api, [{"apiVersion": "v1", "kind": "Pod"}])
    assert delete(api, "nginx") == "pod/nginx deleted"
    for key in ("", "/nginx", "default/"):
        with pytest.raises(RequestInvalid, match="--delete"):
            delete(api, key)


def test_every_documented_fault_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for example, _ in FAULTS:
        assert example in shown


def test_every_profile_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Cards: {', '.join(profiles.names())};" in shown


HOSTILE = "\x1b[2J[bold]evil[/bold]"


def picture() -> Picture:
    holder = Holder("default/a", "c", 30, 5 << 30, 1 << 30, 0.25, "")
    burst = [Holder(f"default/b-{i}", "w", 20, 1 << 30, None, None, "") for i in (1, 2)]
    cards = (
        CardRow(0, "A100", 70, 40 << 30, 7 << 30, "", (holder, *burst)),
        CardRow(1, "A100", 0, 40 << 30, 0, f"unhealthy: {HOSTILE}", ()),
    )
    pods = (PodRow(f"default/{HOSTILE}", "Failed", "Why", HOSTILE, 2, "u"),)
    return Picture(cards, pods)


def test_a_line_says_who_has_which_share() -> None:
    assert card_line(picture().cards[0]) == (
        "card 0:  70 cores, 7 GiB of 40 GiB: a/c 30, 5 GiB (1 GiB used, 25% busy); b-{1,2} 20, 1 GiB each"
    )
    assert card_line(picture().cards[1]).startswith("card 1 [unhealthy: ")


def test_names_of_tenants_reach_no_terminal_raw() -> None:
    for terminal in (True, False):
        out = StringIO()
        console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
        console.print(draw(picture(), "heading"))
        assert "\x1b[2J" not in out.getvalue()
        assert "[bold]evil[/bold]" in out.getvalue()
    assert all("\x1b" not in line for line in plain(picture()))


def test_an_agent_that_does_not_answer_is_said(place: Path) -> None:
    lines = list(plain(Picture((), (), "the agent does not answer on port 1")))
    assert lines == ["the agent does not answer on port 1"]
    assert not place.exists()


def test_every_example_is_legal_and_every_demo_pod_is_what_it_says() -> None:
    files = [*sorted((ROOT / "deploy/examples").glob("*.yaml")), NGINX, *sorted(PODS.glob("*.yaml"))]
    assert len(files) > 15
    for file in files:
        for found in read_manifests(file.read_bytes()):
            if found.pod is None:
                assert found.kind in {"PriorityClass", "Namespace", "ResourceClaimTemplate"}, file
                continue
            violations = check_pod(parse_pod(found.pod), DEFAULT_UNIT)
            assert bool(violations) == ("illegal" in file.name), (file, violations)


def test_the_demos_first_pod_is_the_documents() -> None:
    _, (pod,) = manifest("1-nginx")
    assert pod == yaml.safe_load(NGINX.read_text())


def test_a_sandbox_in_a_directory_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    place.write_text("a file")
    assert str(place) in refusal(capsys, ["--directory", str(place)])


def test_a_sandbox_that_does_not_answer_is_an_error(place: Path) -> None:
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(place / "control.sock"))
        mute.listen()

        def hang_up() -> None:
            link, _ = mute.accept()
            link.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(NodeUnready, match="does not answer"):
            send(place, SandboxOrder(faults=["agent kill"]), print)
        thread.join()


def test_the_default_directory_is_one_for_all_terminals_of_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_directory() == tmp_path / "gpu-manager-sandbox"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert default_directory().name == f"gpu-manager-sandbox-{os.getuid()}"
