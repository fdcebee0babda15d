"""Which strategy suits a node, from its runtime's files alone."""

import os
import socket

import pytest

from gpu_manager.adapters.driver_files.runtimes import Detected, Strategy, answers
from tests.fakes.distribution_roots import PUBLISHED
from tests.fakes.node_roots import EVERY, LEFT_BEHIND
from tests.fakes.node_roots import detect as detect_with

V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
V2_RUNTIME = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
V3 = "version = 3\n"
V3_CRI = '[plugins."io.containerd.cri.v1.runtime"]\n'
CONTAINERD = "etc/containerd/config.toml"
K3S = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"


def detect(root):
    """On a machine without a kubelet: other tests may run one beside."""
    return detect_with(root, proc=root / "proc")


def node(root, **files):
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "strategy", "why"),
    [
        ({}, Strategy.DIRECT, "no configuration"),
        ({CONTAINERD: V2 + "enable_cdi = true\n"}, Strategy.CDI, "enable_cdi is true"),
        ({CONTAINERD: V2 + "enable_cdi = false\n"}, Strategy.DIRECT, "enable_cdi is false"),
        ({CONTAINERD: V2}, Strategy.DIRECT, "does not show"),
        ({CONTAINERD: V3}, Strategy.CDI, "version 3: containerd 2"),
        ({CONTAINERD: V3 + V3_CRI + "enable_cdi = false\n"}, Strategy.DIRECT, "enable_cdi is false"),
        ({CONTAINERD: V3 + V3_CRI + 'cdi_spec_dirs = ["/etc/cdi"]\n'}, Strategy.DIRECT, "no /var/run/cdi"),
        (
            {CONTAINERD: V3 + V3_CRI + 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi/"]\n'},
            Strategy.CDI,
            "containerd 2",
        ),
        ({CONTAINERD: V2 + "enable_cdi = true\ncdi_spec_dirs = []\n"}, Strategy.DIRECT, "no /var/run/cdi"),
        ({CONTAINERD: V2 + V2_RUNTIME}, Strategy.NVIDIA, "default runtime is nvidia"),
        ({CONTAINERD: V2 + "enable_cdi = true\n" + V2_RUNTIME}, Strategy.CDI, "enable_cdi"),
        (
            {CONTAINERD: V2 + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'},
            Strategy.DIRECT,
            "not show",
        ),
        ({CONTAINERD: "= broken ["}, Strategy.DIRECT, "no configuration"),
        (
            {CONTAINERD: "= broken [", "run/containerd/containerd.sock": ""},
            Strategy.DIRECT,
            "no configuration",
        ),
        ({CONTAINERD: 'plugins = 3\nversion = "x"\n'}, Strategy.DIRECT, "does not show"),
        ({K3S: V3}, Strategy.CDI, "k3s"),
        ({"run/containerd/containerd.sock": ""}, Strategy.DIRECT, "no configuration"),
        ({"run/crio/crio.sock": ""}, Strategy.CDI, "CRI-O reads CDI specs"),
        (
            {"etc/crio/crio.conf": '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n'},
            Strategy.DIRECT,
            "no /var/run/cdi",
        ),
        (
            {
                "etc/crio/crio.conf": "[crio.runtime]\ncdi_spec_dirs = []\n",
                "etc/crio/crio.conf.d/99.conf": '[crio.runtime]\ncdi_spec_dirs = ["/var/run/cdi"]\n',
            },
            Strategy.CDI,
            "CRI-O",
        ),
        ({"etc/docker/daemon.json": '{"default-runtime": "nvidia"}'}, Strategy.DIRECT, "no configuration"),
        (
            {"etc/docker/daemon.json": '{"default-runtime": "nvidia"}', "run/cri-dockerd.sock": ""},
            Strategy.NVIDIA,
            "daemon.json",
        ),
        ({"etc/docker/daemon.json": "[3", "run/cri-dockerd.sock": ""}, Strategy.DIRECT, "no CDI device"),
    ],
)
def test_the_runtime_s_files_decide(tmp_path, files, strategy, why):
    found, said = detect(node(tmp_path, **files))
    assert (found, why in said) == (strategy, True), said


def test_imports_are_read_on_top(tmp_path):
    root = node(
        tmp_path,
        **{
            CONTAINERD: 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + V2 + "enable_cdi = false\n",
            "etc/containerd/conf.d/99-nvidia.toml": V2 + "enable_cdi = true\n",
            "etc/containerd/conf.d/README": "no toml",
        },
    )
    assert detect(root)[0] is Strategy.CDI


def test_a_configuration_behind_an_absolute_link_is_the_node_s_own(tmp_path):
    root = node(tmp_path, **{"opt/config.toml": V3})
    (root / "etc/containerd").mkdir(parents=True)
    (root / CONTAINERD).symlink_to("/opt/config.toml")
    assert detect(root)[0] is Strategy.CDI


@pytest.mark.parametrize("made", [*EVERY, *PUBLISHED], ids=lambda made: made.name)
def test_the_runtime_that_the_kubelet_uses_decides(tmp_path, made):
    found, said = made.detected(made.make(tmp_path))
    assert found is made.wanted, said


def test_there_are_forty_nodes_with_leftovers_and_odd_files():
    assert len(LEFT_BEHIND) >= 40
    assert len(PUBLISHED) >= 30


def test_a_socket_answers_while_a_process_listens_at_it(tmp_path, monkeypatch):
    path = tmp_path / ("long" * 30) / "containerd.sock"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
        assert not answers(path)
        listening.listen()
        assert answers(path)
    assert not answers(path)  # the file is still there
    assert not answers(tmp_path / "none" / "x.sock")


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({CONTAINERD: V3}, {CONTAINERD: V3 + V3_CRI + "enable_cdi = false\n"}, "enable_cdi is false"),
        (
            {CONTAINERD: V3 + "imports = ['conf.d/*.toml']\n", "etc/containerd/conf.d/a.toml": V3},
            {"etc/containerd/conf.d/b.toml": V3 + V3_CRI + "enable_cdi = false\n"},
            "enable_cdi is false",
        ),
        (
            {CONTAINERD: V2 + V2_RUNTIME},
            {"etc/nvidia-container-runtime/config.toml": '[nvidia-container-runtime]\nmode = "cdi"\n'},
            "mode cdi",
        ),
        ({CONTAINERD: V3}, {CONTAINERD: V3 + "# a remark\n"}, ""),
        ({CONTAINERD: V2}, {CONTAINERD: V3}, ""),  # direct needs nothing of the runtime
    ],
)
def test_a_way_that_gives_no_cards_any_more_is_noticed_once_a_file_has_changed(
    tmp_path, before, after, changed
):
    found = Detected(node(tmp_path, **before), "/var/lib/kubelet", tmp_path / "proc")
    assert found.outdated() == ""
    for path in before:
        os.utime(tmp_path / path, (1, 1))
    node(tmp_path, **after)
    assert changed in found.outdated()
    assert found.outdated() == ""  # said once: whoever heard it starts anew
