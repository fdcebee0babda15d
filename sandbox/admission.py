"""The admission service as the sandbox runs it: the real program, in a process of its own, on loopback.

The API stand-in asks its webhooks as an API server does: by HTTPS, for the service's name, trusting the
authority that the service itself wrote into the webhook configurations.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gpu_manager.domain.contract import (
    ADMISSION_NAME,
    AGENT_NAME,
    CORE,
    FRONT_LABEL,
    MEMORY,
    NAMESPACE,
    QUOTA_MAP,
    TOKEN_HEADER,
)
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ApiError, Hook, StandInApi, User, service_account
from sandbox.http_client import LOOPBACK, LoopbackClient
from sandbox.kept_process import KeptProcess
from sandbox.processes import ProcessTable

ADMISSION_TOKEN: Final = "sandbox-admission"  # noqa: S105 - the sandbox's own, worth nothing elsewhere
AGENT_TOKEN: Final = "sandbox-agent"  # noqa: S105 - same
# The two accounts that may write which cards a pod has.
TOKENS: Final[Mapping[str, User]] = {
    ADMISSION_TOKEN: service_account(NAMESPACE, ADMISSION_NAME),
    AGENT_TOKEN: service_account(NAMESPACE, AGENT_NAME),
}
LEFT_OUT: Final = (
    "left out: it is not installed (pip install 'gpu-manager[admission]'); a scheduler that only counts binds"
)
_EXTRA: Final = ("fastapi", "uvicorn", "numpy")
_TRUSTED: Final = frozenset(user.name for user in TOKENS.values())
_KINDS: Final = (
    ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
)
Obj = Mapping[str, Any]


def find_program() -> Path | None:
    """The program beside this interpreter; None where the extra ``admission`` is not installed."""
    place = Path(sys.executable).parent / ADMISSION_NAME
    return place if place.is_file() and all(find_spec(name) for name in _EXTRA) else None


class AdmissionProcess:
    """One replica on fixed ports, so that one that was killed is found again where it was."""

    def __init__(self, ports: tuple[int, int], *, claims: bool = False) -> None:
        """``ports``: of the webhooks and people, of schedulers. ``claims``: it is asked about those, too."""
        self._claims = claims
        self.port, self.extender_port = ports
        self._api: StandInApi | None = None
        name = f"{ADMISSION_NAME}.{NAMESPACE}.svc"
        self._line = LoopbackClient(self.port, name, self._authority)
        self.process: KeptProcess | None = None

    @property
    def url(self) -> str:
        """Where people ask."""
        return f"https://{LOOPBACK}:{self.port}"

    def hooks(self) -> tuple[Hook, ...]:
        """What stands before the store: the chart's webhooks, and what each is asked about."""
        return (
            Hook(f"mutate.{_NAME}", self._call("/mutate"), operations=_CREATE, concerns=_asks),
            *(self._turning() if self._claims else ()),
            Hook(f"create.{_NAME}", self._call("/validate"), operations=_CREATE, concerns=_asks),
            Hook(
                f"change.{_NAME}",
                self._call("/validate"),
                frozenset({"pods", "pods/status"}),
                frozenset({"UPDATE"}),
                concerns=_changes,
            ),
            Hook(
                f"bind.{_NAME}",
                self._call("/validate"),
                frozenset({"pods/binding"}),
                _CREATE,
                concerns=_brings,
            ),
            Hook(
                f"warn.{_NAME}",
                self._call("/validate"),
                frozenset(_WORKLOADS),
                frozenset({"CREATE", "UPDATE"}),
                fail_open=True,
                concerns=_template_asks,
            ),
            Hook(
                f"quota.{_NAME}",
                self._call("/validate"),
                frozenset({"configmaps"}),
                frozenset({"CREATE", "UPDATE"}),
                fail_open=True,
                concerns=_is_the_quota,
            ),
            *(self._hooks_of_claims() if self._claims else ()),
        )

    def _turning(self) -> tuple[Hook, ...]:
        """Pods of labelled namespaces are turned into claims, after they were mended."""
        turn = self._call("/mutate/claims")
        return (Hook(f"claims.{_NAME}", turn, operations=_CREATE, concerns=self._is_turned),)

    def _is_turned(self, request: Obj) -> bool:
        found = (self._api.get("namespaces", str(request.get("namespace"))) if self._api else None) or {}
        labels = (found.get("metadata") or {}).get("labels") or {}
        return labels.get(FRONT_LABEL) == "dra" and _names_cards((request["object"] or {}).get("spec") or {})

    def _hooks_of_claims(self) -> tuple[Hook, ...]:
        validate = self._call("/validate")
        return (
            Hook(f"claim.{_NAME}", validate, frozenset({"resourceclaims"}), _CREATE),
            Hook(f"uses.{_NAME}", validate, operations=_CREATE, fail_open=True, concerns=_uses_claims),
        )

    def start(
        self, api: StandInApi, processes: ProcessTable, program: Path, directory: Path, kubeconfig: Path
    ) -> None:
        """Register its webhooks and start it; it answers once :meth:`ready`."""
        self._api = api
        for (kind, _), hooks in zip(_KINDS, (("mutate",), tuple(_RULES)[1:]), strict=True):
            api.create(_configuration(kind, hooks, self.port))
        api.create(_endpoints(self.port))
        api.create(_SCHEDULER_CONFIGURATION)
        api.serve_behind(
            f"/api/v1/namespaces/{NAMESPACE}/services/https:{ADMISSION_NAME}:443/proxy", self._passed_on
        )
        arguments = {
            "--kubeconfig": kubeconfig,
            "--namespace": NAMESPACE,
            "--webhook-address": LOOPBACK,
            "--webhook-port": self.port,
            "--extender-address": f"{LOOPBACK}:{self.extender_port}",
            "--probe-address": f"{LOOPBACK}:0",
            "--leader-mode": "alone",
            "--drain-seconds": 0,
            "--record-directory": directory / "records",
            "--record-mib": 8,
        }
        flags = ["--claims"] if self._claims else []
        argv = [str(program), *(str(word) for pair in arguments.items() for word in pair), *flags]
        log = directory / "admission.log"
        self.process = KeptProcess(processes, "admission", argv, log, directory)
        self.process.start()

    def stop(self) -> None:
        """End it. Idempotent."""
        self._line.close()
        if self.process is not None:
            self.process.stop()

    def ready(self) -> bool:
        """True once it answers under a certificate that the API server trusts, and knows the cluster."""
        try:
            return self._line.ask("GET", "/readyz")[0] == 200
        except NodeUnready:
            return False

    def ask(self, path: str, token: str, manifest: Obj | None = None, accept: str = "text/plain") -> str:
        """What a person asks it: GET, or POST of a manifest. Raises NodeUnready."""
        method, body = ("GET", None) if manifest is None else ("POST", json.dumps(manifest).encode())
        status, said = self._line.ask(
            method, path, body, {"Authorization": f"Bearer {token}", "Accept": accept}
        )
        if status != 200:
            raise NodeUnready(f"{path}: {status} {said.decode('utf-8', 'replace')}")
        return said.decode("utf-8", "replace")

    def _call(self, path: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def call(review: dict[str, Any]) -> dict[str, Any]:
            try:
                status, body = self._line.ask(
                    "POST", path, json.dumps(review).encode(), {"Content-Type": "application/json"}
                )
                found = json.loads(body)
            except (NodeUnready, ValueError) as error:
                raise ApiError(500, "InternalError", f"failed calling webhook: {error}") from error
            if status != 200 or not isinstance(found, dict):
                text = body[:300].decode("utf-8", "replace")
                raise ApiError(500, "InternalError", f"failed calling webhook: it answered {status}: {text}")
            return found

        return call

    def _authority(self) -> str:
        """Whom the mutating webhook trusts, as the service wrote it; empty before that."""
        kind = _KINDS[0][1]
        found = (self._api.get(kind, ADMISSION_NAME) if self._api else None) or {"webhooks": [{}]}
        bundle = (found["webhooks"][0].get("clientConfig") or {}).get("caBundle") or ""
        return base64.b64decode(bundle).decode()

    def _passed_on(
        self, path: str, method: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """The API server's service proxy, which takes the caller's Authorization off."""
        kept = {k: headers[k] for k in (TOKEN_HEADER.lower(), "accept", "content-type") if headers.get(k)}
        return self._line.ask(method, path, body or None, kept)


_DOMAIN: Final = CORE.partition("/")[0]
_NAME: Final = f"{ADMISSION_NAME}.{_DOMAIN}"
_CREATE: Final = frozenset({"CREATE"})
_WORKLOADS: Final = ["deployments", "statefulsets", "daemonsets", "replicasets"]  # of group apps
_RULES: Final[Mapping[str, tuple[str, list[str], str, list[str]]]] = {
    "mutate": ("/mutate", ["CREATE"], "", ["pods"]),
    "create": ("/validate", ["CREATE"], "", ["pods"]),
    "change": ("/validate", ["UPDATE"], "", ["pods", "pods/status"]),
    "bind": ("/validate", ["CREATE"], "", ["pods/binding"]),
    "warn": ("/validate", ["CREATE", "UPDATE"], "apps", _WORKLOADS),
    "quota": ("/validate", ["CREATE", "UPDATE"], "", ["configmaps"]),
}


_SCHEDULER_CONFIGURATION: Final[Obj] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "scheduler-config", "namespace": NAMESPACE},
    "data": {
        "config.yaml": json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "extenders": [{"managedResources": [{"name": CORE}, {"name": MEMORY}]}],
            }
        )
    },
}
"""How the sandbox's scheduler asks the extender, in the form in which a cluster's scheduler is told."""


def _endpoints(port: int) -> Obj:
    """Where the service's one replica answers, as the endpoints' controller writes it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": ADMISSION_NAME,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": ADMISSION_NAME},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [LOOPBACK], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def _configuration(kind: str, names: tuple[str, ...], port: int) -> Obj:
    hooks = []
    for word in names:
        path, operations, group, resources = _RULES[word]
        service = {"namespace": NAMESPACE, "name": ADMISSION_NAME, "port": port, "path": path}
        hooks.append(
            {
                "name": f"{word}.{_NAME}",
                "clientConfig": {"service": service},
                "rules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": ["v1"],
                        "operations": operations,
                        "resources": resources,
                    }
                ],
                "failurePolicy": "Ignore" if word in ("warn", "quota") else "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        )
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": ADMISSION_NAME},
        "webhooks": hooks,
    }


# The chart's matchConditions, in Python, as the stand-in reads no CEL: what they leave out needs no service.


def _asks(request: Obj) -> bool:
    """Some container names one of the resources, or an annotation is ours."""
    obj = request["object"] or {}
    return _names_cards(obj.get("spec") or {}) or bool(_ours(obj))


def _template_asks(request: Obj) -> bool:
    template = ((request["object"] or {}).get("spec") or {}).get("template") or {}
    return _names_cards(template.get("spec") or {})


def _is_the_quota(request: Obj) -> bool:
    found = (request["object"] or {}).get("metadata") or {}
    return (found.get("namespace"), found.get("name")) == (NAMESPACE, QUOTA_MAP)


def _names_cards(spec: Obj) -> bool:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    named = {
        name
        for c in containers
        for where in ("limits", "requests")
        for name in (c.get("resources") or {}).get(where) or ()
    }
    return bool(named & {CORE, MEMORY})


def _uses_claims(request: Obj) -> bool:
    """Only what the webhook of pods that ask is not asked about."""
    spec = (request["object"] or {}).get("spec") or {}
    return bool(spec.get("resourceClaims")) and not _asks(request)


def _changes(request: Obj) -> bool:
    return not _is_trusted(request) and _ours(request["object"]) != _ours(request["oldObject"])


def _brings(request: Obj) -> bool:
    return not _is_trusted(request) and bool(_ours(request["object"]))


def _is_trusted(request: Obj) -> bool:
    return request["userInfo"]["username"] in _TRUSTED


def _ours(obj: Obj | None) -> Obj:
    annotations = ((obj or {}).get("metadata") or {}).get("annotations") or {}
    return {key: value for key, value in annotations.items() if key.startswith(f"{_DOMAIN}/")}
