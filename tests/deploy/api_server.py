"""kube-apiserver over etcd on loopback, for tests and benchmarks that ask a real one.

``make cluster CMD=build`` builds kube-apiserver below build/cluster.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.deploy.chart import KUBECTL, ROOT
from tests.fakes.waiting import PATIENCE

SERVERS = sorted((ROOT / "build" / "cluster").glob("bin-*/kube-apiserver"))
ABSENT = "no kube-apiserver below build/cluster (make cluster CMD=build builds one), or no etcd on the PATH"
THERE = bool(SERVERS) and shutil.which("etcd") is not None
WEBHOOKS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def serving_certificate(directory: Path) -> None:
    """Make ``tls.crt``, of a server at 127.0.0.1 that signs for itself, and ``tls.key`` there."""
    subject = ("-days", "2", "-subj", "/CN=ours", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", f"{directory}/tls.key", "-out", f"{directory}/tls.crt")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files]
    subprocess.run(made, check=True, capture_output=True)


def _named(obj: dict[str, Any]) -> dict[str, str]:
    return {key: str(obj["metadata"][key]) for key in ("name", "uid")}


class Server:
    """kube-apiserver over etcd on loopback, and kubectl and helm that ask it."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory, self.program = directory, program
        self.port = free_port()
        self.environment = {**os.environ, "KUBECONFIG": str(directory / "kubeconfig"), "HOME": str(directory)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._api_server: tuple[str, ...] = ()
        self._store = ""

    def start(self) -> None:
        here, store, peers = self.directory, free_port(), free_port()
        key = here / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        service = "system:serviceaccount:kube-system:gpu-quota-admission"
        (here / "tokens.csv").write_text(
            f'admin,admin,admin,"system:masters"\nadmission,{service},admission\n'
        )
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        (here / "kubeconfig").write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "admin"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        self._store = client = f"http://127.0.0.1:{store}"
        peer = f"http://127.0.0.1:{peers}"
        self.spawn(
            *("etcd", f"--data-dir={here}/etcd", f"--listen-client-urls={client}"),
            *(f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", "--unsafe-no-fsync"),
        )
        self._api_server = (
            *(str(self.program), f"--etcd-servers={client}", f"--secure-port={self.port}"),
            *("--bind-address=127.0.0.1", f"--cert-dir={here}/certs", f"--token-auth-file={here}/tokens.csv"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://x", "--authorization-mode=RBAC", "--allow-privileged"),
            *("--service-cluster-ip-range=10.97.0.0/24", "--disable-admission-plugins=ServiceAccount"),
        )
        self._begin()

    @property
    def pids(self) -> list[int]:
        """Of etcd and the API server."""
        return [process.pid for process in self._processes]

    def forget(self) -> None:
        """Compact the store, and restart the API server, which has versions before that in its cache."""
        now = json.loads(_post(f"{self._store}/v3/kv/range", {"key": "AA=="}))["header"]["revision"]
        _post(f"{self._store}/v3/kv/compaction", {"revision": now, "physical": True})
        self.restart()

    def restart(self) -> None:
        """Kill the API server, not its store, and start it again."""
        process = self._processes.pop()
        process.kill()
        process.wait(PATIENCE)
        self._begin()

    def _begin(self) -> None:
        self.spawn(*self._api_server)
        tick = threading.Event()
        for _ in range(300):
            if self._ready():
                return
            tick.wait(0.2)
        raise AssertionError((self.directory / "kube-apiserver.log").read_text()[-2000:])

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PATIENCE)

    def run(self, program: Path, *arguments: str, given: str | None = None) -> str:
        """What it prints; with what went wrong, if something did."""
        done = subprocess.run(
            [str(program), *arguments],
            input=given,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        return done.stdout if done.returncode == 0 else f"FAILED {done.stderr}"

    def pod(self, name: str, limits: dict[str, str], node: str = "", **annotations: str) -> str:
        """Create it; what the API server says."""
        container = {"name": "c", "image": "i", "resources": {"limits": limits}}
        obj: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        }
        return self.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = "admin",
        kind: str = "application/json",
    ) -> tuple[int, str]:
        """Status and text of one request; ``token`` is whose."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}", data=data, headers=headers, method=method
        )
        unverified = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=unverified) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def make(self, path: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Create an object as the administrator; return it as it is stored."""
        api = path.partition("/namespaces/")[0] if "/namespaces/" in path else path.rpartition("/")[0]
        api = api.removeprefix("/apis/").removeprefix("/api/")
        meta = {"name": name, **fields.pop("metadata", {})}
        code, text = self.ask("POST", path, {"apiVersion": api, "kind": kind, "metadata": meta, **fields})
        assert code == 201, f"{kind} {name}: {code} {text}"
        return dict(json.loads(text))

    def token(self, account: str, pod: dict[str, Any] | None) -> str:
        """A token of an account of kube-system, as the kubelet has it made for the pod; bound to none."""
        bound = {} if pod is None else {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", **_named(pod)}}
        path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
        code, text = self.ask(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
        )
        assert code == 201, text
        return str(json.loads(text)["status"]["token"])

    def serve_admission(self, *flags: str) -> None:
        """Run the service, with its own account, where the chart's webhooks then call it."""
        here, port = self.directory, free_port()
        serving_certificate(here)
        config = json.loads((here / "kubeconfig").read_text())
        config["users"][0]["user"]["token"] = "admission"  # of a server of these tests
        (here / "service.kubeconfig").write_text(json.dumps(config))
        self.spawn(
            *(sys.executable, "-m", "admission", *flags, "--webhook-address=127.0.0.1"),
            *(f"--webhook-port={port}", "--extender-address=127.0.0.1:0", "--probe-address=127.0.0.1:0"),
            *(f"--tls-cert-file={here}/tls.crt", f"--tls-private-key-file={here}/tls.key"),
            f"--kubeconfig={here}/service.kubeconfig",
        )
        bundle = base64.b64encode((here / "tls.crt").read_bytes()).decode()
        for kind in WEBHOOKS:
            hooks = json.loads(self.run(KUBECTL, "get", kind, "gpu-quota-admission", "-o", "json"))
            for one in hooks["webhooks"]:
                path = one["clientConfig"]["service"]["path"]
                one["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            said = self.run(KUBECTL, "replace", "-f", "-", given=json.dumps(hooks))
            assert "replaced" in said, said

    def spawn(self, *command: str) -> None:
        """Start a program that ends with the server."""
        with (self.directory / f"{Path(command[0]).name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory)
            )

    def _ready(self) -> bool:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/readyz", headers={"Authorization": "Bearer admin"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=ssl._create_unverified_context()):
                return True
        except OSError:
            return False


def _post(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return bytes(answer.read())
