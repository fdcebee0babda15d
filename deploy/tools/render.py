"""Write what is made from the chart and for it: its policies, its README's table, and deploy/manifests.

`--check` writes nothing and says what differs. Needs build/tools/helm (`make tools`).
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from admission.config import ClusterTerms
from gpu_manager.domain.resources import LARGEST_COUNT
from tools.policies import policies

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "gpu-manager"
MANIFESTS = ROOT / "deploy" / "manifests"
HELM = ROOT / "build" / "tools" / "helm"
# The tag of the kube-scheduler in the manifests; Helm asks the cluster instead.
KUBE_VERSION = "1.36.2"
_PARTS = (
    # file, templates
    ("terms", ("terms",)),
    ("agent", ("agent/rbac", "agent/daemonset", "agent/service")),
    (
        "admission",
        (
            "admission/rbac",
            "admission/certificates",
            "admission/scheduler",
            "admission/deployment",
            "admission/services",
        ),
    ),
    ("evictor", ("evictor/rbac", "evictor/deployment")),
    ("webhooks", ("admission/webhooks",)),
    ("policies", ("policies", "agent/policy", "admission/policy", "evictor/policy")),
    ("networkpolicies", ("networkpolicy",)),
    ("view", ("view",)),
)
_HELMS = re.compile(
    r"^( *(helm\.sh/chart|app\.kubernetes\.io/managed-by)|# Source):.*\n"
    r"|^  annotations:\n(    helm\.sh/hook.*\n)+",
    re.MULTILINE,
)
_HEADER = "# Rendered from deploy/helm/gpu-manager with its defaults by deploy/tools/render.py: edit that.\n"

_KUSTOMIZATION = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
# The image as your registry has it, and the kube-scheduler of your cluster's version:
# images:
# - {name: gpu-manager, newName: registry.example/gpu-manager, newTag: 0.0.0}
# - {name: registry.k8s.io/kube-scheduler, newTag: v1.36.2}
resources:
"""
_GAPS = ClusterTerms(
    unit=7 << 20, minimum_cores=97, deny_node_name=True, trusted_users=frozenset({"agent@", "admission@"})
)


class _Dumper(yaml.SafeDumper):
    """Expressions as literal blocks: what is put into a gap needs no quoting there."""

    def ignore_aliases(self, data: object) -> bool:
        """Written out each time."""
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """CEL is full of quotes."""
        style = "|" if "'" in text or '"' in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def policy_file() -> str:
    """The policies with `@…@` where the cluster's terms go, as the chart fills them in."""
    # Without width: a line break inside an expression would hide what is to be replaced.
    text = yaml.dump({"objects": list(policies(_GAPS))}, Dumper=_Dumper, sort_keys=False, width=1 << 20)
    for term, gap in (
        ('"7 MiB"', '"@unit@"'),
        (f"'{LARGEST_COUNT // _GAPS.unit}'", "'@largest@'"),
        ('"97"', '"@minimum@"'),
        ("< 97", "< @minimum@"),
        ("['admission@', 'agent@']", "@trusted@"),
    ):
        if term not in text:
            raise SystemExit(f"the policies do not contain {term} any more: mend _GAPS")
        text = text.replace(term, gap)
    return "# Written by deploy/tools/render.py from tools/policies.\n" + text


def helm(*arguments: str) -> str:
    """Run helm, return what it prints."""
    done = subprocess.run([str(HELM), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"helm {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def template(*arguments: str, namespace: str = "kube-system", version: str = KUBE_VERSION) -> str:
    """The chart rendered."""
    return helm("template", "gpu-manager", str(CHART), "-n", namespace, "--kube-version", version, *arguments)


def manifests() -> Iterator[tuple[Path, str]]:
    """deploy/manifests: the chart with its defaults, without what only Helm reads."""
    for name, templates in _PARTS:
        shown = [word for part in templates for word in ("--show-only", f"templates/{part}.yaml")]
        text = _HELMS.sub("", template(*shown))
        text = re.sub(r"\n\n+---", "\n---", text).rstrip() + "\n"
        yield MANIFESTS / f"{name}.yaml", _HEADER + text
    names = "".join(f"- {name}.yaml\n" for name, _ in _PARTS)
    yield MANIFESTS / "kustomization.yaml", _KUSTOMIZATION + names


def values() -> Iterator[tuple[str, str, str]]:
    """(name, default, meaning) of every value, from values.yaml and its comments."""
    path: list[tuple[int, str]] = []
    meaning = ""
    data = yaml.safe_load((CHART / "values.yaml").read_text())
    for line in (CHART / "values.yaml").read_text().splitlines():
        if match := re.match(r" *# -- (.*)", line):
            meaning = match[1]
        elif match := re.match(r"( *)([A-Za-z]+):", line):
            depth = len(match[1])
            path = [(d, n) for d, n in path if d < depth] + [(depth, match[2])]
            if not meaning:
                continue
            value = data
            for _, name in path:
                value = value[name]
            flow = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("...\n").strip()
            yield ".".join(name for _, name in path), flow if len(flow) <= 70 else "see values.yaml", meaning
            meaning = ""


def readme() -> str:
    """The chart's README with its table renewed."""
    rows = "".join(f"| `{n}` | `{d}` | {m.replace('|', chr(92) + '|')} |\n" for n, d, m in values())
    text = (CHART / "README.md").read_text()
    head, _, rest = text.partition("<!-- values -->\n")
    _, _, tail = rest.partition("<!-- /values -->")
    table = f"| value | default | meaning |\n| --- | --- | --- |\n{rows}"
    return f"{head}<!-- values -->\n{table}<!-- /values -->{tail}"


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    # The chart's own files first: the manifests are made with them.
    for path, text in _files(check):
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print("\n".join(f"{'differs' if check else 'written'}: {name}" for name in stale))
    if stale and check:
        print("run: python deploy/tools/render.py, and commit")
    return int(check and bool(stale))


def _files(check: bool) -> Iterator[tuple[Path, str]]:  # noqa: FBT001  # one caller
    yield CHART / "files" / "policies.yaml", policy_file()
    yield CHART / "README.md", readme()
    made = dict(manifests())
    yield from made.items()
    for path in sorted(MANIFESTS.glob("*")):
        if path not in made:
            raise SystemExit(
                f"{path.relative_to(ROOT)} is rendered from nothing: {'remove' if check else 'removing'} it"
            )


if __name__ == "__main__":
    sys.exit(main())
