"""What the programs are told: flags that they have, and the terms of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.__main__ import command as admission_command
from gpu_manager.cli.beside import evict_marked as evictor_command
from gpu_manager.cli.run import OLD_FLAGS
from gpu_manager.cli.run import command as run_command
from gpu_manager.domain.resources import DEFAULT_UNIT, format_bytes
from gpu_manager.runtime.arguments import Command
from tests.deploy.chart import (
    CHART,
    SETS,
    WITH_ADMISSION,
    admission_pod,
    agent_pod,
    container,
    helm,
    objects,
    the,
)


def test_the_values_that_turn_things_off_turn_them_off() -> None:
    pod = agent_pod("least")
    assert pod["hostPID"] is False
    arguments = container(pod, "gpu-manager")["args"]
    assert {"--no-evict", "--no-legacy-metrics"} <= set(arguments)
    assert not [a for a in arguments if a.startswith("--kubelet-pods-url")]
    kinds = {o["kind"] for o in objects("least")}
    assert not kinds & {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "ValidatingAdmissionPolicy"}
    assert not kinds & {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}


def test_errors_and_nvidias_name_for_cards_are_values_of_their_own() -> None:
    arguments = container(agent_pod("unprivileged"), "gpu-manager")["args"]
    assert "--topology-manager-policy=restricted" in arguments
    assert {"--nvidia-resource", "--program-xids=31,43", "--card-xids=13"} <= set(arguments)
    silent = container(agent_pod("defaults"), "gpu-manager")["args"]
    assert not [a for a in silent if "xids" in a or "nvidia-resource" in a or "topology" in a]


RUN = Command("gpu-manager run", run_command)
ADMISSION = Command("gpu-quota-admission", admission_command)
EVICTOR = Command("gpu-manager evict-marked", evictor_command)


def options(program: Command) -> dict[str, bool]:
    """Flag → whether a value follows."""
    return {
        name: one.convert is not None
        for one in program.parameters
        for name in (*one.names, *one.off)
        if name.startswith("--")
    }


@pytest.mark.parametrize("name", SETS)
def test_every_flag_that_is_passed_is_one_that_the_program_has(name: str) -> None:
    known = options(RUN)
    for argument in container(agent_pod(name), "gpu-manager")["args"]:
        flag, equals, _ = argument.partition("=")
        assert flag in known, argument
        assert flag[2:] not in OLD_FLAGS, argument
        assert known[flag] == bool(equals), argument
    if name in WITH_ADMISSION:
        known = options(ADMISSION)
        for argument in container(admission_pod(name), "admission")["args"]:
            flag, equals, _ = argument.partition("=")
            assert known.get(flag) == bool(equals), argument
        evictor = the(name, "Deployment", "gpu-manager-evictor")["spec"]["template"]["spec"]
        for argument in container(evictor, "evictor")["args"]:
            assert options(EVICTOR)[argument.partition("=")[0]], argument


def test_the_evictors_rate_is_a_value_and_one_process_counts_it() -> None:
    spec = the("defaults", "Deployment", "gpu-manager-evictor")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (evictor,) = spec["template"]["spec"]["containers"]
    assert evictor["command"] == ["gpu-manager", "evict-marked"]
    assert evictor["args"] == ["--per-minute=10", "--node-per-minute=3"]


def test_both_programs_read_the_same_terms() -> None:
    terms = the("terms", "ConfigMap", "gpu-manager-terms")["data"]
    assert terms == {
        "VCUDA_MEMORY_UNIT": str(1 << 30),
        "VCUDA_MINIMUM_CORES": "5",
        "VCUDA_DEFAULT_MEMORY": "2",
    }
    assert the("defaults", "ConfigMap", "gpu-manager-terms")["data"]["VCUDA_MEMORY_UNIT"] == str(DEFAULT_UNIT)
    admission = container(admission_pod("terms"), "admission")
    assert admission["envFrom"] == [{"configMapRef": {"name": "gpu-manager-terms"}}]
    known = {p.envvar for p in ADMISSION.parameters}
    assert set(terms) <= known
    agent = container(agent_pod("terms"), "gpu-manager")
    assert "--memory-unit=$(VCUDA_MEMORY_UNIT)" in agent["args"]
    assert [e["valueFrom"] for e in agent["env"] if e["name"] == "VCUDA_MEMORY_UNIT"]
    checksums = [
        the(name, "DaemonSet", "gpu-manager-daemonset")["spec"]["template"]["metadata"]["annotations"]
        for name in ("defaults", "terms")
    ]
    assert checksums[0] != checksums[1], "a change of terms must start the agents anew"


def test_a_memory_unit_is_the_same_in_every_form_that_yaml_has_for_it(tmp_path: Path) -> None:
    for written in ("268435456", '"268435456"', "256Mi", "2.68435456e+8"):
        values = tmp_path / "values.yaml"
        values.write_text(f"terms: {{memoryUnit: {written}}}\n")
        done = helm("template", "x", str(CHART), "-n", "kube-system", "-f", str(values))
        assert 'VCUDA_MEMORY_UNIT: "268435456"' in done.stdout, done.stderr


def test_the_notes_ask_for_five_gibibytes_in_the_clusters_unit() -> None:
    assert format_bytes(20 * DEFAULT_UNIT) == "5 GiB"
