"""Bad command lines that people type: each is refused in one sentence with its cure, and the exit code that the
help promises: 2 for bad input, 1 where the answer is no.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpu_manager.cli.kubectl.main import run
from sandbox.api import StandInApi
from tests.fakes.kubectl import MANIFEST, a_node, a_share, said

pytestmark = pytest.mark.usefixtures("kubectl_login")

# Command line, exit code, and what its last line on standard error names as the way out.
LINES = [
    ("topp", 2, "kubectl vcuda --help lists what there is"),
    ("top --all-namespace", 2, "--all-namespace (did you mean --all-namespaces?)"),
    ("top nb-0", 1, "-n names another namespace"),
    ("top service/web", 2, "write KIND/NAME"),
    ("top -l app=(", 2, "write it like app=web,tier!=db"),
    ("top -l =", 2, "write it like app=web,tier!=db"),
    ("top -n Team", 2, "use lower-case letters, digits, - and ."),
    ("top --sort-by idl", 2, "'idl' is none of name, cores, memory or idle"),
    ("top -o jso", 2, "'jso' is none of table, wide, name, csv, json, yaml,"),
    ("top -o jsonpath", 2, "'jsonpath' is none of table, wide, name, csv, json,"),
    ("top -o jsonpath={.a", 2, "write it like {.nodes[*].node}"),
    ("top -o jsonpath={.a[}", 2, "write it like .cards[0].uuid"),
    ('top -o "jsonpath={range .a[*]}{.b}"', 2, "{range} without {end}"),
    ("top -o custom-columns=POD", 2, "write TITLE:.field, such as POD:.pod,UUID:.uuid"),
    ("top -o custom-columns=POD:.pod[", 2, "write it like .cards[0].uuid"),
    ("top --request-timeout soon", 2, "write it like 30s, 2m or 1m30s"),
    ("top --request-timeout -5", 2, "write it like 30s, 2m or 1m30s"),
    ("top --as-group devs", 2, "groups to act in (as-groups, --as-group) go with a u"),
    ("top --context none", 2, "name another with --kubeconfig"),
    ("top --cluster none", 2, "it has sandbox"),
    ("top --user none", 2, "it has sandbox"),
    ("top --server h:x", 2, "'https://h:x', no URL: write it like https://host:po"),
    ("top --kubeconfig /nowhere", 2, "name one with --kubeconfig or $KUBECONFIG"),
    ("top --token", 2, "expected one argument"),
    ("graph node/none", 2, "nodes that do: n1"),
    ("graph none", 2, "nodes that do: n1"),
    ("graph pod/one", 2, "write KIND/NAME"),
    ("graph -n team", 2, "kubectl vcuda graph --help shows what it takes"),
    ("cordon", 2, "kubectl vcuda cordon --help shows what it takes"),
    ("cordon GPU-none", 2, "n1"),
    ("cordon n9/0", 2, "n1"),
    ("cordon n1/9", 2, "it has 0, 1"),
    ("cordon n1/x", 2, "it has 0, 1"),
    ("uncordon GPU-", 2, "write more of it"),
    ("explain", 2, "POD, KIND/NAME, -l SELECTOR, FILE or -f FILE"),
    ("explain none", 2, "-n names another"),
    ("explain deployment/none", 2, "-n names another"),
    ("explain cronjob/x", 2, "write KIND/NAME"),
    ("explain one -f pod.yaml", 2, "POD, KIND/NAME, -l SELECTOR, FILE or -f FILE"),
    ("explain -f missing.yaml", 2, "No such file or directory"),
    ("explain -f broken.yaml", 2, "did not find expected node content"),
    ("explain -f empty.yaml", 2, "holds no pod and no workload with pods"),
    ("explain Bad_Name", 2, "use lower-case letters, digits, - and ."),
    ("defrag", 2, "POD, KIND/NAME, FILE or -f FILE"),
    ("defrag none", 2, 'no pod "none" that asks for cards in namespace "defa'),
    ("defrag one", 2, "it waits for nothing"),
    ("defrag -f empty.yaml", 2, "give one"),
    ("defrag x --moves 0", 2, "use 1 to 64"),
    ("quota a b", 2, "kubectl vcuda quota --help shows what it takes"),
    ("quota Team", 2, "use lower-case letters, digits, - and ."),
    ("quota team -n other", 2, "name one"),
    ("resize one", 2, "give --cores, --memory or both, or --reset to go bac"),
    ("resize --cores 50", 2, "name a pod or a workload, or choose pods by their label"),
    ("resize one -l app=web --cores 50", 2, "name a pod or a workload, or choose pods by their label"),
    ("resize -l app=none --cores 50", 2, "no pod with app=none in namespace default runs on a"),
    ("resize one --cores 150", 2, "is 150: use 99"),
    ("resize one --cores 0", 2, "is out of bounds: use 1 to"),
    ("resize one --cores half", 2, "'half' is not a whole number"),
    ("resize one --memory 300Mi", 2, 'memory of container "c" is 300 MiB: use 256 MiB or 5'),
    ("resize one --memory 8", 2, 'memory of container "c" is 8 B: use 256 MiB'),
    ("resize one --memory 8GB", 2, "write a quantity such as 8Gi"),
    ("resize one --cores 50 -c other", 2, '"c"'),
    ("resize one --cores 50 --reset", 2, "give --cores, --memory or both, or --reset to go bac"),
    ("resize job/x --cores 50", 2, "write KIND/NAME"),
    ("resize none --cores 50", 2, "-n names another"),
    ("resize deployment/none --cores 50", 2, "-n names another"),
    ("resize one --cores 50 --wait long", 2, "write it like 30s, 2m or 1m30s"),
    ("resize one --cores 50 --dry-run=maybe", 2, "'maybe' is none of none, client or server"),
    ("simulate", 2, "give manifests of the pods to come, or --drain NODE"),
    ("simulate -f pod.yaml --drain n1", 2, "give manifests of the pods to come, or --drain NODE"),
    ("simulate --drain none", 2, "n1"),
    ("simulate -f pod.yaml --like none", 2, "use a node (n1) or a profile (a100x8, dgx1-v100, h20"),
    ("simulate -f empty.yaml", 2, "no pod in these manifests asks for a part of a card"),
    ("cost --since 5", 2, "write it like 90m, 24h or 7d, 400d at most"),
    ("cost --month 2026-13", 2, "write it like 2026-10"),
    ("cost --by team", 2, "use namespace, pod, or label=KEY"),
    ("cost --prometheus nowhere", 2, "write a URL, or NAMESPACE/SERVICE[:PORT] such as mon"),
    ("check", 2, "name a manifest or a directory, or - for standard in"),
    ("check missing.yaml", 2, "No such file or directory"),
    ("check pod.yaml --unit 3", 2, "use whole bytes from 1Mi to 1Ti, such as 256Mi"),
    ("migrate pod.yaml --from slurm", 2, "'slurm' is none of auto, gpu-manager, hami, volcano,"),
    ("migrate pod.yaml --cores 100", 2, "use 1 to 99"),
    ("migrate pod.yaml --card-memory 40Gi --card-model T4", 2, "each names the card's size"),
    ("advise --memory-margin 999", 2, "use -50 to 400"),
    ("advise --apply now", 2, "'now' is not in-place, which alone is known"),
    ("version --admission nowhere", 2, "write NAMESPACE/NAME, such as kube-system/gpu-quota-"),
    ("ui --port 99999", 2, "use 0 to 65535"),
    ("doctor --output xml", 2, "'xml' is none of table, wide, name, csv, json, yaml,"),
]


@pytest.mark.parametrize(("line", "code", "cure"), LINES, ids=[line for line, _, _ in LINES])
def test_a_bad_command_line_is_refused_with_its_cure(
    line: str,
    code: int,
    cure: str,
    api: StandInApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pod.yaml").write_text(MANIFEST % 30)
    Path("broken.yaml").write_text("a: [")
    Path("empty.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    a_node(api)
    a_share(api, "one", 30)
    assert run(shlex.split(line)) == code
    last = said(capsys)[1].splitlines()[-1]
    assert cure in last
    assert last.isprintable()


def test_there_are_seventy_of_them() -> None:
    assert len(LINES) >= 70
