"""The manifest of docs/sizing.md that follows advice every hour: its rights are those that the command uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_manager.adapters.kube.connection import connect_account
from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.advice.demand import DAY, HOUR, Need
from gpu_manager.domain.advice.size import Sized, advise, sized_json
from gpu_manager.domain.contract import ADVICE, RESIZE
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import GIB, MIB, Amount
from sandbox.api import AccessRules, StandInApi, User, service_account
from tests.fakes.certificates import self_signed
from tests.fakes.kubectl import a_node, an_agent, said
from tests.fakes.node import container, pod

PAGE = (Path(__file__).parents[2] / "docs/sizing.md").read_text(encoding="utf-8")
ACCOUNT = service_account("kube-system", "vcuda-advice")
GIVEN, UNIT = Amount(50, 8 * GIB), 256 * MIB
NEED = Need(3 * DAY, 3, 4 * HOUR, 30, (2 * GIB,) * 25, (2 * GIB,) * 4)


def manifest() -> Sequence[Mapping[str, Any]]:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return list(yaml.safe_load_all(text))


def rights() -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
    """Each rule with the namespace that it holds in, empty for all."""
    for one in manifest():
        if one["kind"] in ("ClusterRole", "Role"):
            for rule in one["rules"]:
                yield one["metadata"].get("namespace", ""), rule


def may(user: User, asked: AccessRules) -> bool:
    return user != ACCOUNT or any(
        place in ("", asked.namespace)
        and asked.verb in rule["verbs"]
        and asked.group in rule["apiGroups"]
        and asked.resource in rule["resources"]
        for place, rule in rights()
    )


def test_the_accounts_rights_are_enough_and_each_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = {ADVICE: '{"v":1,"apply":"in-place"}'}
    kinds = ("Deployment", "StatefulSet", "DaemonSet")
    told = []
    with StandInApi(tokens={"advice": ACCOUNT}, authorize=may) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config", "advice")))
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        a_node(api)
        for kind in kinds:
            meta = {"name": "web", "namespace": "team", "annotations": terms}
            template = {"spec": pod("p", container("c", 50, 32))["spec"]}
            api.create(
                {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": {"template": template}}
            )
            told.append(("team", f"{kind}/web", "c"))
        lone = pod("lone", container("c", 50, 32), annotations=terms)
        api.create({**lone, "metadata": {**lone["metadata"], "namespace": "team"}})
        told.append(("team", "Pod/lone", "c"))
        page = [Sized(who, ("p",), GIVEN, UNIT, NEED, advise(NEED, GIVEN, UNIT)) for who in told]
        an_agent(api, {"containers": [sized_json(one) for one in page]})
        (job,) = (one for one in manifest() if one["kind"] == "CronJob")
        (shell,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        program, *words = shell["command"]
        assert program == "kubectl-vcuda"
        assert run(words) == 0, said(capsys)
        for kind in kinds:
            written = api.get(f"{kind.lower()}s", "web", "team")["metadata"]["annotations"]
            assert json.loads(written[RESIZE])["containers"] == {"c": {"cores": 30, "memory": 2 * GIB}}
        used = {(one.verb, one.resource) for one in api.verbs_used() if one.user == ACCOUNT.name}
    granted = {(verb, kind) for _, rule in rights() for verb in rule["verbs"] for kind in rule["resources"]}
    assert granted - {("get", "pods/proxy")} == used, "pages behind the stand-in's proxy count for nobody"


def test_in_a_pod_without_a_kubeconfig_its_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run(["advise"]) == 2
    assert "there is no kubeconfig" in said(capsys)[1]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert run(["advise"]) == 2
    assert "cannot use the service account of this pod" in said(capsys)[1]
    assert run(["advise", "--context", "mine"]) == 2
    assert "there is no kubeconfig" in said(capsys)[1]


def test_a_pods_account_knows_its_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, _ = self_signed(tmp_path)
    certificate.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    for written, namespace in ((None, "default"), ("team\n", "team")):
        if written is not None:
            (tmp_path / "namespace").write_text(written)
        connection = connect_account(tmp_path)
        connection.close()
        assert connection.namespace == namespace
    with pytest.raises(RequestInvalid, match="cannot use the service account of this pod"):
        connect_account(tmp_path / "none")
