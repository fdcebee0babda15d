"""The libraries as a container has them: at their own paths, behind /etc/ld.so.preload, in namespaces of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.contained import PRELOAD, inside
from tests.native.fake_driver import install
from vcuda.page.usage import read_usage

Fakes = dict[tuple[str, str], Path]
pytestmark = pytest.mark.usefixtures("namespaces")


def test_the_preload_file_is_a_door_that_no_environment_opens(
    native: Path, root: Path, fakes: Fakes, client: Path
) -> None:
    """With pages cuInit succeeds and takes a slot; the tenant's environment changes nothing."""
    install(root, fakes["cuda", "13.5"])
    script = PRELOAD + (
        'env -i "$CLIENT" libcuda.so.1\n'
        'LD_PRELOAD= LD_LIBRARY_PATH=/usr/local/vcuda/real VCUDA_ROOT=/nowhere "$CLIENT" libcuda.so.1\n'
        'bash -c "true" && sh -c "echo quiet"\n'
    )
    assert inside(script, native, root, client) == ["0", "0", "quiet"]
    usage = read_usage((root / "etc/vcuda/usage").read_bytes(), 1)
    assert usage.slots_reaped == 1  # the second process took a free place and cleared the first one's
    assert [slot.index for slot in usage.slots] == [1]


def test_without_pages_the_preloaded_interposer_refuses_even_with_the_driver_first_on_the_path(
    native: Path, root: Path, fakes: Fakes, client: Path
) -> None:
    install(root, fakes["cuda", "13.5"])
    script = PRELOAD + (
        "umount /etc/vcuda/limits\n"
        'LD_LIBRARY_PATH=/usr/local/vcuda/real env -i "$CLIENT" libcuda.so.1 2>/dev/null\n'
        '"$CLIENT" libcuda.so.1\n'
    )
    lines = inside(script, native, root, client)
    assert lines[:2] == ["802", "802"]
    assert len(lines) == 3
    assert lines[2].startswith(
        "vcuda: CUDA is refused in this container: /etc/vcuda/limits is too short. The node's"
    )


def test_a_program_with_raised_rights_is_limited_too(
    native: Path, root: Path, fakes: Fakes, client: Path
) -> None:
    """The loader drops LD_PRELOAD and LD_LIBRARY_PATH for it, and keeps the preload file."""
    install(root, fakes["cuda", "13.5"])
    script = PRELOAD + (
        "umount /etc/vcuda/limits\n"
        'cp "$CLIENT" /usr/local/raised && chown 65534 /usr/local/raised && chmod 4755 /usr/local/raised\n'
        "/usr/local/raised libcuda.so.1 2>/dev/null\n"
    )
    assert inside(script, native, root, client) == ["802"]


def test_the_limits_cannot_be_written_from_inside(
    native: Path, root: Path, fakes: Fakes, client: Path
) -> None:
    install(root, fakes["cuda", "13.5"])
    before = (root / "etc/vcuda/limits").read_bytes()
    script = PRELOAD + '(echo free > /etc/vcuda/limits) 2>/dev/null || echo refused\n"$CLIENT" libcuda.so.1\n'
    assert inside(script, native, root, client) == ["refused", "0"]
    assert (root / "etc/vcuda/limits").read_bytes() == before


def test_processes_of_two_pid_namespaces_tell_the_dead_from_the_living(
    native: Path, root: Path, fakes: Fakes, client: Path
) -> None:
    """Equal PIDs in each: the lock decides, not the number."""
    install(root, fakes["cuda", "13.5"])
    one = 'unshare -p -f --mount-proc "$CLIENT" libcuda.so.1'
    script = f"""{PRELOAD}
mkfifo "$ROOT/hold"
{one} hold < "$ROOT/hold" > "$ROOT/first" &
exec 9> "$ROOT/hold"
until [ -s "$ROOT/first" ]; do :; done
{one}
{one}
exec 9>&-
wait
{one}
"""
    assert inside(script, native, root, client) == ["0", "0", "0"]
    usage = read_usage((root / "etc/vcuda/usage").read_bytes(), 1)
    assert {slot.pid for slot in usage.slots} == {1}
    assert usage.slot_high == 3  # the one that lives, a dead one's, and the place of who cleared that
    assert usage.slots_reaped >= 2
