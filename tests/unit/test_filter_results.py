"""What filter offered is what bind may take, node by node and pod by pod."""

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.extender.binding import FilterResults
from gpu_manager.domain.kube.pod import PodUid

names = st.lists(st.sampled_from([f"n{i}" for i in range(40)]), unique=True)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abc"), names)), st.sampled_from([0, 20, 31, 32, 100]))
def test_a_node_is_offered_if_and_only_if_an_answer_for_the_pod_had_it(answers, others):
    offers, last = FilterResults(), {}
    for pod, nodes in answers:
        offers.remember(PodUid(pod), nodes)
        last.setdefault(pod, set()).update(nodes)
    for other in range(others):
        offers.remember(PodUid(f"other-{other}"), ["n7", f"x{other}"])
    for pod in "abc":
        offered = [f"n{i}" for i in range(41) if offers.has(PodUid(pod), f"n{i}")]
        assert offered == sorted(last.get(pod, ()), key=lambda name: int(name[1:]))


def test_of_a_bound_pod_only_its_node_stays_offered():
    offers = FilterResults()
    for pod in "abc":
        offers.remember(PodUid(pod), ["n1", "n2"])
    offers.bound(PodUid("b"), "n2")
    offers.bound(PodUid("unknown"), "n2")
    found = [[offers.has(PodUid(pod), node) for node in ("n1", "n2")] for pod in ("a", "b", "c", "unknown")]
    assert found == [[True, True], [False, True], [True, True], [False, False]]


def test_a_replica_that_begins_to_lead_takes_what_others_offered_until_it_is_asked_itself():
    offers = FilterResults()
    offers.inherit(map(PodUid, "ab"))
    offers.remember(PodUid("a"), ["n1"])
    offers.remember(PodUid("b"), [])
    offers.inherit([PodUid("c")])
    found = [[offers.has(PodUid(pod), node) for node in ("n1", "n2")] for pod in ("a", "b", "c", "d")]
    assert found == [[True, False], [False, False], [True, True], [False, False]]
