"""Quota: the predecessor's ConfigMap unchanged, its extensions, and the hard line with its sums."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES
from admission.quota.quota_book import NOT_SYNCED, QuotaBook, refuse_at_create
from gpu_manager.domain.cluster.quota import NO_QUOTA
from gpu_manager.domain.cluster.quota_map import parse_quota, read_quota
from gpu_manager.domain.contract import GPU_MODEL, POOL_LABEL
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.resources import GIB, MIB, Amount
from tests.fakes.extender import World, config_map, container, node, pod

quick = settings(max_examples=60)
T4, V100 = "Tesla-T4", "Tesla-V100-SXM2-32GB"


def test_the_predecessor_s_own_example_reads_unchanged():
    quota = parse_quota(
        '{"A": {"quota": {"M40": 2, "P100": 3}}, "B": {"quota": {"T4": 1}, "pool": ["public"]}}'
    )
    assert quota.of("A").cores == {"M40": 200, "P100": 300}
    assert quota.of("A").memory is None
    assert quota.of("B").pools == ("public",)
    assert quota.of("C") is None


def test_extensions_memory_in_mib_and_stars_for_any_model_and_any_namespace():
    quota = parse_quota('{"a": {"quota": {"*": 2.5}, "memory": {"T4": 1024}}, "*": {"quota": {"T4": 1}}}')
    assert quota.of("a").cores == {"*": 250}
    assert quota.of("a").memory == {"T4": 1024 * MIB}
    assert quota.of("whoever").cores == {"T4": 100}


def too_large(quota, namespace, cores, memory=0):
    return quota.too_large(namespace, [("c", Amount(cores, memory))])


def test_one_container_has_a_bound_of_its_own_beside_the_sums():
    quota = parse_quota(
        '{"a": {"quota": {"T4": 4}, "containerMax": {"cores": 50, "memory": 4096}},'
        ' "b": {"containerMax": {"cores": 200}}, "c": {"quota": {"T4": 4}}, "d": {"protected": {"T4": 1}},'
        ' "*": {"quota": {"*": 1}, "containerMax": {"memory": 1024}}}'
    )
    assert too_large(quota, "a", 50, 4096 * MIB) == []
    assert too_large(quota, "a", 51, 4097 * MIB) == [
        "c asks for 51 cores, and one container may have 50",
        "c asks for 4097 MiB of a card, and one container may have 4096 MiB",
    ]
    assert (too_large(quota, "b", 200, 80 * GIB), len(too_large(quota, "b", 300))) == ([], 1)
    assert quota.of("b") == quota.of("whoever"), "an entry with nothing but this leaves the sums as they are"
    assert too_large(quota, "c", 400, 80 * GIB) == []
    for name in ("d", "whoever"):
        assert len(too_large(quota, name, 400, 2 * GIB)) == 1
    assert quota.right("b") == quota.right("whoever")
    assert too_large(quota.only("a"), "a", 51)
    assert quota.entry("a") != parse_quota('{"a": {"quota": {"T4": 4}}}').entry("a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": {"containerMax": 50}}', "containerMax is 50, not a map of cores and memory"),
        ('{"a": {"containerMax": {"core": 50}}}', '"core" means nothing: use cores and memory'),
        ('{"a": {"containerMax": {"cores": 0.5}}}', "use a number of hundredths of a card"),
        ('{"a": {"containermax": {"cores": 50}}}', "did you mean containerMax?"),
        ("{", "not JSON"),
        ("[]", "not a map of namespaces"),
        ('{"a": 3}', 'namespace "a" is 3'),
        ('{"a": {"quota": [1]}}', "not a map of models to cards"),
        ('{"a": {"quota": {"T4": "4"}}}', 'quota of "T4" is "4", not a number of cards'),
        ('{"a": {"quota": {"T4": true}}}', "not a number"),
        ('{"a": {"quota": {"T4": -1}}}', "use a number of cards, 0 or more"),
        ('{"a": {"quota": {"T4": 0.123}}}', "two decimals at most"),
        ('{"a": {"memory": {"T4": 1e99}}}', "use a number of MiB"),
        ('{"a": {"pool": "blue"}}', 'pool is "blue", not a list'),
        ("[" * 100_000, "not JSON"),
        ('{"a": {"quota": {"T4": NaN}}}', "quota"),
        ('{"a": {"quota": {"T4": 1}}, "a": {"protected": {"*": 1}}}', '"a" is written twice'),
        ('{"a": {"quota": {"T4": 4, "T4": 1}}}', '"T4" is written twice'),
        (
            '{"a": {"quota": {"T4": 1}, "memory2": {"T4": 1}}}',
            '"memory2" means nothing: did you mean memory?',
        ),
        ('{"a": {"quota": {"T4": 1}, "Protected": {"T4": 1}}}', "did you mean protected?"),
    ],
)
def test_what_cannot_be_used_is_named(text, words):
    with pytest.raises(NodeUnready, match="kube-system/gpuquota, key gpu_quota, cannot be used: ") as error:
        read_quota(config_map(text))
    assert words in str(error.value)


def test_a_namespace_is_best_effort_by_its_own_entry_or_by_that_of_all():
    quota = parse_quota(
        '{"a": {"priority": "best-effort"}, "b": {"quota": {"*": 1}}, "*": {"priority": "best-effort"}}'
    )
    assert [quota.is_best_effort(name) for name in ("a", "b", "c")] == [True, False, True]
    assert quota.of("a") is None, "nothing else is limited by it"
    assert quota.entry("a") != quota.entry("b")
    with pytest.raises(RequestInvalid, match='priority is "protected": use best-effort, or leave it out'):
        parse_quota('{"a": {"priority": "protected"}}')


def test_another_key_of_an_entry_is_passed_over_as_by_the_predecessor():
    assert parse_quota('{"a": {"quota": {"T4": 1}, "owner": "hers"}}').of("a").cores == {"T4": 100}


def test_a_bad_config_map_keeps_the_last_good_one_with_a_word():
    book = QuotaBook()
    assert book.missing() == NOT_SYNCED
    book.update(config_map('{"a": {"quota": {"T4": 1}}}'))
    good = book.current
    news = book.update(config_map('{"a": {"quota": {"T4": "one"}}}'))
    assert book.current is good
    assert "not a number of cards" in news.complaint == book.complaint
    assert book.missing() == ""
    assert book.update(config_map('{"a": {"quota": {"T4": 2}}}')).complaint == "" == book.complaint


def test_a_config_map_bad_from_the_start_lets_nobody_pass_and_says_why():
    world = World([node("n1")])
    world.extender.quota = QuotaBook()
    world.extender.quota.update(config_map("{"))
    error = world.filter(pod("a"))["Error"]
    assert NOT_SYNCED in error
    assert "not JSON" in error


def test_without_a_config_map_nobody_is_limited_and_a_deleted_one_frees_whoever_was():
    book = QuotaBook()
    book.update(config_map('{"a": {"quota": {"T4": 1}}, "b": {"quota": {"T4": 1}}}'))
    assert book.update(None).namespaces == {"a", "b"}
    assert book.current.namespaces == NO_QUOTA.namespaces


def test_a_change_names_the_namespaces_whose_pending_pods_try_again():
    book = QuotaBook()
    book.update(config_map('{"a": {"quota": {"T4": 1}}, "b": {"quota": {"T4": 1}}}'))
    assert book.update(config_map('{"a": {"quota": {"T4": 2}}, "b": {"quota": {"T4": 1}}}')).namespaces == {
        "a"
    }


def test_the_refusal_has_the_sums_and_what_would_still_fit():
    world = World([node("n1")], [pod("x", 70, 4, on="n1", namespace="a")], quota={"a": {"quota": {"T4": 1}}})
    said = world.filter(pod("y", 40, 4, namespace="a"))["FailedAndUnresolvableNodes"]["n1"]
    assert said == (
        'ExceedsGPUQuota: namespace "a": 1 card of T4, 0.7 used or being bound, 0.4 asked: 0.3 would still fit'
    )
    assert world.filter(pod("y", 30, 4, namespace="a"))["NodeNames"] == ["n1"]
    assert world.filter(pod("y", 40, 4, namespace="b"))["NodeNames"] == ["n1"]


def test_memory_is_limited_by_model_too():
    quota = {"a": {"quota": {"T4": 9}, "memory": {"T4": 5 * 1024}}}
    world = World([node("n1")], [pod("x", 10, 16, on="n1", namespace="a")], quota=quota)
    said = world.filter(pod("y", 10, 8, namespace="a"))["FailedAndUnresolvableNodes"]["n1"]
    assert "5 GiB of T4, 4 GiB used or being bound, 2 GiB asked: 1 GiB would still fit" in said
    assert world.filter(pod("y", 10, 4, namespace="a"))["NodeNames"] == ["n1"]


def test_whole_cards_count_with_all_their_memory():
    world = World([node("n1", memory=8 * GIB)], quota={"a": {"memory": {"T4": 8 * 1024}}})
    assert world.filter(pod("one", 100, None, namespace="a"))["NodeNames"] == ["n1"]
    assert world.filter(pod("two", 200, None, namespace="a"))["NodeNames"] == []


def test_a_model_that_is_not_named_is_not_granted():
    world = World([node("n1"), node("n2", model=V100)], quota={"a": {"quota": {"V100": 4}}})
    said = world.filter(pod("y", namespace="a"))
    assert said["NodeNames"] == ["n2"]
    assert 'model "Tesla-T4" is not among its models (V100)' in said["FailedAndUnresolvableNodes"]["n1"]


def test_a_star_limits_all_models_together():
    world = World([node("n1"), node("n2", model=V100)], quota={"a": {"quota": {"*": 1, "V100": 1}}})
    world.create(pod("x", 80, 4, on="n1", namespace="a"))
    assert world.filter(pod("y", 30, 4, namespace="a"))["NodeNames"] == []
    assert world.filter(pod("y", 20, 4, namespace="a"))["NodeNames"] == ["n1", "n2"]


def test_of_several_keys_that_match_a_card_every_one_counts_in_whatever_order_they_stand():
    for cores in ({"V100": 4, "*": 1}, {"*": 4, "V100": 1}):
        world = World([node("n1", cards=4, model=V100)], quota={"a": {"quota": cores}})
        said = world.filter(pod("two", 200, None, namespace="a"))
        assert said["NodeNames"] == []
        assert "2 asked: 1 would still fit" in str(said)


def test_on_a_node_of_two_models_the_quota_decides_which_card():
    world = World([node("n1", model=[T4, V100])], quota={"a": {"quota": {"V100": 1}}})
    world.create(pod("x", namespace="a"))
    assert world.schedule(pod("x", namespace="a")) == "n1"
    assert world.booked("n1") == [(0, 0), (30, 4)]


def test_pools_are_those_of_the_node_s_label():
    nodes = [node("n1", labels={POOL_LABEL: "blue"}), node("n2", labels={POOL_LABEL: "red"}), node("n3")]
    world = World(nodes, quota={"a": {"quota": {"*": 9}, "pool": ["blue"]}})
    said = world.filter(pod("x", namespace="a"))
    assert said["NodeNames"] == ["n1"]
    assert 'it may use pool blue; the node is of pool "red"' in said["FailedAndUnresolvableNodes"]["n2"]
    assert said["FailedAndUnresolvableNodes"]["n3"].startswith("ExceedsGPUQuota")


def test_what_is_being_bound_counts_before_the_watch_shows_it():
    world = World([node("n1"), node("n2")], quota={"a": {"quota": {"T4": 1}}}, watching=False)
    first, second = pod("p", 60, 4, namespace="a"), pod("q", 60, 4, namespace="a")
    for obj in (first, second):
        world.create(obj)
        world.filter(obj)
    assert world.bind(first, "n1") == ""
    assert "ExceedsGPUQuota" in world.bind(second, "n2")


def test_a_quota_cut_below_what_is_used_stops_new_pods_alone():
    world = World([node("n1")], [pod("x", 80, 4, on="n1", namespace="a")], quota={"a": {"quota": {"T4": 0}}})
    said = world.filter(pod("y", namespace="a"))["FailedAndUnresolvableNodes"]["n1"]
    assert "0 cards of T4, 0.8 used or being bound, 0.3 asked: 0 would still fit" in said
    assert world.booked("n1")[0] == (80, 4)


def test_every_container_counts_and_init_containers_by_the_peak():
    world = World([node("n1")], quota={"a": {"quota": {"T4": 1}}})
    two = pod("p", namespace="a", containers=[container("x", 50, 4), container("y", 60, 4)])
    assert world.filter(two)["NodeNames"] == []
    after = pod("q", namespace="a", containers=[container("x", 50, 4)], init=[container("i", 60, 4)])
    assert world.filter(after)["NodeNames"] == ["n1"]


def test_at_create_a_pod_is_refused_only_if_it_asks_for_more_than_is_granted_of_every_model():
    quota = parse_quota('{"a": {"quota": {"T4": 1, "V100": 1}}}')
    used = {"a": {T4: Amount(100, 0)}}
    ask = Amount(30, GIB)
    assert refuse_at_create(quota, used, "a", ask, [T4, V100]) is None
    for held in (90, 99, 100, 101):
        assert refuse_at_create(quota, {"a": {T4: Amount(held, 0)}}, "a", ask, [T4]) is None  # it may wait
    assert "2 asked" in refuse_at_create(quota, {}, "a", Amount(200, 0), [T4, V100])  # it never could
    never = refuse_at_create(quota, used, "a", Amount(200, 0), [T4])
    assert "1 card of T4, 1 used or being bound, 2 asked: 0 would still fit" in never  # and says what is used
    by_memory = parse_quota('{"a": {"quota": {"T4": 4}, "memory": {"T4": 1024}}}')
    assert refuse_at_create(by_memory, {"a": {T4: Amount(10, GIB)}}, "a", Amount(10, GIB), [T4]) is None
    full = refuse_at_create(by_memory, {"a": {T4: Amount(10, GIB)}}, "a", Amount(10, 2 * GIB), [T4])
    assert "1 GiB of T4, 1 GiB used or being bound, 2 GiB asked: 0 B would still fit" in full
    assert refuse_at_create(quota, used, "b", ask, [T4]) is None
    assert refuse_at_create(quota, used, "a", ask, []) is None


def test_an_entry_of_pools_alone_says_that_it_closes_every_card():
    quota = parse_quota('{"a": {"pool": ["gold"]}}')
    text = refuse_at_create(quota, {}, "a", Amount(30, GIB), [T4])
    assert (
        'its entry names pools (gold) and no models, which closes every card to it: list models under "quota"'
        in text
    )


def test_allow_lists_and_quota_meet():
    world = World([node("n1"), node("n2", model=V100)], quota={"a": {"quota": {"T4": 1}}})
    assert world.filter(pod("x", namespace="a", annotations={GPU_MODEL: "V100"}))["NodeNames"] == []


def test_a_node_without_inventory_counts_by_its_model_label():
    labels = {"gaia.tencent.com/gpu-model": "T4"}
    world = World([node("n1", inventory=False, labels=labels), node("n2")], quota={"a": {"quota": {"T4": 1}}})
    world.create(pod("x", 80, 4, on="n1", namespace="a"))
    assert world.cluster.snapshot().used == {"a": {"T4": Amount(80, GIB)}}
    assert world.filter(pod("y", namespace="a"))["NodeNames"] == []
    world.cluster.apply(NODES, "MODIFIED", node("n1"))  # its agent came up
    assert world.cluster.snapshot().used == {"a": {T4: Amount(80, GIB)}}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "quota", "memory", "pool", "T4", "*"]), inner, max_size=4)
        ),
        max_leaves=15,
    )
)
@quick
def test_any_config_map_is_read_or_complained_about(value):
    book = QuotaBook()
    news = book.update(config_map(json.dumps(value)))
    assert (book.current is None) == bool(news.complaint)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([(10, 1), (50, 8), (100, None)]), st.booleans()),
        max_size=14,
    ),
    st.integers(0, 3),
)
@quick
def test_no_order_of_pods_passes_a_quota(steps, limit):
    world = World([node("n1", 3), node("n2", 3, model=V100)], quota={"a": {"quota": {"*": limit, "V100": 1}}})
    for i, (namespace, shape, ends) in enumerate(steps):
        obj = pod(f"p{i}", *shape, namespace=namespace)
        world.create(obj)
        where = world.schedule(obj)
        if where and ends:
            world.delete(world.api.pods[namespace, f"p{i}"])
        used = world.cluster.snapshot().used.get("a", {})
        assert sum(a.cores for a in used.values()) <= limit * 100
        assert used.get(V100, Amount(0, 0)).cores <= 100


@pytest.mark.parametrize("number", ["1e999999999", "1E+99999999", "1e-999999999"])
def test_a_number_of_a_billion_digits_is_no_count_and_costs_nothing(number: str) -> None:
    with pytest.raises(RequestInvalid, match="is no count"):
        parse_quota(f'{{"a": {{"quota": {{"V100": {number}}}}}}}')
