"""The picture of the node's pods over time: tombstones, memories and their ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.kube.pods import PodCache, place_of
from gpu_manager.domain.kube.pod import Pod, PodUid
from tests.fakes.ports import FakeClock


def pod(uid, name="train", created=""):
    return Pod(PodUid(uid), "default", name, (), node="n1", created=created)


def shown(cache):
    return {key: [(f.pod.uid, f.tombstone) for f in found] for key, found in cache.by_name().items()}


def replace(cache, pods):
    changes = cache.keep({place_of(pod) for pod in pods}) + [cache.listed(pod) for pod in pods]
    return [change for change in changes if change is not None]


def test_a_tombstone_lasts_two_minutes():
    clock = FakeClock()
    cache = PodCache(clock)
    cache.put(pod("a"))
    cache.remove(pod("a"))
    clock.time += 119.9
    assert shown(cache) == {"default/train": [("a", True)]}
    clock.time += 0.2
    assert shown(cache) == {}


def test_a_memory_that_the_watch_confirms_stays_and_one_that_it_does_not_ends():
    clock = FakeClock()
    cache = PodCache(clock)
    cache.remember([pod("a"), pod("b", "other")])
    cache.put(pod("a"))
    clock.time += 121
    assert shown(cache) == {"default/train": [("a", False)]}


def test_a_memory_never_wakes_the_dead():
    cache = PodCache(FakeClock())
    cache.put(pod("a"))
    cache.remove(pod("a"))
    cache.remember([pod("a")])
    assert shown(cache) == {"default/train": [("a", True)]}


def test_a_list_tells_what_changed_and_nothing_else():
    cache = PodCache(FakeClock())
    cache.put(pod("a"))
    cache.put(pod("b", "other"))
    changes = replace(cache, [pod("b", "other"), pod("c", "new")])
    assert [(f.pod.uid, f.tombstone) for f in changes] == [("a", True), ("c", False)]


def test_tombstones_are_bounded_and_the_oldest_go_first():
    clock = FakeClock()
    cache = PodCache(clock)
    for number in range(4200):
        clock.time += 0.001
        cache.remove(pod(f"u{number}"))
    kept = [uid for uid, _ in shown(cache)["default/train"]]
    assert len(kept) == 4096
    assert kept[0] == "u4199"


def test_of_two_names_under_one_uid_the_first_is_shown_while_it_lives():
    """The UID of a static pod is no secret, and its mirror is made anew whenever somebody deletes it."""
    clock = FakeClock()
    cache = PodCache(clock)
    real, forged = pod("a", "real"), pod("a", "forged")
    assert cache.put(real) is not None
    assert cache.put(forged) is None
    cache.remember([forged])
    assert shown(cache) == {"default/real": [("a", False)]}
    cache.remove(real)
    assert shown(cache) == {"default/forged": [("a", False)]}
    assert cache.put(real) is not None
    assert shown(cache) == {"default/real": [("a", False)]}
    assert cache.remove(forged) is None
    assert shown(cache) == {"default/real": [("a", False)]}
    assert [f.pod.name for f in replace(cache, [forged])] == ["real", "forged"]
    clock.time += 121
    assert shown(cache) == {"default/forged": [("a", False)]}
    assert [f.tombstone for f in replace(cache, [])] == [True]
    clock.time += 121
    assert shown(cache) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "remove", "replace", "remember", "wait"]),
            st.sets(st.sampled_from("abcd")),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_living_are_exactly_those_the_watch_or_a_fresh_memory_shows(steps):
    clock, living, remembered = FakeClock(), set(), {}
    cache = PodCache(clock)
    dead = {}
    for step, uids in steps:
        if step == "wait":
            clock.time += 50
        elif step == "replace":
            replace(cache, [pod(u) for u in sorted(uids)])
            dead |= dict.fromkeys(living - uids, clock.time)
            living = set(uids)
        elif step == "remember":
            cache.remember([pod(u) for u in sorted(uids)])
            entombed = {u for u, t in dead.items() if clock.time < t + 120 and u not in living}
            remembered |= dict.fromkeys(uids - living - entombed, clock.time)
        else:
            for uid in sorted(uids):
                getattr(cache, step)(pod(uid))
                (living.add if step == "put" else living.discard)(uid)
                if step == "remove":
                    dead[uid] = clock.time
        for uid in living:
            dead.pop(uid, None)
        for uid in {*living, *dead}:
            remembered.pop(uid, None)
        dead = {u: t for u, t in dead.items() if clock.time < t + 120}
        remembered = {u: t for u, t in remembered.items() if clock.time < t + 120}
        found = cache.by_name().get("default/train", [])
        assert {f.pod.uid for f in found if not f.tombstone} == living | remembered.keys()
        assert {f.pod.uid for f in found if f.tombstone} == dead.keys()
        assert [f.tombstone for f in found] == sorted(f.tombstone for f in found)
