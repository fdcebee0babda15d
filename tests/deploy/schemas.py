"""Kubernetes' own schemas, as kubernetes-validate ships them; strict: unknown fields are faults.

Its own ``validate`` reads all definitions of a version (5 MB) for each object, 0.15 s; here once.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

import referencing
from jsonschema import Draft202012Validator

_HOME = files("kubernetes_validate") / "kubernetes-json-schema"


@functools.cache
def _registry(version: str) -> referencing.Registry[Any]:
    text = (_HOME / f"v{version}-local-strict" / "_definitions.json").read_text()
    resource = referencing.Resource.from_contents(json.loads(text))
    return (resource @ referencing.Registry()).crawl()


@functools.cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))
    schema = json.loads((_HOME / f"v{version}-local-strict" / f"{name}.json").read_text())
    return Draft202012Validator(schema, registry=_registry(version))


def faults(obj: dict[str, Any], version: str) -> list[str]:
    """What the API server of that version would not take."""
    found = _validator(version, obj["kind"], obj["apiVersion"]).iter_errors(obj)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]
