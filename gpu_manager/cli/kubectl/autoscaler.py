"""``kubectl vcuda autoscaler``: what an autoscaler must be told of nodes that are not there yet."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final

from gpu_manager.cli.kubectl.names import read_target
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, log_in
from gpu_manager.domain.cluster.node_json import whole_number
from gpu_manager.domain.contract import CORE, MEMORY, MODEL_LABEL
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.runtime.arguments import Argument, Option

_TYPE: Final = "node.kubernetes.io/instance-type"


class Provider(Enum):
    """Whose spelling of Cluster Autoscaler's tags is wanted."""

    AWS = "aws"  # tags of an Auto Scaling group
    AZURE = "azure"  # tags of a scale set, which take no slash


class Wanted(Enum):
    """What is printed."""

    TEMPLATE = "template"  # for Cluster Autoscaler
    OVERLAY = "overlay"  # for Karpenter


def command(
    wanted: Annotated[
        Wanted,
        Argument(metavar="template|overlay", help="Cluster Autoscaler's tags, or Karpenter's overlay."),
    ],
    node: Annotated[
        str,
        Argument(metavar="NODE", help="A node like those to come, as NAME or node/NAME.", complete="nodes"),
    ],
    provider: Annotated[Provider, Option(help="Whose tags; for a template.")] = Provider.AWS,
    instance_type: Annotated[
        str, Option(help="For an overlay: the instance type; default: that of the node's label.")
    ] = "",
    access: Access = BY_KUBECONFIG,
) -> int:
    """Print what a node group without nodes must say of one, by a node that runs. Needs get on nodes.

    The tags are those of Cluster Autoscaler on AWS and Azure, the overlay is Karpenter's NodeOverlay
    (karpenter.sh/v1alpha1, feature gate NodeOverlay). Exit code: 0, 1 if the node offers no cards.

    Examples:
      kubectl vcuda autoscaler template node-1
      kubectl vcuda autoscaler template node-1 --provider azure
      kubectl vcuda autoscaler overlay node-1 --instance-type g6.12xlarge
    """
    import yaml  # noqa: PLC0415  # only here

    from gpu_manager.adapters.kube.reading import node_object  # noqa: PLC0415  # as in log_in

    name = read_target(node, ("Node",), "NODE").name
    with log_in(access) as login:
        obj = node_object(login.connection, name)
    if obj is None:
        raise RequestInvalid(f"there is no node {quoted(name)}: kubectl get nodes lists them")
    labels = mapping(mapping(obj.get("metadata")).get("labels"))
    offered = mapping(mapping(obj.get("status")).get("capacity"))
    amounts = {key: str(whole_number(offered.get(key))) for key in (CORE, MEMORY)}
    if "0" in amounts.values():
        print(f"{quoted(name)} offers no devices of {CORE} and {MEMORY}: kubectl vcuda doctor says why")
        return 1
    if wanted is Wanted.TEMPLATE:
        printed: Mapping[str, Any] = template(amounts, text(labels.get(MODEL_LABEL)), provider)
    else:
        printed = overlay(amounts, instance_type or text(labels.get(_TYPE)))
    print(yaml.safe_dump(printed, sort_keys=False).rstrip("\n"))
    return 0


def template(amounts: Mapping[str, str], model: str, provider: Provider) -> dict[str, str]:
    """Tags of a node group; ``amounts`` by resource, ``model`` the label of its cards, empty for none."""
    tags = {f"resources/{resource}": amount for resource, amount in amounts.items()}
    tags |= {f"label/{MODEL_LABEL}": model} if model else {}
    found = {f"k8s.io/cluster-autoscaler/node-template/{tag}": value for tag, value in tags.items()}
    if provider is Provider.AZURE:
        return {tag.replace("/", "_"): value for tag, value in found.items()}
    return found


def overlay(amounts: Mapping[str, str], instance_type: str) -> dict[str, Any]:
    """A NodeOverlay of Karpenter for one instance type. Raises RequestInvalid: none is named."""
    if not instance_type:
        raise RequestInvalid(f"the node has no label {_TYPE}: name its type by --instance-type")
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in instance_type.lower()).strip("-")
    requirement = {"key": _TYPE, "operator": "In", "values": [instance_type]}
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": f"vcuda-{name}"[:253]},
        "spec": {"requirements": [requirement], "capacity": dict(amounts)},
    }
