"""Host CPU, counted as kube-scheduler counts it."""

import pytest

from admission.cluster.pod_view import allocatable, asked


def container(cpu, **extra):
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **extra}


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        ({"containers": [container("500m"), container("2")]}, 2500),
        ({"containers": [container(1)], "initContainers": [container("3")]}, 3000),
        ({"containers": [container(1)], "initContainers": [container("1", restartPolicy="Always")]}, 2000),
        (
            {
                "containers": [container(1)],
                "initContainers": [container("1", restartPolicy="Always"), container("4")],
            },
            5000,
        ),
        ({"containers": [container("1m")], "overhead": {"cpu": "250m"}}, 251),
        ({"containers": [container("100u")]}, 1),
        ({"containers": [{"name": "c"}, {"name": "d", "resources": None}]}, 0),
        ({"containers": [container("lots"), container("-3")]}, 0),
        ({"containers": "none"}, 0),
        (None, 0),
    ],
)
def test_a_pod_asks_for_its_worst_moment(spec, milli):
    assert asked({"spec": spec}) == milli


@pytest.mark.parametrize(
    ("status", "milli"),
    [({"allocatable": {"cpu": "95500m"}}, 95_500), ({"allocatable": {}}, None), (None, None)],
)
def test_a_node_gives_what_it_says_or_says_nothing(status, milli):
    assert allocatable({"status": status}) == milli
