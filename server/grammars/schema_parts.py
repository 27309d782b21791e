"""Takes a tool's schema apart: into alternatives, properties, and parts that stand alone.

For formats of calls that are not JSON as a whole, so that parts of a schema are enforced one by one.
Invariant: a value fits the schema if and only if it fits all parts of one alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.http.errors import invalid
from server.parsing.typed import target_of, type_of

MOST_ALTERNATIVES = 64
MOST_REFERENCES = 32  # one after the other, without a keyword between them that goes deeper
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
COMPOSED = ("$ref", "allOf", "anyOf", "oneOf")
DEFINITIONS = ("$defs", "definitions")
NAMED = (*DEFINITIONS, "properties", "patternProperties")  # what they hold has names of the caller's
VALUES = ("const", "enum", "default", "examples")
ANNOTATIONS = ("title", "description", "default", "examples", "example", "$comment", "deprecated")
IDENTIFIERS = ("$id", "$anchor", "$schema")

OF_NO_PART = (*COMPOSED, *ANNOTATIONS, *IDENTIFIERS, *DEFINITIONS)
Parts = tuple[Mapping[str, Any], ...]  # schemas without COMPOSED, all of which a value fits


@dataclass(frozen=True, slots=True)
class Properties:
    """Of an object: each one's schema, those that must be there, and the schema of others, False for none."""

    schemas: Mapping[str, Any]
    required: frozenset[str]
    others: Any


class SchemaParts:
    """root: a tool's schema. owner: whose schema it is, for refusals."""

    def __init__(self, root: Mapping[str, Any], owner: str) -> None:
        self._root = root
        self._owner = owner

    def alternatives(self, schema: Any, num_steps: int = 0) -> list[Parts]:
        """The alternatives that the schema has by its references, allOf and anyOf; none where nothing fits it."""
        if not isinstance(schema, Mapping):
            return [] if schema is False else [()]
        if num_steps > MOST_REFERENCES:
            self.refuse("refers to itself")
        own = {keyword: value for keyword, value in schema.items() if keyword not in OF_NO_PART}
        found: list[Parts] = [(own,) if own else ()]
        choices = [[self._target(schema["$ref"])]] if "$ref" in schema else []
        choices += [[each] for each in schema.get("allOf", ())]
        choices += [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        for options in choices:
            further = [parts for option in options for parts in self.alternatives(option, num_steps + 1)]
            if len(found) * len(further) > MOST_ALTERNATIVES:
                self.refuse(f"has more than {MOST_ALTERNATIVES} alternatives in one place")
            found = [(*one, *other) for one in found for other in further]
        return found

    def properties(self, parts: Parts) -> Properties | None:
        """Of an object that fits these parts; None where there is none."""
        for keyword in ("patternProperties", "minProperties", "maxProperties"):
            if any(part.get(keyword) for part in parts):
                self.refuse(f"has {keyword}")
        required = frozenset(name for part in parts for name in part.get("required", ()))
        named = [name for part in parts for name in part.get("properties", ())]
        names = dict.fromkeys([*named, *sorted(required)])
        others = _all_of([part.get("additionalProperties", True) for part in parts])
        schemas = {name: _all_of([_property(part, name) for part in parts]) for name in names}
        if any(schemas[name] is False for name in required):
            return None
        return Properties({name: schema for name, schema in schemas.items() if schema is not False}, required, others)

    def alone(self, schema: Any) -> dict[str, Any]:
        """A part of the root as a root of its own, with all that it refers to as definitions."""
        numbers: dict[str, int] = {}

        def moved(part: Any) -> Any:
            def reference(old: str) -> str:
                return f"#/$defs/{numbers.setdefault(old, len(numbers))}"

            return _rewritten(part, (*ANNOTATIONS, *IDENTIFIERS, *DEFINITIONS), reference)

        whole: dict[str, Any] = moved(schema)
        definitions: dict[str, Any] = {}
        while len(definitions) < len(numbers):
            number = len(definitions)
            definitions[str(number)] = moved(self._target(list(numbers)[number]))
        return whole | ({"$defs": definitions} if definitions else {})

    def refuse(self, what: str) -> None:
        """Raises ApiError."""
        message = f"{self._owner} {what}, which cannot be enforced in the format of this model's calls."
        raise invalid(message, "tools", "invalid_schema")

    def _target(self, reference: str) -> Any:
        base = str(self._root.get("$id", "")).removesuffix("#")
        local = reference.removeprefix(base) if base else reference
        if local in ("", "#"):
            return self._root
        if local.startswith("#/"):
            found = target_of(self._root, local)
        else:
            found = next((each for each in _schemas_in(self._root) if each.get("$anchor") == local[1:]), None)
        if found is None:
            self.refuse(f"refers to {reference}")
        return found


def without_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what only tells of it, which may be long."""
    bare: dict[str, Any] = _rewritten(schema, ANNOTATIONS, str)
    return bare


def types_of(parts: Parts) -> list[str]:
    """The types that the parts let a value have, in the order of TYPES."""
    named = [part["type"] for part in parts if "type" in part]
    sets = [{each} if isinstance(each, str) else set(each) for each in named]
    return [name for name in TYPES if all(name in each or (name == "integer" and "number" in each) for each in sets)]


def values_of(parts: Parts) -> list[Any] | None:
    """The values that the parts list, as far as their types allow them; None where they list none."""
    lists = [[part["const"]] if "const" in part else part["enum"] for part in parts if {"const", "enum"} & part.keys()]
    if not lists:
        return None
    types = types_of(parts)
    return [value for value in lists[0] if type_of(value) in types and all(_is_in(value, each) for each in lists[1:])]


def conjunction(parts: Sequence[Any]) -> dict[str, Any]:
    """The schema of a value that fits all parts."""
    return dict(parts[0]) if len(parts) == 1 else {"allOf": list(parts)} if parts else {}


def _is_in(value: Any, values: Sequence[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in values)


def _property(part: Mapping[str, Any], name: str) -> Any:
    properties = part.get("properties", {})
    return properties[name] if name in properties else part.get("additionalProperties", True)


def _all_of(schemas: list[Any]) -> Any:
    """The schema of what fits all of these, True for anything."""
    saying = [schema for schema in schemas if schema is not True and schema != {}]
    if any(schema is False for schema in saying):
        return False
    return conjunction(saying) if saying else True


def _rewritten(value: Any, dropped: Collection[str], reference: Callable[[str], str], has_names: bool = False) -> Any:
    """The schema, or what is in it, without the keywords in `dropped`, and with other references. has_names: its
    members are named by the caller, so that none is a keyword."""
    if isinstance(value, list):
        return [_rewritten(item, dropped, reference) for item in value]
    if not isinstance(value, Mapping):
        return value
    rewritten = {
        key: item
        if key in VALUES and not has_names
        else _rewritten(item, dropped, reference, key in NAMED and not has_names)
        for key, item in value.items()
        if has_names or key not in dropped
    }
    if isinstance(value.get("$ref"), str) and not has_names:
        rewritten["$ref"] = reference(value["$ref"])
    return rewritten


def _schemas_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a schema, the schemas among them."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
