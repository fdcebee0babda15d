"""The groups side by side on the stand-in, with C clients in the place of models; and what the probe reads of NVIDIA's calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.delivery import find_native_libraries
from tests.native.tools import ROOT, tool

PROGRAMS = ROOT / "tests/gpu/programs"
ARMS = ("two_bare", "hard", "elastic", "hardware", "mps")

KERNEL = """
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
static uint64_t slice = 2000;
int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    uint32_t *call = va_arg(rest, uint32_t *);
    va_end(rest);
    if (_IOC_NR(request) == 0x2b)
        return call[_IOC_SIZE(request) == 48 ? 10 : 7] = 0, fd - fd;
    uint64_t at;
    memcpy(&at, call + 4, 8);
    call[7] = call[2] == 0xa06c0107 ? 0x1b : 0;
    if (call[2] == 0xa06c0103) slice = *(uint64_t *)at;
    if (call[2] == 0xa06c0104) *(uint64_t *)at = slice;
    return 0;
}
"""
"""What a kernel with NVIDIA's module would answer: every group is made, levels are refused."""

DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
struct group { uint32_t error, ecc, space, engine; uint8_t vgpu; };
struct short_call { uint32_t root, parent, object, kind; uint64_t params; uint32_t size, status; };
struct long_call { uint32_t root, parent, object, kind; uint64_t params, rights; uint32_t size, flags, status; };
int main(void) {
    struct group computes = {0, 0, 7, 1, 0}, copies = {0, 0, 7, 9, 0};
    struct short_call a = {1, 2, 3, 0xa06c, (uintptr_t)&computes, sizeof computes, 1};
    struct long_call b = {1, 2, 4, 0xa06c, (uintptr_t)&computes, 0, sizeof computes, 0, 1};
    struct long_call copy = {1, 2, 5, 0xa06c, (uintptr_t)&copies, 0, sizeof copies, 0, 1};
    struct long_call other = {1, 2, 6, 0xc86f, (uintptr_t)&computes, 0, sizeof computes, 0, 1};
    ioctl(3, _IOWR('F', 0x2b, struct short_call), &a);
    ioctl(3, _IOWR('F', 0x2b, struct long_call), &b);
    ioctl(3, _IOWR('F', 0x2b, struct long_call), &copy);
    ioctl(3, _IOWR('F', 0x2b, struct long_call), &other);
    puts("ready");
    fflush(stdout);
    return getchar() != 'x';
}
"""
"""What libcuda asks of it, in both layouts: two groups that compute, one that copies, and something else."""


def compiled(source: Path, target: Path, *options: str) -> Path:
    command = [
        tool("cc"),
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        *options,
        "-o",
        target,
        source,
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=120)
    return target


def test_the_probe_learns_the_groups_that_compute_and_commands_only_those(tmp_path: Path) -> None:
    (tmp_path / "kernel.c").write_text(KERNEL)
    (tmp_path / "driver.c").write_text(DRIVER)
    preload = [
        compiled(PROGRAMS / "groups.c", tmp_path / "groups.so", "-shared", "-fPIC"),
        compiled(tmp_path / "kernel.c", tmp_path / "kernel.so", "-shared", "-fPIC"),
    ]
    driver = compiled(tmp_path / "driver.c", tmp_path / "driver")
    pipes = {"GROUPS_IN": str(tmp_path / "in"), "GROUPS_OUT": str(tmp_path / "out")}
    for name in pipes.values():
        subprocess.run(["mkfifo", name], check=True, timeout=10)
    env = {"LD_PRELOAD": " ".join(map(str, preload)), **pipes}
    with subprocess.Popen(
        [driver], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        with (tmp_path / "in").open("w") as lines, (tmp_path / "out").open() as answers:

            def tell(line: str) -> tuple[str, str]:
                lines.write(f"{line}\n")
                lines.flush()
                status, _, figure = answers.readline().split()
                return status, figure

            assert tell("count") == ("0", "2")
            assert tell("facts") == ("0", "2000")
            assert tell("slice 10000")[0] == "0"
            assert tell("facts") == ("0", "10000")
            assert [tell(verb)[0] for verb in ("off", "on", "preempt", "level 2")] == [
                "0",
                "0",
                "0",
                str(0x1B),
            ]
        process.stdin.write("x")
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.timeout(600)
def test_every_group_gives_its_rows_on_the_stand_in(tmp_path: Path) -> None:
    """Arms, pipes and rows with C clients. Their figures say nothing of a card, and the rows say so."""
    if None in (find_native_libraries().client, find_native_libraries().driver):
        pytest.skip("this package was built without the library: there is nothing to run the groups on")
    path = tmp_path / "rows.jsonl"
    cases = (
        "0/,p/program_4_p,5/killed_hard,1/two_llms_2,2/bert_beside_gpt2,3/server_bert,4/cost_request_bert,"
        "4/cost_step_lstm,6/split_50_50_1000us"
    )
    command = [
        *(sys.executable, "-m", "tests.gpu", "--stand-in", "--groups", "0p512346", "--cases", cases),
        *("--seconds", "0.2", "--minutes", "8", "--output", str(path)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = {line["row"]["name"]: line["row"] for line in lines if "row" in line}
    assert [row["note"] for name, row in rows.items() if name.endswith("_ran")] == []
    assert {line["case"][0] for line in lines if "row" in line} == set("0p512346")
    assert all("dry run, C kernels in the place of models" in row["note"] for row in rows.values())
    assert all("stand-in driver" in row["note"] for row in rows.values()), "each names card and driver"
    figures = {name: rows[f"gpu_two_llms_2_{name}_percent"]["figure"] for name in ARMS}
    assert [name for name, figure in figures.items() if figure is None] == ["hardware", "mps"]
    assert rows["gpu_beside_bert_and_gpt2_protected_p99_ratio"]["figure"] > 0
    assert rows["gpu_killed_hard_neighbours_errors"]["figure"] == 0
    assert rows["gpu_probe_root_groups"]["figure"] is None, "the stand-in makes no channel groups"
