"""What a kubeconfig, a pod's service account and a credential plugin say of the way to an API server."""

from __future__ import annotations

import base64
import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.adapters.kube.connection import connect_person
from gpu_manager.adapters.kube.kubeconfig import Plugin, PluginCommand, TokenFile, access_of, access_of_pod
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from tests.fakes.certificates import self_signed
from tests.fakes.web import send, serving


def config(tmp_path: Path, name: str = "config", **parts: Any) -> Path:
    """A kubeconfig of one context ``c``; ``cluster``, ``user`` and ``context`` are merged into its parts."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    value = {
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **parts.get("cluster", {})}}],
        "users": [{"name": "u", "user": parts.get("user", {})}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **parts.get("context", {})}}],
        "current-context": "c",
        **parts.get("whole", {}),
    }
    path.write_text(yaml.safe_dump(value))
    return path


def test_a_token_its_namespace_and_who_is_impersonated(tmp_path: Path) -> None:
    user = {"token": "t", "as": "jane", "as-uid": "7"}
    found = access_of(str(config(tmp_path, user=user, context={"namespace": "team"})))
    assert (found.url, found.namespace, found.credentials.header()) == (
        "https://api:6443",
        "team",
        "Bearer t",
    )
    assert found.headers == {"Impersonate-User": "jane", "Impersonate-Uid": "7"}


def test_a_password_is_shown_as_basic(tmp_path: Path) -> None:
    found = access_of(str(config(tmp_path, user={"username": "a", "password": "b"})))
    assert found.credentials.header() == "Basic " + base64.b64encode(b"a:b").decode()


def test_relative_paths_begin_where_the_file_lies(tmp_path: Path) -> None:
    self_signed(tmp_path)
    (tmp_path / "token").write_text("from-a-file\n")
    cluster, user = {"certificate-authority": "cert.pem"}, {"tokenFile": "token"}
    found = access_of(str(config(tmp_path, cluster=cluster, user=user)))
    assert found.credentials.header() == "Bearer from-a-file"
    assert found.tls is not None
    assert [dict(x[0] for x in one["subject"]) for one in found.tls.get_ca_certs()] == [
        {"commonName": "a.name"}
    ]


def test_a_client_certificate_is_shown_to_the_server(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    seen: list[object] = []

    def respond(handler: Any) -> None:
        seen.append(handler.connection.getpeercert())
        send(handler, b"{}")

    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    server.load_cert_chain(certificate, key)
    server.verify_mode = ssl.CERT_REQUIRED
    with serving(respond, context=server) as url:
        data = {
            "client-certificate-data": base64.b64encode(certificate.read_bytes()).decode(),
            "client-key-data": base64.b64encode(key.read_bytes()).decode(),
        }
        cluster = {"server": url, "certificate-authority": str(certificate)}
        connection = connect_person(str(config(tmp_path, cluster=cluster, user=data)))
        assert connection.request("look", "GET", "/version") == {}
        connection.close()
    assert seen[0]["subject"] == ((("commonName", "a.name"),),)


def test_an_unchecked_server_is_asked_and_another_name_is_expected_where_it_is_named(tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    for extra in (
        {"insecure-skip-tls-verify": True},
        {"tls-server-name": "a.name", "certificate-authority": "cert.pem"},
    ):
        with serving(lambda h: send(h, b"{}"), pair) as url:
            connection = connect_person(str(config(tmp_path, cluster={"server": url, **extra})))
            assert connection.request("look", "GET", "/version") == {}
            connection.close()


def test_of_several_files_the_first_that_has_a_name_decides(tmp_path: Path) -> None:
    first = config(tmp_path, "a/config", whole={"contexts": [], "current-context": ""})
    second = config(
        tmp_path, "b/config", cluster={"server": "https://other"}, context={"namespace": "second"}
    )
    absent = tmp_path / "absent"
    found = access_of(os.pathsep.join(map(str, (absent, first, second))))
    assert (found.url, found.namespace) == ("https://api:6443", "second")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"whole": {"current-context": ""}}, "no context is current"),
        ({"whole": {"current-context": "x"}}, "no context 'x'; it has c"),
        ({"context": {"cluster": "x"}}, "names no cluster"),
        ({"context": {"user": "x"}}, "names no user"),
        ({"cluster": {"server": ""}}, "no server"),
        ({"cluster": {"certificate-authority": "absent.pem"}}, "certificate-authority cannot be read"),
        ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority cannot be read"),
        ({"cluster": {"certificate-authority-data": "bm9uZQ=="}}, "certificate-authority cannot be used"),
        ({"user": {"client-certificate-data": "bm9uZQ=="}}, "client certificate and key cannot be used"),
        ({"user": {"auth-provider": {}}}, "auth-provider"),
        ({"user": {"exec": {"args": ["x"]}}}, "no command"),
        ({"user": {"as-groups": ["g"]}}, "as-groups"),
        ({"cluster": {"proxy-url": "socks5://p:1"}}, "not supported"),
        ({"cluster": {"server": "https://h:port"}}, "no URL"),
        ({"whole": {"clusters": 7}}, "names no cluster"),
    ],
)
def test_what_cannot_be_used_is_said(parts: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match=said) as refused:
        connect_person(str(config(tmp_path, **parts)))
    assert "name another with --kubeconfig" in str(refused.value)


def test_a_pod_finds_its_cluster_and_reads_its_token_as_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _ = self_signed(tmp_path)
    certificate.rename(tmp_path / "ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(RequestInvalid, match="token"):
        access_of_pod(tmp_path)
    (tmp_path / "token").write_text("first")
    found = access_of_pod(tmp_path)
    assert (found.url, found.credentials.header()) == ("https://[fd00::1]:443", "Bearer first")


def test_a_tokens_file_is_read_again_after_ten_seconds_or_a_refusal(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "token").write_text("first")
    token = TokenFile(tmp_path / "token", lambda: now[0])
    assert token.header() == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert token.header() == "Bearer first"
    now[0] = 10.0
    assert token.header() == "Bearer second"
    assert not token.refused()
    (tmp_path / "token").write_text("third")
    assert token.refused()
    assert token.header() == "Bearer third"


PLUGIN = """\
import json, os, pathlib, sys
count = pathlib.Path(sys.argv[1])
count.write_text(count.read_text() + "x" if count.exists() else "x")
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = {"token": f"{os.environ['WHO']}-{len(count.read_text())}-{asked['spec'].get('cluster', {}).get('server')}"}
if len(sys.argv) > 2:
    status["expirationTimestamp"] = sys.argv[2]
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def plugin(tmp_path: Path, *more: str) -> dict[str, Any]:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py"), str(tmp_path / "count"), *more],
        "env": [{"name": "WHO", "value": "jane"}],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }


def test_a_plugin_is_run_once_and_again_when_its_token_is_refused(tmp_path: Path) -> None:
    shown: list[str] = []

    def respond(handler: Any) -> None:
        shown.append(handler.headers["Authorization"])
        send(handler, b"{}", 200 if "-2-" in shown[-1] else 401)

    with serving(respond) as url:
        connection = connect_person(
            str(config(tmp_path, cluster={"server": url}, user={"exec": plugin(tmp_path)}))
        )
        for _ in range(2):
            assert connection.request("look", "GET", "/version") == {}
        assert connection.token == f"jane-2-{url}"
        connection.close()
    assert shown == [f"Bearer jane-{n}-{url}" for n in (1, 2, 2)]


def test_a_plugins_token_that_has_expired_is_asked_for_anew(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    spoken = plugin(tmp_path, "2001-09-09T01:50:00Z")  # 200 s later
    command = PluginCommand(
        spoken["apiVersion"], [spoken["command"], *spoken["args"]], {"WHO": "jane"}, mode="Never"
    )
    found = Plugin(command, lambda: now[0])
    assert [found.header() for _ in range(2)] == ["Bearer jane-1-None"] * 2
    now[0] += 195
    assert found.header() == "Bearer jane-2-None"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/nonexistent/plugin"], "cannot be run: No such file or directory; install it with brew"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "failed with exit code 3"),
        ([sys.executable, "-c", "print('hello')"], "printed no ExecCredential"),
        ([sys.executable, "-c", "print('[]')"], "printed no ExecCredential"),
        (
            [sys.executable, "-c", f"print({json.dumps(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', 'status': {}}))})"],
            "neither a token nor a certificate",
        ),
    ],
    ids=["absent", "fails", "text", "list", "empty"],
)  # fmt: skip
def test_a_plugin_that_does_not_help_is_named(argv: list[str], said: str) -> None:
    command = PluginCommand(
        "client.authentication.k8s.io/v1", argv, {}, mode="Never", hint="install it with brew"
    )
    with pytest.raises(NodeUnready, match=said):
        Plugin(command).header()


def test_a_plugin_that_must_ask_says_so_where_nobody_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    command = PluginCommand("client.authentication.k8s.io/v1", ["login"], {}, mode="Always")
    with pytest.raises(NodeUnready, match="must ask you something"):
        Plugin(command).header()
