"""Where the service keeps its own certificates, in memory: a Secret, webhook configurations, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from admission.serving.authority import SelfSigned
from admission.serving.certs import Switch
from gpu_manager.domain.errors import NodeUnready

NAME = "gpu-quota-admission.kube-system.svc"
AUTHORITY = f"{NAME} webhook authority"
DAY = 86_400.0


class Clock:
    """Wall and monotonic time of one replica; ``skew`` is how far its wall is off."""

    def __init__(self, time_: list[float], skew: float = 0.0) -> None:
        self._time = time_
        self._skew = skew

    def now(self) -> float:
        return self._time[0] + self._skew

    def monotonic(self) -> float:
        return self._time[0]


class Vault:
    """A Secret and two webhook configurations with optimistic locking, as the API server keeps them."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] | None = None
        self.version = 0
        self.bundles = {"mutating": {"pods": b""}, "validating": {"pods": b"", "workloads": b"\n"}}
        self.versions = {"mutating": 0, "validating": 0}
        self.broken: set[str] = set()
        self.before_save = lambda: None

    def load(self) -> tuple[Mapping[str, bytes], str] | None:
        self._work("load")
        return None if self.data is None else (dict(self.data), str(self.version))

    def save(self, data: Mapping[str, bytes], version: str | None) -> bool:
        self._work("save")
        self.before_save()
        if (version is None) != (self.data is None) or (version is not None and version != str(self.version)):
            return False
        self.data, self.version = dict(data), self.version + 1
        return True

    def anchors(self) -> Sequence[tuple[str, str, Mapping[str, bytes]]]:
        self._work("anchors")
        return [(name, str(self.versions[name]), dict(hooks)) for name, hooks in self.bundles.items()]

    def anchor(self, name: str, version: str, bundles: Mapping[str, bytes]) -> bool:
        self._work("anchor")
        if version != str(self.versions[name]):
            return False
        self.bundles[name] = dict(bundles)
        self.versions[name] += 1
        return True

    def _work(self, verb: str) -> None:
        if verb in self.broken:
            raise NodeUnready("the API server does not answer")


class Replica:
    def __init__(
        self,
        vault: Vault,
        time_: list[float],
        skew: float = 0.0,
        names: tuple[str, ...] = (NAME,),
        life_days: int = 90,
    ) -> None:
        self.switch = Switch()
        self.taken = 0
        self.keeper = SelfSigned(
            vault,
            self.switch,
            Clock(time_, skew),
            names=names,
            life_days=life_days,
            settle_seconds=60,
            noted=self._noted,
        )

    def _noted(self, taken: bool) -> None:
        self.taken += taken

    def check(self) -> bytes:
        self.keeper.check()
        assert self.switch.pair is not None
        return self.switch.pair.certificate


def trusts(bundle: bytes, certificate: bytes) -> bool:
    (leaf, *_) = x509.load_pem_x509_certificates(certificate)
    for authority in x509.load_pem_x509_certificates(bundle) if bundle.strip() else ():
        try:
            leaf.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def everyone_trusts(vault: Vault, certificate: bytes) -> bool:
    return all(trusts(bundle, certificate) for hooks in vault.bundles.values() for bundle in hooks.values())
