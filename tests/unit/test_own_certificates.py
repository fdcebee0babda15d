"""Certificates that the service signs for itself: renewed in order, by replicas that race."""

from __future__ import annotations

import random

import pytest

from admission.serving.authority import merge
from admission.serving.certs import issue
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.vault import AUTHORITY, DAY, NAME, Replica, Vault, everyone_trusts, trusts
from tests.seeds import seeds


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
        "foreign": {**vault.data, "ca.crt": issue((NAME,), 1e9, 90, AUTHORITY).authority},
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


@pytest.mark.parametrize("seed", seeds(4))
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
