"""A hostile program in a container, by every way that a library can answer: not one byte more than its limit.

The container is as a pod has it: the interposer under the driver's name in the system's directory, the same file in
``/etc/ld.so.preload``, the real driver (here the stand-in, which counts what it gives away) beside it, the limits
mounted read-only, and a user without rights. The ways are those of docs/internals/evasions.md; what no
library can answer is listed in docs/security.md, and a test holds the list complete.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_manager.domain.enforcement.evasion import EvasionReason
from tests.native.contained import SETUP
from tests.native.driven import GRANULE, MIB, Container, program
from tests.native.programs import HERE
from tests.native.tools import ROOT, run, tool

LIMIT = 600 * MIB
pytestmark = pytest.mark.usefixtures("namespaces")
HOSTILE = "/usr/local/hostile"

INSIDE = """
cp "$ROOT/usr/local/vcuda/real/libnvidia-ml.so.1" /usr/local/vcuda/real/
mkdir /usr/local/state /usr/local/image /usr/local/upper /usr/local/work
mount --bind "$STATE" /usr/local/state
printf 'state = /usr/local/state\\nmodel = small\\n' > /usr/local/vcuda/real/standin.conf
cp /usr/local/vcuda/real/* /usr/local/image/
cp "$BUILT"/* /usr/local/
chmod 755 /usr/local /usr/local/vcuda /usr/local/vcuda/real
case "$DOORS" in *mount*) cp "$NATIVE/libvcuda.so" "$ROOT/scratch/interposer";; *) cp /usr/local/image/libcuda.so.1 "$ROOT/scratch/interposer";; esac
mkdir "$ROOT/scratch/lib" "$ROOT/scratch/libwork"
cp "$ROOT/scratch/interposer" "$ROOT/scratch/lib/libcuda.so.1"
cp /usr/local/vcuda/real/standin.conf "$ROOT/scratch/lib/"
ln -s libcuda.so.1 "$ROOT/scratch/lib/libcuda.so"
mount -t overlay none -o "lowerdir=$LIBDIR,upperdir=$ROOT/scratch/lib,workdir=$ROOT/scratch/libwork" "$LIBDIR"
case "$DOORS" in *preload*) echo /usr/local/vcuda/libvcuda.so > /etc/ld.so.preload;; esac
as_tenant() { setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all "$@"; }
"""


@dataclass(frozen=True)
class Way:
    """How the program is started and what it does."""

    name: str
    command: str
    processes: int = 1
    doors: tuple[str, ...] = ("mount+preload", "mount", "preload")
    whole: bool = True
    """It gets all of its share; one that tampers may be refused earlier."""


MOUNT = ("mount+preload", "mount")
PRELOAD = ("mount+preload", "preload")
P = f"as_tenant {HOSTILE}"
# A statically linked program is not among them: the stand-in's thread-local words do not survive there, as no dlopen
# of a static libc gives them room. That it meets the interposer, test_interposer_loader says with a driver that has none.
WAYS = (
    Way("dlopen", f"{P} dlopen"),
    Way("the name without a version", f"{P} dlopen libcuda.so", doors=MOUNT),
    Way("linked", f"as_tenant {HOSTILE}-linked linked"),
    Way("a namespace of the loader's", f"{P} namespace", doors=MOUNT),
    Way("deep binding", f"{P} deepbind"),
    Way("the next in line", f"{P} next"),
    Way("the loader's own dlsym", f"{P} dlvsym"),
    Way("reading the symbol table", f"{P} walk"),
    Way("the resolver, every release and mode", f"{P} resolver"),
    Way("the first form of the resolver", f"{P} 'old resolver'"),
    Way("no environment", f"as_tenant env -i {HOSTILE} dlopen"),
    Way("an environment of its own",
        f"LD_PRELOAD= VCUDA_ROOT=/usr/local/image LD_LIBRARY_PATH=/nowhere CUDA_DISABLE_CONTROL=true {P} dlopen"),
    Way("a driver of the image, first on the path", f"LD_LIBRARY_PATH=/usr/local/image {P} dlopen", doors=PRELOAD),
    Way("raised rights", f"cp {HOSTILE} {HOSTILE}-raised; chmod 4755 {HOSTILE}-raised; as_tenant {HOSTILE}-raised dlopen"),
    Way("eight threads", f"{P} dlopen then threads"),
    Way("children of fork", f"{P} dlopen then fork", 4),
    Way("children of vfork that exec", f"{P} dlopen libcuda.so.1 then vfork", 4),
    Way("exec with the memory in hand", f"{P} dlopen libcuda.so.1 then exec"),
    Way("closing descriptors it does not know", f"{P} dlopen libcuda.so.1 then closed", 4),
    Way("jumping out of a call", f"{P} dlopen libcuda.so.1 then jump"),
    Way("a signal's handler in a call", f"{P} dlopen libcuda.so.1 then handler"),
    Way("another user at the same time",
        f"exec 3<&0; setpriv --reuid=1234 --regid=1234 --clear-groups {HOSTILE} dlopen <&3 & {P} dlopen; wait", 2),
    Way("writing zeros over the account", f"{P} dlopen then zero", whole=False),
    Way("writing garbage over the page", f"{P} dlopen then garbage", whole=False),
    Way("freeing everybody's slot", f"{P} dlopen then reap", whole=False),
    Way("writing the limits",
        f"as_tenant sh -c 'echo > /etc/vcuda/limits; rm -f /etc/vcuda/limits; mv /etc/vcuda /etc/free; "
        f"mount --bind /usr/local/image /etc/vcuda; umount /etc/vcuda/limits; "
        f"mount -o remount,bind,rw /etc/vcuda/limits; echo > /etc/ld.so.preload' 2>/dev/null; {P} dlopen"),
    Way("writing the limits as root without capabilities",
        f"setpriv --bounding-set=-all --inh-caps=-all sh -c 'echo > /etc/vcuda/limits; "
        f"umount /etc/vcuda/limits; mount -o remount,bind,rw /etc/vcuda/limits; echo > /etc/vcuda/limits' "
        f"2>/dev/null; {P} dlopen"),
)  # fmt: skip


@pytest.fixture(scope="module")
def built(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program: as it is, and linked with the driver."""
    base = tmp_path_factory.mktemp("hostile")
    run(tool("cc"), "-O1", "-w", HERE / "hostile.c", "-o", base / "hostile", "-ldl", "-lpthread")
    run(tool("cc"), "-O1", "-w", HERE / "hostile.c", "-Wl,--no-as-needed", native / "sandbox/libcuda.so.1",
        "-o", base / "hostile-linked", "-ldl", "-lpthread")  # fmt: skip
    return base


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with Container(tmp_path, LIMIT) as made:
        (tmp_path / "state").mkdir(mode=0o777)
        (tmp_path / "state").chmod(0o777)
        yield made


def started(way: Way, doors: str, container: Container, native: Path, built: Path) -> subprocess.Popen[str]:
    library = run(tool("cc"), "-print-multiarch").strip()
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ROOT": str(container.root), "NATIVE": str(native),
        "BUILT": str(built), "STATE": str(container.state), "DOORS": doors, "LIBDIR": f"/usr/lib/{library}",
    }  # fmt: skip
    script = SETUP + INSIDE + "umask 0\nset +e\n" + way.command
    return subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


CASES = [pytest.param(way, doors, id=f"{way.name}, {doors}") for way in WAYS for doors in way.doors]


@pytest.mark.parametrize(("way", "doors"), CASES)
def test_not_one_byte_more(way: Way, doors: str, container: Container, native: Path, built: Path) -> None:
    watch = subprocess.Popen(
        [str(program("prog_watch")), str(container.usage_file), str(LIMIT)], env=container.env(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    hostile = started(way, doors, container, native, built)
    try:
        assert hostile.stdout
        assert watch.stdin
        assert watch.stdout
        assert watch.stdout.readline() == "watching\n"
        for _ in range(way.processes):
            said = hostile.stdout.readline()
            assert said == "holding\n", (said, hostile.communicate()[1])
        watch.stdin.write("now\n")
        watch.stdin.flush()
        _, _, held = map(int, watch.stdout.readline().split())
        out, _ = watch.communicate(timeout=30)
        over = int(out.split()[-1])
        assert (held <= LIMIT, over) == (True, 0), f"{max(held - LIMIT, over)} bytes past the limit"
        assert held > LIMIT - GRANULE or not way.whole, f"only {held >> 20} MiB: it hardly tried"
        assert held > 64 * MIB, "it got no card at all: nothing was tried"
    finally:
        for process in (hostile, watch):
            process.communicate(timeout=30) if process.poll() is None else process.communicate()


UNANSWERED = (
    "the real driver by its path", "a private copy of the driver", "raw calls to", "a nested container",
    "patching the library", "writing less into the account", "a forged slot", "destroying the usage page",
    "the context that the CUDA runtime creates", "memory of variables in a module", "IPC handle", "exported and released", "shared with another before it ended", "memory moved to the card without a call", "kernels started by kernels",
    "a longer time slice", "caches, bandwidth", "whose forked child closed", "stopped as its kernel begins",
)  # fmt: skip


def test_what_no_library_can_answer_is_listed_with_what_the_host_does() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = text.partition("## What the library cannot answer")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    for way in UNANSWERED:
        (answer,) = (row[2].strip(" |") for row in rows if way in row[0])
        assert len(answer) > len("the same") - 1, way
    assert len(rows) == len(UNANSWERED), "a way that the documents name is one that this test knows"
    named = {word for row in rows for word in re.findall(r"`([a-z-]+)`", row[2])} - {
        "dmem",
        "unshare",
        "mount",
    }
    assert named <= {reason.value for reason in EvasionReason}, "the host names it by a reason that it has"


@pytest.mark.parametrize("file", ["/usr/local/vcuda/real/libcuda.so.1", "/usr/local/image/libcuda.so.1"])
def test_a_driver_by_its_path_goes_past_the_library_and_leaves_no_slot_for_the_host_to_find(
    container: Container, native: Path, built: Path, file: str
) -> None:
    """What the documents say is not stopped: were it, they would be wrong. ``no-slot`` is what names it."""
    way = Way("by path", f"{P} dlopen {file}")
    hostile = started(way, "mount+preload", container, native, built)
    assert hostile.stdout
    assert hostile.stdout.readline() == "holding\n"
    assert container.usage.slots == ()
    watch = subprocess.run(
        [str(program("prog_watch")), str(container.usage_file), str(LIMIT)], env=container.env(), text=True,
        input="now\n", capture_output=True, check=True,
    )  # fmt: skip
    hostile.communicate(timeout=30)
    assert int(watch.stdout.splitlines()[1].split()[2]) > LIMIT
