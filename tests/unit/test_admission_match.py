from collections.abc import Mapping
from fractions import Fraction

from gpu_manager.domain.admission_match import (
    ContainerCandidate,
    PreferenceCall,
    choose,
    matching,
    reuser,
    unsatisfied,
    withdrawn,
)
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def container(name: str, core: int, memory: int = 4, kind: ContainerKind = APP) -> Container:
    return Container(name, kind, core=Fraction(core), memory_units=Fraction(memory))


def pod(name: str, *containers: Container, uid: str | None = None, **more: object) -> Pod:
    return Pod(PodUid(uid or f"uid-{name}"), "default", name, containers, **{"phase": "Pending", **more})  # type: ignore[arg-type]


class Held:
    """The books: (pod, container, resource) → ids."""

    def __init__(self, held: Mapping[tuple[str, str, str], set[str]] | None = None) -> None:
        self.held = held or {}

    def __call__(self, uid: PodUid, name: str, resource: str) -> frozenset[str]:
        return frozenset(self.held.get((uid, name, resource), ()))


NOTHING = Held()


def listed(**containers: Mapping[str, set[str]]) -> dict[str, dict[str, frozenset[str]]]:
    return {name: {r: frozenset(ids) for r, ids in held.items()} for name, held in containers.items()}


def ask(
    objects: list[tuple[Pod, dict[str, dict[str, frozenset[str]]]]],
    question: PreferenceCall,
    holds: Held = NOTHING,
    **more: object,
) -> ContainerCandidate | None:
    return choose(matching(unsatisfied(objects, question.resource, holds), question, holds), **more)  # type: ignore[arg-type]


def key(candidate: ContainerCandidate | None) -> tuple[str, str] | None:
    return candidate.key if candidate else None


def test_the_one_active_pod_that_lacks_the_resource_is_it() -> None:
    done = pod("done", container("c", 30))
    new = pod("new", container("c", 30))
    objects = [(done, listed(c={CORE: {"x"}, MEMORY: {"y"}})), (new, listed(c={}))]
    assert key(ask(objects, PreferenceCall(CORE, 30))) == ("uid-new", "c")


def test_the_next_container_in_order_is_meant_not_a_later_one_of_the_same_size() -> None:
    two = pod("two", container("a", 30), container("b", 30))
    assert key(ask([(two, listed(a={}, b={}))], PreferenceCall(CORE, 30))) == ("uid-two", "a")
    assert key(ask([(two, listed(a={CORE: {"x"}}, b={}))], PreferenceCall(CORE, 30))) == ("uid-two", "b")


def test_another_amount_is_not_this_pod() -> None:
    assert ask([(pod("p", container("a", 30)), listed(a={}))], PreferenceCall(CORE, 20)) is None


def test_the_kubelet_is_past_an_init_container_once_a_later_one_has_anything() -> None:
    """Its ids may be booked under a made-up name: then the books do not show them at it."""
    one = pod("one", container("init", 10, 4, kind=INIT), container("app", 30, 20))
    books = Held({("uid-one", "init", CORE): {"x"}})
    assert key(ask([(one, listed(app={CORE: {"y"}}))], PreferenceCall(MEMORY, 20), books)) == (
        "uid-one",
        "app",
    )
    assert key(ask([(one, listed(app={}))], PreferenceCall(MEMORY, 4), books)) == ("uid-one", "init")


def test_init_containers_are_judged_by_the_books_since_they_are_never_listed() -> None:
    one = pod("one", container("init", 50, kind=INIT), container("app", 30))
    assert key(ask([(one, listed(app={}))], PreferenceCall(CORE, 50))) == ("uid-one", "init")
    books = Held({("uid-one", "init", CORE): {"x"}})
    assert key(ask([(one, listed(app={}))], PreferenceCall(CORE, 30), books)) == ("uid-one", "app")


def test_sidecars_are_judged_by_the_listing() -> None:
    one = pod("one", container("side", 10, kind=SIDECAR), container("app", 30))
    assert key(ask([(one, listed(side={CORE: {"x"}}, app={}))], PreferenceCall(CORE, 30))) == (
        "uid-one",
        "app",
    )


def test_what_must_be_included_names_its_pod() -> None:
    a, b = (
        pod("a", container("i", 50, kind=INIT), container("c", 60)),
        pod("b", container("i", 50, kind=INIT), container("c", 60)),
    )
    books = Held({("uid-a", "i", CORE): {"a1"}, ("uid-b", "i", CORE): {"b1"}})
    objects = [(a, listed(c={})), (b, listed(c={}))]
    assert key(ask(objects, PreferenceCall(CORE, 60, frozenset({"b1"})), books)) == ("uid-b", "c")


def test_several_equal_candidates_are_not_guessed() -> None:
    objects = [(pod("a", container("c", 30)), listed(c={})), (pod("b", container("c", 30)), listed(c={}))]
    assert ask(objects, PreferenceCall(CORE, 30)) is None


def test_the_pod_under_first_admission_wins_over_those_from_before_the_resource_existed() -> None:
    old = [
        (pod(f"old{i}", container("c", 30), phase="Running", started=True), listed(c={})) for i in range(6)
    ]
    new = (pod("new", container("c", 30)), listed(c={}))
    assert key(ask([*old, new], PreferenceCall(CORE, 30))) == ("uid-new", "c")


def test_an_old_pod_alone_still_gets_its_grant_after_a_reboot() -> None:
    old = pod("old", container("c", 30), phase="Running", started=True)
    assert key(ask([(old, listed(c={}))], PreferenceCall(CORE, 30), never=frozenset({old.uid}))) == (
        "uid-old",
        "c",
    )


def test_while_a_listed_pod_cannot_be_read_only_one_under_first_admission_is_certain() -> None:
    """The kubelet may mean the one that could not be read."""
    old = (pod("old", container("c", 30), phase="Running", started=True), listed(c={}))
    new = (pod("new", container("c", 30)), listed(c={}))
    assert ask([old], PreferenceCall(CORE, 30), unread=True) is None
    assert key(ask([old, new], PreferenceCall(CORE, 30), unread=True)) == ("uid-new", "c")


def test_a_pod_passed_over_once_yields_to_one_that_was_not() -> None:
    ghost, new = pod("ghost", container("c", 30)), pod("new", container("c", 30))
    objects = [(ghost, listed(c={})), (new, listed(c={}))]
    assert key(ask(objects, PreferenceCall(CORE, 30), never=frozenset({ghost.uid}))) == ("uid-new", "c")


def test_the_partner_breaks_a_tie_but_never_overrules_the_listing() -> None:
    a, b = pod("a", container("c", 30)), pod("b", container("c", 30))
    both = [(a, listed(c={CORE: {"x"}})), (b, listed(c={CORE: {"y"}}))]
    assert key(ask(both, PreferenceCall(MEMORY, 4), partner=(a.uid, "c"))) == ("uid-a", "c")
    # a was rejected between its two resources and left the list: the next pod's call looks the same.
    assert key(ask(both[1:], PreferenceCall(MEMORY, 4), partner=(a.uid, "c"))) == ("uid-b", "c")


def test_memory_only_and_core_only_containers_are_identified_too() -> None:
    odd = pod("odd", container("m", 0, 8), container("c", 30, 0))
    assert key(ask([(odd, listed(m={}, c={}))], PreferenceCall(MEMORY, 8))) == ("uid-odd", "m")
    assert key(ask([(odd, listed(m={}, c={}))], PreferenceCall(CORE, 30))) == ("uid-odd", "c")


def test_re_used_ids_go_to_the_next_container_that_asks_for_as_many() -> None:
    one = pod("one", container("init", 30, kind=INIT), container("side", 10), container("app", 30))
    books = Held({("uid-one", "init", CORE): {"x", "y"}})
    ids = frozenset(f"i{n}" for n in range(30))
    found = reuser(one, ids, CORE, books)
    assert found is not None
    assert found.name == "app"


def test_ids_asked_for_again_belong_to_who_has_exactly_these() -> None:
    one = pod("one", container("app", 2))
    ids = {"x", "y"}
    found = reuser(one, frozenset(ids), CORE, Held({("uid-one", "app", CORE): ids}))
    assert found is not None
    assert found.name == "app"
    assert reuser(one, frozenset({"x", "z"}), CORE, Held({("uid-one", "app", CORE): ids})) is None


def test_a_pod_is_withdrawn_if_the_kubelet_does_not_show_what_the_books_say_it_has() -> None:
    one = pod("one", container("i", 60, kind=INIT), container("s", 10, kind=SIDECAR), container("c", 30))
    books = Held(
        {("uid-one", "i", CORE): {"w"}, ("uid-one", "s", CORE): {"x"}, ("uid-one", "c", CORE): {"y"}}
    )
    shown = listed(s={CORE: {"x"}}, c={CORE: {"y"}})
    assert not withdrawn(one, shown, books), "an ordinary init container is never listed"
    assert not withdrawn(one, shown, NOTHING), "what the books do not know says nothing"
    assert withdrawn(one, listed(s={CORE: {"x"}}, c={}), books)
    assert withdrawn(one, listed(s={CORE: {"x"}}), books)
    assert withdrawn(one, listed(s={CORE: {"x"}}, c={CORE: {"z"}}), books)
