"""Kubernetes' own CEL functions over cel-python: enough to run our policies as the API server would."""

from __future__ import annotations

import json
import re
from typing import Any

import celpy
from celpy import celtypes

from gpu_manager.domain.resources import parse_quantity


class Quantity:
    """What ``quantity()`` makes of a text; exact."""

    def __init__(self, text: Any) -> None:
        self.value = parse_quantity(str(text))


def _is_integer(quantity: Quantity) -> Any:
    return celtypes.BoolType(quantity.value.denominator == 1 and abs(quantity.value) < 1 << 63)


def _sum(numbers: Any) -> Any:
    return celtypes.IntType(sum(int(n) for n in numbers))


def _index(values: Any, value: Any) -> Any:
    return celtypes.IntType(list(values).index(value) if value in list(values) else -1)


FUNCTIONS: dict[str, Any] = {
    "quantity": Quantity,
    "isInteger": _is_integer,
    "asInteger": lambda q: celtypes.IntType(int(q.value)),
    "asApproximateFloat": lambda q: celtypes.DoubleType(float(q.value)),
    "isGreaterThan": lambda q, other: celtypes.BoolType(q.value > other.value),
    "isLessThan": lambda q, other: celtypes.BoolType(q.value < other.value),
    "compareTo": lambda q, other: celtypes.IntType((q.value > other.value) - (q.value < other.value)),
    "sum": _sum,
    "max": lambda numbers: celtypes.IntType(max(int(n) for n in numbers)),
    "indexOf": _index,
    "join": lambda texts, by: celtypes.StringType(str(by).join(map(str, texts))),
    "split": lambda text, by: celtypes.ListType([celtypes.StringType(t) for t in str(text).split(str(by))]),
    "trim": lambda text: celtypes.StringType(str(text).strip()),
    "substring": lambda text, begin, end: celtypes.StringType(str(text)[int(begin) : int(end)]),
    "matches": lambda text, pattern: celtypes.BoolType(re.search(f"(?a){pattern}", str(text)) is not None),
}


class Policy:
    """One ValidatingAdmissionPolicy, compiled."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._environment = celpy.Environment()
        self.rules = spec["matchConstraints"]["resourceRules"]
        self._conditions = [self._program(c["expression"]) for c in spec["matchConditions"]]
        self._variables = {v["name"]: self._program(v["expression"]) for v in spec["variables"]}
        self._validations = [
            (
                self._program(v["expression"]),
                self._program(v.get("messageExpression") or json.dumps(v["message"])),
                v["message"],
            )
            for v in spec["validations"]
        ]

    def _program(self, expression: str) -> Any:
        return self._environment.program(self._environment.compile(expression), functions=FUNCTIONS)

    def matches(self, request: dict[str, Any]) -> bool:
        """True if the API server would ask this policy."""
        plural = request["resource"]["resource"] + (f"/{sub}" if (sub := request.get("subResource")) else "")
        return any(plural in r["resources"] and request["operation"] in r["operations"] for r in self.rules)

    def refusals(self, request: dict[str, Any]) -> list[tuple[str, str]]:
        """(fixed message, composed message) of each validation that fails."""
        scope = {
            "object": celpy.json_to_cel(request["object"]),
            "oldObject": celpy.json_to_cel(request.get("oldObject")),
            "namespaceObject": celpy.json_to_cel(request.get("namespaceObject")),
            "request": celpy.json_to_cel(
                {k: v for k, v in request.items() if not k.lower().endswith("object")}
            ),
        }
        if not all(condition.evaluate(scope) for condition in self._conditions):
            return []
        variables = celtypes.MapType()
        scope["variables"] = variables
        for name, program in self._variables.items():
            variables[celtypes.StringType(name)] = program.evaluate(scope)
        return [
            (fixed, str(says.evaluate(scope)))
            for holds, says, fixed in self._validations
            if not holds.evaluate(scope)
        ]
