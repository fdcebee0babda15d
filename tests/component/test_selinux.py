"""On nodes with SELinux, what containers share carries the type that they may open."""

import os

import pytest

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.adapters.driver_files.injector import DriverFiles
from gpu_manager.adapters.driver_files.runtimes import Strategy
from gpu_manager.adapters.machine import LABEL, label_of
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from gpu_manager.ports.control_pages import Limit

NAME = "ab" * 16
CARD = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")


def test_a_node_without_selinux_has_no_label(tmp_path):
    assert label_of(tmp_path) is None
    (tmp_path / "filesystems").write_text("nodev\tsysfs\n\text4\n")
    assert label_of(tmp_path) is None


def test_a_node_with_selinux_labels_for_every_container(tmp_path):
    (tmp_path / "filesystems").write_text("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n")
    assert label_of(tmp_path) == LABEL


@pytest.mark.skipif(os.geteuid() != 0, reason="security attributes can be set by root alone")
def test_pages_and_libraries_carry_the_label(tmp_path):
    try:
        os.setxattr(tmp_path, "security.selinux", LABEL)
    except OSError as error:
        pytest.skip(f"this file system or kernel takes no security attributes: {error}")
    pages, package = tmp_path / "pages", tmp_path / "package"
    package.mkdir()
    for name in ("libvcuda.so", "libvcuda-ml.so", "vcuda-ldcache"):
        (package / name).write_text(name)
    tenants = FileControlPages(pages, label=LABEL)
    tenants.open(NAME, [Limit(CARD, 1 << 30, 30, 30)])
    cards = (CardState(Card(index=0, uuid=CARD, model="A100", memory=1 << 36, minor=0)),)
    injection = DriverFiles(
        Strategy.SIMULATED,
        cards=lambda: cards,
        state=tmp_path / "state",
        pages=pages,
        libraries=package,
        label=LABEL,
    ).inject(NAME, (Share(CARD, Amount(30, 1 << 30)),), None, "{}")
    assert len(injection.mounts) == 5
    for mount in injection.mounts:
        assert os.getxattr(mount.host_path, "security.selinux") == LABEL
    tenants.close()
