"""Writes as JSON what models write as bare text, by the types that a tool's schema names; and Python's keyword
arguments."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

MOST_REFERENCES = 32  # that lead to one schema; more are a circle
INTEGER = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}
NESTED = frozenset({"object", "array"})


def types_of(schema: Any, root: Schema, num_steps: int = 0) -> frozenset[str]:
    """The names of the types that a schema allows, as far as it says; empty where it does not. root: what references
    begin at."""
    if not isinstance(schema, dict) or num_steps > MOST_REFERENCES:
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str | list):
        found = {declared} if isinstance(declared, str) else {each for each in declared if isinstance(each, str)}
        return frozenset(found | ({"null"} if schema.get("nullable") is True else set()))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(type_of, values))
    if isinstance(schema.get("$ref"), str):
        return types_of(target_of(root, schema["$ref"]), root, num_steps + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list):
            steps = num_steps + 1
            return frozenset().union(*(types_of(each, root, steps) for each in schema[keyword][:MOST_REFERENCES]))
    return frozenset()


def target_of(root: Schema, reference: Any) -> Any:
    """What a JSON pointer in a `$ref` points at; None where it points at nothing, or is no pointer."""
    if not isinstance(reference, str) or reference.partition("/")[0] != "#":
        return None
    found: Any = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def type_of(value: Any) -> str:
    """The name of a JSON value's type."""
    return TYPE_OF.get(type(value), "object")


def property_of(schema: Schema, key: str) -> Any:
    """The schema of one argument; None where there is none."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value of these types; of a string where it can be none of them. Where no types are known, what
    reads as JSON is JSON."""
    bare = text.strip()
    if not types:
        value = _parsed(bare)
        return json.dumps(text, ensure_ascii=False) if value is None or isinstance(value, str) else bare
    if "integer" in types or "number" in types:
        if NUMBER.fullmatch(bare) and ("number" in types or INTEGER.fullmatch(bare)):
            return bare
        if "integer" in types and NUMBER.fullmatch(bare) and float(bare).is_integer():
            return str(int(float(bare)))
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    if "null" in types and bare in ("null", "None"):
        return "null"
    if type_of(_parsed(bare)) in types & NESTED:
        return bare
    if type_of(value := _python(bare)) in types & NESTED:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def keywords_as_json(text: str, names: Sequence[str]) -> str | None:
    """The JSON object of a Python call's arguments, such as `city="Rome", days=3`; None where it is none. names: of the
    arguments without a name, in their order."""
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) > len(names):
            return None
        nodes = dict(zip(names, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in nodes:
                return None
            nodes[keyword.arg] = keyword.value
        return json.dumps({name: _literal(node) for name, node in nodes.items()}, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _JsonNames(ast.NodeTransformer):
    """Lets true, false and null stand for Python's names."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        values = {"true": True, "false": False, "null": None}
        return ast.Constant(values[node.id]) if node.id in values else node


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(_JsonNames().visit(node))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _python(text: str) -> Any:
    try:
        value = _literal(ast.parse(text, mode="eval").body)
        json.dumps(value, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value
