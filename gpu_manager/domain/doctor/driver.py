"""Checks of the NVIDIA driver of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.doctor.facts import CheckGroup, DriverFacts, Unseen, counted, seen

_CONTROL_DEVICES: Final = ("nvidiactl", "nvidia-uvm")


DRIVER: Final = CheckGroup("driver")


@DRIVER.trouble(
    "no-card",
    "The machine has no NVIDIA card, or the hypervisor hides it.",
    "Nothing, if the node is to have none: keep the agent off it by its node selector. Else `lspci -d "
    "10de:` must show the card.",
)
def _no_card(driver: DriverFacts, _: float) -> Iterator[str]:
    pci_cards = seen(driver.pci_cards, "/sys/bus/pci cannot be read")
    if pci_cards == 0 and not driver.nvml_cards:
        yield "the PCI bus shows no NVIDIA card"


def _with_cards(driver: DriverFacts) -> int:
    """Return the number of cards. Raises Unseen if there is none: then nothing is missing."""
    count = max(driver.pci_cards or 0, driver.nvml_cards or 0)
    if not count:
        raise Unseen("this machine shows no NVIDIA card")
    return count


@DRIVER.trouble(
    "driver-not-loaded",
    "The machine has a card, but no driver is loaded.",
    "Install the NVIDIA driver of the card's generation; with the GPU operator name its root with "
    "`--driver-root`. `modprobe nvidia` says why it does not load; with Secure Boot its modules must be "
    "signed.",
)
def _not_loaded(driver: DriverFacts, _: float) -> Iterator[str]:
    count = _with_cards(driver)
    if driver.kernel is None and driver.nvml_cards is None:
        yield f"the PCI bus shows {counted(count, 'NVIDIA card')}, but no NVIDIA kernel module is loaded"


@DRIVER.trouble(
    "driver-library-missing",
    "The driver's libraries, which containers need, were not found.",
    "Install the NVIDIA driver of the card's generation; with the GPU operator name its root with "
    "`--driver-root`.",
)
def _no_library(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.library is None:
        yield driver.library_problem or "the driver's libraries were not found"


@DRIVER.trouble(
    "driver-mismatch",
    "The driver was upgraded on disk while the old kernel module stayed loaded: new containers fail with a "
    "version mismatch.",
    "Reboot the node, or drain it, take the agent off it (it holds the driver open), and reload the kernel "
    "modules (`rmmod nvidia_uvm nvidia; modprobe nvidia`).",
)
def _mismatch(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.kernel is None or not driver.library:
        raise Unseen("the driver's versions are not both known")
    if driver.kernel != driver.library:
        yield f"the loaded kernel module is {driver.kernel}, the libraries on disk are {driver.library}"


@DRIVER.trouble(
    "nvml-unusable",
    "NVML, by which cards are listed and measured, does not answer.",
    "Follow the message; `nvidia-smi` on the node must work first.",
)
def _nvml(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    nvml_problem = seen(driver.nvml_problem, "NVML was not asked")
    if nvml_problem:
        yield nvml_problem


@DRIVER.trouble(
    "card-not-driven",
    "A card that the bus shows is not served by the driver: fallen off the bus, bound to vfio, or too old "
    "for this driver.",
    "Look for NVRM and Xid lines in `dmesg`; a card passed to a virtual machine is meant to be missing.",
)
def _cards_lost(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.pci_cards is None or driver.nvml_cards is None:
        raise Unseen("the cards were not counted both ways")
    if driver.nvml_cards < driver.pci_cards:
        yield f"the PCI bus shows {counted(driver.pci_cards, 'NVIDIA card')}, the driver {driver.nvml_cards}"


@DRIVER.trouble(
    "device-node-missing",
    "Without the nodes in /dev no container can open a card; /dev/nvidia-uvm appears with the first use "
    "only.",
    "`nvidia-modprobe -u -c=0` on the host makes them; nvidia-persistenced keeps them over reboots.",
)
def _no_device(driver: DriverFacts, _: float) -> Iterator[str]:
    count = _with_cards(driver)
    for name in _CONTROL_DEVICES:
        if name not in driver.devices:
            yield f"/dev/{name} is missing"
    nodes = sum(name.removeprefix("nvidia").isdecimal() for name in driver.devices)
    wanted = driver.nvml_cards if driver.nvml_cards is not None else count
    if nodes < wanted:
        yield f"{counted(wanted, 'card')}, {counted(nodes, 'file')} /dev/nvidia<n>"


@DRIVER.warning(
    "driver-upgraded",
    "The driver was upgraded under running pods: they run on with the old libraries, and mixed with new "
    "ones a restart of one container fails.",
    "Restart those pods once the node runs the new driver.",
)
def _upgraded(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    in_use = seen(driver.in_use, "other processes cannot be seen: run as root in the host's PID namespace")
    if not driver.library:
        raise Unseen("the version of the driver's libraries is not known")
    for version, count in sorted(in_use.items()):
        if version != driver.library:
            is_or_are = "process has" if count == 1 else "processes have"
            yield f"{count} {is_or_are} libcuda {version} open, the node now has {driver.library}"


@DRIVER.warning(
    "enforced-elsewhere",
    "Another system holds programs on this node to shares: neither knows what the other has given.",
    "Keep one of them on a node: end the daemon, or take the label of the agent's nodes away "
    "(`nvidia-device-enable`). docs/which.md says when which.",
)
def _enforced_elsewhere(driver: DriverFacts, _: float) -> Iterator[str]:
    for name in seen(driver.enforcers, "the node's processes cannot be seen"):
        yield f"{name} runs here, and holds programs to shares of its own"
