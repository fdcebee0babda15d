"""The Secret that holds the admission service's certificate, and the webhook configurations that trust it.

Every write names the version that it replaces, so that of two concurrent replicas one is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection, Refused
from gpu_manager.domain.errors import NodeUnready

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_FORBIDDEN, _ABSENT, _CONFLICT = 403, 404, 409


class KubeCertificates:
    """One Secret, and the webhook configurations of some names, behind
    ``admission.serving.authority.Vault``.
    """

    def __init__(self, connection: Connection, namespace: str, secret: str, names: Sequence[str]) -> None:
        """``names`` are those of the mutating and validating configurations; absent ones are left out."""
        self._connection = connection
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._namespace = namespace
        self._secret = secret
        self._names = tuple(names)

    def load(self) -> tuple[Mapping[str, bytes], str] | None:
        """The Secret's data and version; None if there is none. Raises NodeUnready."""
        found = self._get("read the certificate's Secret", f"{self._secrets}/{self._secret}")
        if found is None:
            return None
        data = found.get("data") or {}
        return {key: _decoded(value) for key, value in data.items()}, str(
            found["metadata"]["resourceVersion"]
        )

    def save(self, data: Mapping[str, bytes], version: str | None) -> bool:
        """Replace the data of that version (None: create the Secret). Raises NodeUnready."""
        encoded: dict[str, str | None] = {k: base64.b64encode(v).decode() for k, v in data.items()}
        if version is None:
            meta = {"name": self._secret, "namespace": self._namespace}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded, "type": "Opaque"}
            try:
                return self._write("create the certificate's Secret", "POST", self._secrets, body)
            except Refused as error:
                if error.code != _FORBIDDEN:
                    raise
                made = f"kubectl -n {self._namespace} create secret generic {self._secret}"
                raise NodeUnready(
                    f"the Secret {self._namespace}/{self._secret} is missing, and this account may not "
                    f"make it: install the chart again, or run `{made}`"
                ) from error
        found = self.load()
        if found is None or found[1] != version:
            return False
        encoded |= dict.fromkeys(found[0].keys() - data.keys())  # null removes what is not kept
        return self._write(
            "write the certificate's Secret",
            "PATCH",
            f"{self._secrets}/{self._secret}",
            {"metadata": {"resourceVersion": version}, "data": encoded},
            MERGE_PATCH,
        )

    def anchors(self) -> Sequence[tuple[str, str, Mapping[str, bytes]]]:
        """(path, version, webhook name → caBundle) of every configuration that exists. Raises NodeUnready."""
        anchors = []
        for path in (f"{_GROUP}/{kind}/{name}" for kind in _KINDS for name in self._names):
            found = self._get("read the webhook configuration", path)
            if found is not None:
                bundles = {
                    str(hook["name"]): _decoded((hook.get("clientConfig") or {}).get("caBundle"))
                    for hook in found.get("webhooks") or ()
                }
                anchors.append((path, str(found["metadata"]["resourceVersion"]), bundles))
        return anchors

    def anchor(self, name: str, version: str, bundles: Mapping[str, bytes]) -> bool:
        """Write the caBundle of each webhook of that version. Raises NodeUnready."""
        hooks = [
            {"name": hook, "clientConfig": {"caBundle": base64.b64encode(bundle).decode()}}
            for hook, bundle in bundles.items()
        ]
        body = {"metadata": {"resourceVersion": version}, "webhooks": hooks}
        return self._write("write the webhook configuration", "PATCH", name, body, _STRATEGIC)

    def _get(self, what: str, path: str) -> dict[str, Any] | None:
        try:
            return self._connection.request(what, "GET", path)
        except Refused as error:
            if error.code == _ABSENT:
                return None
            raise

    def _write(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any],
        content_type: str = "application/json",
    ) -> bool:
        try:
            self._connection.request(what, method, path, body=body, content_type=content_type)
        except Refused as error:
            if error.code in (_CONFLICT, _ABSENT):
                return False
            raise
        return True


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except ValueError:
        return b""
