"""Serving certificates: taken whole or not at all, renewed while callers call, shared by replicas that race."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from prometheus_client.parser import text_string_to_metric_families

from admission.app import Program
from admission.authority import SelfSigned, merge
from admission.certs import FileCertificates, Issued, Switch, issue
from admission.config import Settings
from admission.metrics import Metrics
from gpu_manager.adapters.kube import connect
from gpu_manager.adapters.kube.certificates import KubeCertificates
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.https import HOST, Caller, trusting
from tests.fakes.reviews import review

NAME = "gpu-quota-admission.kube-system.svc"
AUTHORITY = f"{NAME} webhook authority"
DAY = 86_400.0


def made(now: float | None = None, name: str = HOST, days: int = 90) -> Issued:
    return issue((name,), time.time() if now is None else now, days, "test authority")


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


# The switch.


def handshake(switch: Switch, context: ssl.SSLContext, name: str = HOST) -> ssl.SSLObject:
    """A TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = switch.context.wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client


def test_without_a_certificate_no_handshake_succeeds_and_with_one_any_does() -> None:
    switch, first = Switch(), made()
    with pytest.raises(ssl.SSLError):
        handshake(switch, trusting(first.authority))
    switch.take(first.pair)
    assert handshake(switch, trusting(first.authority)).version() == "TLSv1.3"
    old = trusting(first.authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(switch, old).version() == "TLSv1.2"


def test_a_pair_that_does_not_match_changes_nothing() -> None:
    switch, first, second = Switch(), made(), made()
    switch.take(first.pair)
    for certificate, key in (
        (second.pair.certificate, first.pair.key),
        (b"", b""),
        (second.pair.certificate, b"x"),
    ):
        with pytest.raises(NodeUnready, match="must be PEM and match"):
            switch.take(type(first.pair)(certificate, key, 0.0))
    assert handshake(switch, trusting(first.authority)).version()
    assert switch.pair == first.pair


def test_an_issued_certificate_is_good_for_servers_of_its_names_alone() -> None:
    issued = issue((NAME, f"{NAME}.cluster.local"), 1e9, 90, AUTHORITY)
    (leaf,) = x509.load_pem_x509_certificates(issued.pair.certificate)
    (authority,) = x509.load_pem_x509_certificates(issued.authority)
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME, f"{NAME}.cluster.local"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.not_valid_before_utc.timestamp() == 1e9 - 3600
    assert issued.pair.not_after == 1e9 + 90 * DAY == leaf.not_valid_after_utc.timestamp()


# Files.


def write(directory: Path, issued: Issued, *, key_of: Issued | None = None) -> tuple[Path, Path]:
    paths = directory / "tls.crt", directory / "tls.key"
    paths[0].write_bytes(issued.pair.certificate)
    paths[1].write_bytes((key_of or issued).pair.key)
    return paths


def test_files_that_change_are_taken_and_half_a_change_is_not(tmp_path: Path) -> None:
    switch, notes = Switch(), []
    first, second = made(), made(days=30)
    files = FileCertificates(*write(tmp_path, first), switch, notes.append)
    files.check()
    files.check()
    assert notes == [True]
    write(tmp_path, second, key_of=first)
    for _ in range(3):
        with pytest.raises(NodeUnready):
            files.check()
    assert (notes, switch.pair) == ([True, False], first.pair)
    write(tmp_path, second)
    files.check()
    assert (notes, switch.pair) == ([True, False, True], second.pair)


def test_files_that_are_absent_or_no_certificate_say_what_to_do(tmp_path: Path) -> None:
    files = FileCertificates(tmp_path / "a", tmp_path / "b", Switch())
    with pytest.raises(NodeUnready, match="cert-manager"):
        files.check()
    (tmp_path / "a").write_bytes(b"nothing")
    (tmp_path / "b").write_bytes(b"x" * (1 << 21))
    with pytest.raises(NodeUnready, match="holds no certificate"):
        files.check()
    (tmp_path / "b").write_bytes(b"nothing")
    with pytest.raises(NodeUnready, match="cannot be read"):
        files.check()


class Load:
    """Callers that never rest, each with connections new and kept, until stopped; ``failures`` is what went wrong."""

    def __init__(self, port: int, context: Any) -> None:
        self._port = port
        self._context = context
        self._stop = threading.Event()
        self.answers = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._call, args=(kept,)) for kept in (False, True, False)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, kept: bool) -> None:
        caller: Caller | None = None
        while not self._stop.is_set():
            try:
                caller = caller or Caller(self._port, self._context())
                status, answer = caller.post("/validate", review())
                assert (status, answer["response"]["allowed"]) == (200, True)
                self.answers += 1
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))
            if not kept and caller:
                caller.close()
                caller = None
        if caller:
            caller.close()

    def wait_for(self, more: int) -> None:
        """Until so many more answers have come."""
        goal, deadline = self.answers + more, time.monotonic() + 20
        tick = threading.Event()
        while self.answers < goal and not self.failures:
            assert time.monotonic() < deadline
            tick.wait(0.005)


@pytest.fixture
def served():
    programs = []

    def start(certificates: Any, switch: Switch, metrics: Metrics | None = None) -> Program:
        settings = Settings(address="127.0.0.1", port=0)
        program = Program(settings, certificates, switch, metrics or Metrics("0"), check_seconds=0.01)
        programs.append(program)
        program.start()
        return program

    yield start
    for program in programs:
        program.stop()


def test_case_65_rotation_of_files_under_load_fails_no_request(tmp_path: Path, served: Any) -> None:
    issued = [made(days=30 + i) for i in range(6)]
    switch, metrics = Switch(), Metrics("0")
    files = FileCertificates(*write(tmp_path, issued[0]), switch, lambda taken: metrics.reloaded(taken=taken))
    program = served(files, switch, metrics)
    everyone = trusting(*(i.authority for i in issued))
    with Load(program.port, lambda: everyone) as load:
        load.wait_for(10)
        for old, new in pairwise(issued):
            write(tmp_path, new, key_of=old)  # what a reader may see between two writes
            load.wait_for(10)
            write(tmp_path, new)
            while switch.pair != new.pair:
                load.wait_for(1)
            load.wait_for(10)
    assert load.failures == []
    with Caller(program.port, trusting(issued[-1].authority)) as caller:
        _, page = caller.get("/metrics")
    figures = {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples}
    assert figures["vcuda_admission_certificate_expiry_timestamp_seconds"] == issued[-1].pair.not_after
    assert 'vcuda_admission_certificate_reloads_total{result="taken"} 6.0' in page


# Self-signed.


def test_the_first_start_makes_a_secret_tells_every_webhook_and_serves() -> None:
    vault, replica = Vault(), None
    replica = Replica(vault, [1e9])
    certificate = replica.check()
    assert everyone_trusts(vault, certificate)
    assert vault.data is not None
    assert set(vault.data) == {"tls.crt", "tls.key", "ca.crt"}
    version = vault.version
    assert (replica.check(), vault.version, replica.taken) == (certificate, version, 1)


def test_replicas_that_start_at_once_serve_one_certificate() -> None:
    vault, time_ = Vault(), [1e9]
    first, second = Replica(vault, time_), Replica(vault, time_)
    vault.before_save = lambda: (setattr(vault, "before_save", lambda: None), first.check())[0]
    assert second.check() == first.check()
    assert second.taken == 1


def test_renewal_at_two_thirds_serves_the_new_one_only_once_everyone_has_had_time_to_trust_it() -> None:
    vault, time_ = Vault(), [1e9]
    one, two = Replica(vault, time_), Replica(vault, time_, skew=300)
    old = one.check()
    assert two.check() == old
    time_[0] += 59 * DAY
    assert (one.check(), two.check(), vault.version) == (old, old, 1)
    time_[0] += 1 * DAY
    assert (one.check(), vault.version) == (old, 2)
    assert two.check() == old
    assert everyone_trusts(vault, old)
    time_[0] += 59
    assert (one.check(), two.check()) == (old, old)
    time_[0] += 1
    new = one.check()
    assert new != old
    assert two.check() == new
    assert everyone_trusts(vault, old)
    assert everyone_trusts(vault, new)
    fresh = Replica(vault, time_)
    assert fresh.check() == old  # it cannot know yet who has seen the new one
    time_[0] += 60
    assert fresh.check() == new
    time_[0] += 31 * DAY
    assert one.check() == new
    assert not everyone_trusts(vault, old)  # it has ended


def test_an_authority_that_someone_takes_away_is_put_back_and_waited_for_again() -> None:
    vault, time_ = Vault(), [1e9]
    replica = Replica(vault, time_)
    old = replica.check()
    time_[0] += 60 * DAY
    replica.check()
    before = dict(vault.bundles["mutating"])
    time_[0] += 50
    vault.bundles["mutating"] = {"pods": merge(b"", [vault.data["previous-ca.crt"]], time_[0], AUTHORITY)}
    assert replica.check() == old
    assert vault.bundles["mutating"] == before
    time_[0] += 50
    assert replica.check() == old
    time_[0] += 10
    assert replica.check() != old


def test_a_replica_with_an_old_view_takes_nothing_away() -> None:
    old, new = (issue((NAME,), 1e9 + DAY * day, 90, AUTHORITY) for day in (0, 60))
    foreign = issue((NAME,), 1e9, 90, "another authority")
    both = merge(b"", [old.authority, new.authority], 1e9 + 60 * DAY, AUTHORITY)
    assert merge(both, [old.authority], 1e9 + 60 * DAY, AUTHORITY) == both
    assert merge(both + foreign.authority + b"rubbish", [new.authority], 1e9 + 60 * DAY, AUTHORITY) == both
    assert merge(both, [new.authority], 1e9 + 91 * DAY, AUTHORITY) == new.authority
    assert merge(b"not PEM", [new.authority], 1e9, AUTHORITY) == new.authority


@pytest.mark.parametrize("damage", ["absent", "empty", "torn", "foreign"])
def test_a_damaged_secret_is_replaced_and_what_was_served_goes_on_until_the_new_one_is_trusted(
    damage: str,
) -> None:
    vault, time_ = Vault(), [1e9]
    replica = Replica(vault, time_)
    old = replica.check()
    assert vault.data is not None
    vault.data = {
        "absent": None,
        "empty": {},
        "torn": {**vault.data, "tls.key": b"-----BEGIN"},
        "foreign": {**vault.data, "ca.crt": made().authority},
    }[damage]
    assert replica.check() == old
    time_[0] += 60
    new = replica.check()
    assert new != old
    assert everyone_trusts(vault, new)


def test_other_names_make_another_certificate() -> None:
    vault, time_ = Vault(), [1e9]
    old = Replica(vault, time_).check()
    renamed = Replica(vault, time_, names=("other.kube-system.svc",))
    assert renamed.check() == old
    assert vault.version == 2


@pytest.mark.parametrize("verb", ["load", "save", "anchors", "anchor"])
def test_an_api_server_that_is_away_delays_the_renewal_and_nothing_else(verb: str) -> None:
    vault, time_ = Vault(), [1e9]
    replica = Replica(vault, time_)
    old = replica.check()
    time_[0] += 60 * DAY
    vault.broken = {verb}
    for _ in range(3):
        with pytest.raises(NodeUnready):
            replica.check()
        assert replica.switch.pair is not None
        assert replica.switch.pair.certificate == old
    vault.broken = set()
    assert replica.check() == old
    time_[0] += 60
    assert replica.check() != old


def test_a_secret_that_always_changes_ends_in_a_word() -> None:
    vault = Vault()
    vault.before_save = lambda: setattr(vault, "data", {} if vault.data is None else None)
    with pytest.raises(NodeUnready, match="another program"):
        Replica(vault, [1e9]).check()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_replicas_do_every_api_server_trusts_what_each_of_them_serves(seed: int) -> None:
    """API servers see the configurations up to 50 s late; clocks differ by half an hour; replicas come and go."""
    chance, vault, time_ = random.Random(seed), Vault(), [1e9]
    replicas = [Replica(vault, time_, skew=chance.uniform(-1800, 1800), life_days=10) for _ in range(2)]
    for replica in replicas:
        replica.check()
    seen: list[tuple[float, bytes]] = [(time_[0], vault.bundles["mutating"]["pods"])]
    renewals = vault.version
    for _ in range(250):
        time_[0] += chance.choice([1, 5, 10, 10, 30, 61, 3600, 40 * 3600])
        if chance.random() < 0.05:
            replicas[chance.randrange(2)] = Replica(
                vault, time_, skew=chance.uniform(-1800, 1800), life_days=10
            )
        vault.broken = (
            {chance.choice(["load", "save", "anchors", "anchor"])} if chance.random() < 0.1 else set()
        )
        for replica in chance.sample(replicas, 2):
            try:
                replica.check()
            except NodeUnready:
                continue
        seen.append((time_[0], vault.bundles["mutating"]["pods"]))
        late = [i for i, (at, _) in enumerate(seen) if at <= time_[0] - 50]
        known = [bundle for _, bundle in seen[late[-1] :]] if late else []
        for replica in replicas:
            pair = replica.switch.pair
            if pair is not None:
                assert all(trusts(bundle, pair.certificate) for bundle in known)
                assert pair.not_after > time_[0] or vault.broken
    assert vault.version > renewals + 3


def test_case_65_self_signed_renewal_under_load_fails_no_request_of_callers_that_lag(served: Any) -> None:
    vault, time_, switch = Vault(), [time.time() - 17 * 3600], Switch()
    keeper = SelfSigned(vault, switch, Clock(time_), names=(HOST,), life_days=1, settle_seconds=60)
    program = served(keeper, switch)
    lagging = [trusting(vault.bundles["mutating"]["pods"])]
    with Load(program.port, lambda: lagging[0]) as load:
        load.wait_for(10)
        first = switch.pair
        # Two thirds of its life have gone, by the service's clock; what callers trust is a step behind.
        time_[0] += 16 * 3600 + 1
        while vault.version < 2:
            load.wait_for(1)
        load.wait_for(10)
        assert switch.pair == first
        lagging[0] = trusting(vault.bundles["mutating"]["pods"])
        load.wait_for(10)
        time_[0] += 61
        while switch.pair == first:
            load.wait_for(1)
        load.wait_for(20)
    assert load.failures == []


# The Secret and the configurations in an API server.


@pytest.fixture
def api():
    with StandInApi() as api:
        yield api


@pytest.fixture
def kube(api: StandInApi):
    connection = connect(url=api.url, token=ADMIN_TOKEN)
    yield KubeCertificates(connection, "kube-system", "certs", ("admission", "absent"))
    connection.close()


def configuration(kind: str) -> dict[str, Any]:
    hooks = [
        {
            "name": name,
            "clientConfig": {"service": {"name": "s", "namespace": "kube-system"}},
            "sideEffects": "None",
        }
        for name in ("pods.x.io", "workloads.x.io")
    ]
    version = "admissionregistration.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "admission"}, "webhooks": hooks}


def test_the_secret_is_created_once_and_replaced_only_by_who_read_it_last(kube: KubeCertificates) -> None:
    assert kube.load() is None
    assert kube.save({"a": b"1", "b": b"2"}, None)
    assert not kube.save({"a": b"3"}, None)
    found = kube.load()
    assert found is not None
    assert found[0] == {"a": b"1", "b": b"2"}
    assert kube.save({"a": b"4"}, found[1])
    assert not kube.save({"a": b"5"}, found[1])
    assert kube.load()[0] == {"a": b"4"}  # type: ignore[index]


def test_each_webhook_is_told_and_a_stale_writer_is_refused(api: StandInApi, kube: KubeCertificates) -> None:
    assert kube.anchors() == []
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        api.create(configuration(kind))
    anchors = kube.anchors()
    assert [bundles for _, _, bundles in anchors] == [{"pods.x.io": b"", "workloads.x.io": b""}] * 2
    for path, version, bundles in anchors:
        assert kube.anchor(path, version, dict.fromkeys(bundles, b"PEM"))
        assert not kube.anchor(path, version, dict.fromkeys(bundles, b"other"))
    assert [bundles for _, _, bundles in kube.anchors()] == [
        {"pods.x.io": b"PEM", "workloads.x.io": b"PEM"}
    ] * 2


def test_the_whole_of_it_works_against_an_api_server(api: StandInApi, kube: KubeCertificates) -> None:
    api.create(configuration("MutatingWebhookConfiguration"))
    switch, time_ = Switch(), [time.time()]
    keeper = SelfSigned(kube, switch, Clock(time_), names=(NAME,))
    keeper.check()
    first = switch.pair
    ((_, _, bundles),) = kube.anchors()
    assert first is not None
    assert all(trusts(bundle, first.certificate) for bundle in bundles.values())
    time_[0] += 61 * DAY
    keeper.check()
    time_[0] += 61
    keeper.check()
    assert switch.pair not in (None, first)


def test_an_api_server_that_is_gone_is_unready(api: StandInApi, kube: KubeCertificates) -> None:
    api.stop()
    for call in (kube.load, kube.anchors, lambda: kube.save({}, None), lambda: kube.anchor("/x", "1", {})):
        with pytest.raises(NodeUnready):
            call()
