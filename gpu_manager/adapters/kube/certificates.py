"""The Secret that holds the admission service's certificate, and the webhook configurations that trust it.

Every write names the version that it replaces, so that of two concurrent replicas one is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

from gpu_manager.adapters.kube.connection import Connection, Refused
from gpu_manager.domain.errors import NodeUnready

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_FORBIDDEN: Final = 403


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
        found = self._connection.read("read the certificate's Secret", f"{self._secrets}/{self._secret}")
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
                made = self._connection.write("create the certificate's Secret", "POST", self._secrets, body)
                return made is not None
            except Refused as error:
                if error.code != _FORBIDDEN:
                    raise
                command = f"kubectl -n {self._namespace} create secret generic {self._secret}"
                raise NodeUnready(
                    f"the Secret {self._namespace}/{self._secret} is missing, and this account may not "
                    f"make it: install the chart again, or run `{command}`"
                ) from error
        found = self.load()
        if found is None or found[1] != version:
            return False
        encoded |= dict.fromkeys(found[0].keys() - data.keys())  # null removes what is not kept
        body = {"metadata": {"resourceVersion": version}, "data": encoded}
        what, path = "write the certificate's Secret", f"{self._secrets}/{self._secret}"
        return self._connection.write(what, "PATCH", path, body) is not None

    def anchors(self) -> Sequence[tuple[str, str, Mapping[str, bytes]]]:
        """(path, version, webhook name → caBundle) of every configuration that exists. Raises NodeUnready."""
        anchors = []
        for path in (f"{_GROUP}/{kind}/{name}" for kind in _KINDS for name in self._names):
            found = self._connection.read("read the webhook configuration", path)
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
        what = "write the webhook configuration"
        return self._connection.write(what, "PATCH", name, body, content_type=_STRATEGIC) is not None


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except ValueError:
        return b""
