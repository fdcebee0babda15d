"""What filter offered is what bind may take, node by node and pod by pod."""

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.extender.filter_results import OFFER_SECONDS, FilterResults
from gpu_manager.domain.pod import PodUid
from tests.fakes.ports import FakeClock

names = st.lists(st.sampled_from([f"n{i}" for i in range(40)]), unique=True)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("abc"), names)))
def test_a_node_is_offered_if_and_only_if_the_last_answer_for_the_pod_had_it(answers):
    offers, last = FilterResults(FakeClock()), {}
    for pod, nodes in answers:
        offers.remember(PodUid(pod), nodes)
        last[pod] = nodes
    for pod in "abc":
        offered = [f"n{i}" for i in range(41) if offers.has(PodUid(pod), f"n{i}")]
        assert offered == sorted(last.get(pod, []), key=lambda name: int(name[1:]))


def test_an_offer_ends_with_its_minute():
    clock = FakeClock()
    offers = FilterResults(clock)
    offers.remember(PodUid("a"), ["n1"])
    clock.time += OFFER_SECONDS + 0.1
    assert not offers.has(PodUid("a"), "n1")
