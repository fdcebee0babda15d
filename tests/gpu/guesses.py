"""Does the stand-in driver do what this card's driver does? Each question is put to both, in processes of their own.

What the stand-in models is partly a guess; where the two differ it was a wrong one, and the row shows both answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from bench.rows import Row
from tests.gpu.machine import PROGRAMS, STAND_IN, Machine, stand_in_environment
from tests.gpu.plan import Case, Settings

AGREE = "= 1"


SUBJECTS = (
    "memory",
    "taken",
    "pools",
    "graphs",
    "exports",
    "contexts",
    "time",
    "kernels",
    "processes",
    "users",
)
"""Each a C program, whose table names its questions."""


def cases(settings: Settings) -> Iterator[Case]:
    """One case a question."""
    for question, subject in questions().items():
        yield Case(question, 3, partial(_asked, subject, question))


def questions() -> Mapping[str, str]:
    """Question → its subject, as the programs' tables have them."""
    found = {}
    for subject in SUBJECTS:
        text = (PROGRAMS / f"guesses_{subject}.c").read_text(encoding="utf-8")
        table = text[text.index("questions[] = {") :]
        found |= {line.split('"')[1]: subject for line in table.splitlines() if line.strip().startswith('{"')}
    return found


def _asked(subject: str, question: str, machine: Machine) -> Iterable[Row]:
    program = machine.compiled(f"guesses_{subject}")
    assert machine.native.driver
    modelled = stand_in_environment(machine.native, str(machine.root / "modelled"))
    here = answers(machine.bare(program, question))
    if why := here.get("not_asked"):
        return [Row(f"gpu_guess_{question}_right", None, "yes", AGREE, note=why)]
    env = {name: value for name, value in modelled.items() if name != STAND_IN}
    there = answers(machine.start((program, question), env, sees="0"))
    different = [
        f"{what}: {here.get(what)}, modelled {there.get(what)}"
        for what in {**here, **there}
        if here.get(what) != there.get(what)
    ]
    note = "; ".join(different) or ", ".join(f"{what} {value}" for what, value in here.items())
    return [Row(f"gpu_guess_{question}_right", float(not different), "yes", AGREE, note=note)]


def answers(process: subprocess.Popen[str]) -> Mapping[str, str]:
    """Name → answer; a question that the driver did not survive has the complaint as its answer."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"hung": "after 60 s"}
    answers = dict(line.split(" ", 1) for line in out.splitlines())
    if process.returncode:
        answers["ended"] = f"{process.returncode} {err.strip()[-200:]}"
    return answers
