"""The schema of a tool's arguments: closed, unless it says otherwise, to properties that it does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server.grammars.keywords import excludes_nothing, listed
from server.grammars.schema import enforceable
from server.parsing.typed import target_of
from server.schemas.tools import Tool


def argument_schema(tool: Tool) -> dict[str, Any]:
    """The enforceable schema of a call's arguments: the function's parameters, and no others unless its schema allows
    them. Raises ApiError that names the tool."""
    function = tool.function
    owner = f"The schema of the tool '{function.name}'"
    return enforceable(_closed(function.schema_of_arguments), "tools", owner, function.strict)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has no properties but those that it, or a part of it, names."""
    if schema.get("type") != "object" or {"additionalProperties", "unevaluatedProperties"} & schema.keys():
        return schema
    if "propertyNames" in schema and not excludes_nothing("propertyNames", schema):
        return schema
    names: dict[str, None] = {}
    seen: set[int] = set()
    parts: list[Any] = [schema]
    for part in parts:  # which grows
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        properties = part.get("properties", {}) if isinstance(part, dict) else None
        if not isinstance(properties, dict) or (part is not schema and _is_open(part)):
            return schema
        names |= dict.fromkeys(properties)
        parts += _parts(part, schema)
    own = schema.get("properties", {})
    properties = own | {name: True for name in names if name not in own}
    return schema | ({"properties": properties} if properties else {}) | {"additionalProperties": False}


def _is_open(schema: dict[str, Any]) -> bool:
    """Whether the schema says which other properties there may be."""
    keywords = ("additionalProperties", "patternProperties", "unevaluatedProperties")
    return any(schema.get(keyword, False) is not False for keyword in keywords)


def _parts(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[Any]:
    """The schemas that an object of this schema also has to fit, or may have to; None where a reference leads
    nowhere."""
    if "$ref" in schema:
        yield target_of(root, schema["$ref"])
    yield from (schema[keyword] for keyword in ("if", "then", "else") if keyword in schema)
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from listed(schema, keyword)
