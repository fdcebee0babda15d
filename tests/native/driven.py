"""Containers on modelled cards, and programs in them that call the driver as a test says.

A container is a directory with pages, the interposers of the library before the stand-in driver; ``Program`` is
``vcuda/lib/test/prog_call.c``: each call of the object is a call of the driver.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.native import standin
from tests.native.tools import LIB, ROOT, build_tests, run, tool
from vcuda.page.limits import CardLimits, Limits, build_limits, rewrite_limits
from vcuda.page.usage import Usage, build_usage, read_usage

MIB: Final = 1 << 20
GRANULE: Final = 2 * MIB
CONTEXT: Final = 64 * MIB
"""What a context takes on the model ``small``, and what the pages charge for it."""
FIVE_STREAMS: Final = 2 * MIB
"""What the second stream of a context takes, for itself and the next three; the first takes nothing."""
OUT: Final = "&"
"""An output of eight bytes."""
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, UNAVAILABLE = 0, 1, 2, 46
CARD_BYTES: Final = 16 << 30
DOORS: Final = ("mount", "preload")
"""Where programs meet the library: in the driver's place, or preloaded before a driver that comes first on the search
path."""
SANITIZE: Final = os.environ.get("VCUDA_SANITIZE", "")
"""What ``make native-tsan`` asks for; otherwise a test that says so runs plainly and under these:"""
SANITIZERS: Final = (SANITIZE,) if SANITIZE else ("", "address,undefined")


def uuid(index: int) -> bytes:
    """The UUID of a card of the stand-in."""
    return bytes(((index + 1) * 37 + at * 101) & 255 for at in range(16))


@functools.cache
def interposers(sanitize: str = "") -> Path:
    """The directory with the two interposers as a sandbox's programs find them."""
    return build_tests("sandbox-cuda", "sandbox-ml", sanitize=sanitize) / "sandbox"


@functools.cache
def program(name: str, sanitize: str = "") -> Path:
    """A program of vcuda/lib/test, compiled anew when its source has changed."""
    source = LIB / "test" / f"{name}.c"
    target = ROOT / "build" / "driven" / f"{name}{'-' + sanitize.replace(',', '-') if sanitize else ''}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists() or target.stat().st_mtime_ns < source.stat().st_mtime_ns:
            options = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"] if sanitize else []
            fresh = target.with_suffix(".new")
            run(tool("cc"), "-O2", "-g", "-Wall", "-Wextra", "-Werror", *options, "-o", fresh, source,
                "-ldl", "-lpthread")  # fmt: skip
            fresh.rename(target)
    return target


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned, and its outputs: numbers, and structures (the first is ``bytes``)."""

    result: int
    out: tuple[int, ...]
    structs: tuple[bytes, ...]

    @property
    def bytes(self) -> bytes:
        return self.structs[0] if self.structs else b""

    @property
    def value(self) -> int:
        """The only output of a call that succeeded."""
        assert self.result == SUCCESS, f"the call returned {self.result}"
        return self.out[0]


class Program:
    """A process in a container: ``program("cuMemAlloc_v2", OUT, 4096).value``."""

    def __init__(
        self, binary: Path, env: dict[str, str], *, arguments: Sequence[str] = (), **options: object
    ) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [str(binary), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
            **options,  # type: ignore[call-overload]
        )  # fmt: skip

    def tell(self, line: str) -> str:
        """One line to the program, and its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"{line}: the program ended: {self.process.communicate()[1]}"
        return answer

    def __call__(self, name: str, *arguments: str | int | bytes) -> Answer:
        words = ["x" + item.hex() if isinstance(item, bytes) else str(item) for item in arguments]
        answer = self.tell(" ".join([name, *words]))
        assert answer != "missing", f"no library has {name}"
        result, *outs = answer.split()
        structs = tuple(bytes.fromhex(word[1:]) for word in outs if word.startswith("x"))
        return Answer(int(result), tuple(int(word) for word in outs if not word.startswith("x")), structs)

    def start(self, device: int = 0) -> Self:
        """A program as most begin: cuInit, the primary context, current."""
        assert self("cuInit", 0).result == SUCCESS
        self.context(device)
        return self

    def context(self, device: int = 0) -> int:
        """The device's primary context, current from now on."""
        context = self("cuDevicePrimaryCtxRetain", OUT, device).value
        assert self("cuCtxSetCurrent", context).result == SUCCESS
        return context

    def card_used(self) -> int:
        """What the card itself has given away, to anybody."""
        free, total = self("real:cuMemGetInfo_v2", OUT, OUT).out
        return total - free

    def kill(self) -> None:
        """As the kernel's memory killer does it."""
        self.process.kill()
        self.close()

    def end(self) -> None:
        """End it in the ordinary way; it must not complain."""
        err = self.close()
        assert self.process.returncode == 0, err

    def close(self) -> str:
        """Wait for its end; what it said on stderr."""
        return self.process.communicate(timeout=60)[1]


class Container:
    """A directory with pages for some cards, and the programs that run in it."""

    def __init__(
        self, base: Path, memory: int | None = 1 << 30, *, cards: int = 1, version: str = "12.9",
        sanitize: str = "", state: Path | None = None, door: str = "mount", **settings: object,
    ) -> None:  # fmt: skip
        self.root, self.state = base / "root", state or base / "state"
        self.sanitize, self.settings, self.door = sanitize, settings, door
        self.limits = Limits(
            cards=tuple(
                CardLimits(uuid(i), memory, None, context_reserve=CONTEXT, instance=standin.INSTANCES)
                for i in range(cards)
            )
        )
        real = self.root / "usr/local/vcuda/real"
        real.mkdir(parents=True)
        (self.root / "etc/vcuda").mkdir(parents=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(standin.built(sanitize) / version / name, real / name)
        self._limits_file.write_bytes(build_limits(self.limits))
        self.usage_file.write_bytes(build_usage())
        self.usage_file.chmod(0o666)
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._programs:
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()
            for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
                if stream:
                    stream.close()

    @property
    def _limits_file(self) -> Path:
        return self.root / "etc/vcuda/limits"

    @property
    def usage_file(self) -> Path:
        """The page that tenants write."""
        return self.root / "etc/vcuda/usage"

    def env(self, **settings: object) -> dict[str, str]:
        """What a program of the container starts with."""
        real = self.root / "usr/local/vcuda/real"
        chosen = {
            "STATE": self.state,
            "MODEL": "small",
            "INSTANCES": standin.INSTANCES,
            **{k.upper(): v for k, v in self.settings.items()},
        }
        chosen |= {key.upper(): value for key, value in settings.items()}
        env = {
            "PATH": os.environ["PATH"],
            "VCUDA_ROOT": str(self.root),
            **self._door(),
            "REAL_CUDA": str(real / "libcuda.so.1"),
            "REAL_NVML": str(real / "libnvidia-ml.so.1"),
            "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:verify_asan_link_order=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        }
        return env | {f"VCUDA_STANDIN_{key}": str(value) for key, value in chosen.items()}

    def _door(self) -> dict[str, str]:
        interposer, real = interposers(self.sanitize), self.root / "usr/local/vcuda/real"
        if self.door == "mount":
            return {"LD_LIBRARY_PATH": str(interposer)}
        files = f"{interposer}/libcuda.so.1:{interposer}/libnvidia-ml.so.1"
        return {"LD_LIBRARY_PATH": str(real), "LD_PRELOAD": files}

    def program(
        self, *, visible: str | None = None, name: str = "prog_call", arguments: Sequence[str] = (), **settings: object
    ) -> Program:  # fmt: skip
        """Start a program; ``visible`` is its CUDA_VISIBLE_DEVICES."""
        env = self.env(**settings)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        self._programs.append(Program(program(name, self.sanitize), env, arguments=arguments))
        return self._programs[-1]

    def change(self, card: int = 0, **values: object) -> None:
        """What the host does to change a limit of running processes."""
        changed = tuple(
            replace(limits, **values) if i == card else limits  # type: ignore[arg-type]
            for i, limits in enumerate(self.limits.cards)
        )
        self.write(replace(self.limits, cards=changed))

    def write(self, limits: Limits) -> None:
        """Put new limits in force."""
        self.limits = limits
        write = rewrite_limits(self._limits_file.read_bytes(), limits)
        with self._limits_file.open("r+b") as file:
            file.seek(write.offset)
            file.write(write.data)

    @property
    def usage(self) -> Usage:
        """The usage page as the host reads it."""
        return read_usage(self.usage_file.read_bytes(), len(self.limits.cards))

    def charged(self, card: int = 0) -> int:
        """Bytes that the container's account says it holds."""
        return self.usage.cards[card].charged


def soon(holds: Callable[[], bool], seconds: float = 2.0) -> bool:
    """True once it holds; the library looks ten times a second."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        threading.Event().wait(0.005)
    return holds()


def host_looks(container: Container, *guests: Program) -> None:
    """What the agent does once a second."""
    looked_ns = time.monotonic_ns()
    slots = container.usage.slots
    excess, counted = 0, guests[0].card_used()
    if any(slot.untold for slot in slots):
        excess = max(0, container.charged() - sum(slot.movable for slot in slots) - counted)
    container.change(host_excess=excess, host_looked_ns=looked_ns, host_counted=counted)


def held(container: Container, guest: Program) -> int:
    """Bytes beyond the context, after the account and the card were found to agree."""
    charged = container.charged()
    assert charged == guest.card_used()
    return charged - CONTEXT
