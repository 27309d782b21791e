"""What keywords of JSON schemas mean to llguidance: which it enforces, which exclude nothing, which can be written
another way.

Knows one schema at a time. Invariant: a rule here only removes what excludes nothing, or excludes more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keywords by what they hold: one schema, a list of schemas, or schemas by name.
ONE = _words("""
    additionalItems additionalProperties contains else if items not propertyNames then unevaluatedItems
    unevaluatedProperties
""")
LISTS = _words("allOf anyOf oneOf prefixItems")
DEFINITIONS = _words("$defs definitions")
BY_NAME = DEFINITIONS | _words("dependentSchemas patternProperties properties")
# Keywords that exclude values: those that llguidance enforces, and those that it refuses.
ENFORCED = _words("""
    $ref additionalItems additionalProperties allOf anyOf const enum exclusiveMaximum exclusiveMinimum format items
    maxItems maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf oneOf pattern
    patternProperties prefixItems properties required type
""")
REFUSED = _words("""
    $dynamicRef $recursiveRef contains dependencies dependentRequired dependentSchemas else if maxContains
    minContains not propertyNames then unevaluatedItems unevaluatedProperties uniqueItems
""")
KNOWN = ENFORCED | REFUSED | DEFINITIONS | _words("$anchor $dynamicAnchor $id $schema id x-guidance")
PARTS = _words("$ref allOf anyOf dependentSchemas else if oneOf then")  # may be about the same object
COUNTS = _words("maxItems maxLength maxProperties minItems minLength minProperties")
TYPES = _words("array boolean integer null number object string")
FORMATS = _words("date date-time duration email hostname ipv4 ipv6 time uri uuid")
DRAFTS = frozenset(
    [f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7)]
    + [f"https://json-schema.org/draft/{date}/schema" for date in ("2019-09", "2020-12")]
)
EXACT = 2**53  # integers up to here are floats
INT64 = 2**63
LARGEST_BOUND = INT64 - 1024  # the largest float that is an integer of 64 bits


def is_anything(schema: Any) -> bool:
    """Whether every value fits the schema."""
    return schema is True or (isinstance(schema, dict) and not (ENFORCED | REFUSED) & schema.keys())


def excludes_nothing(keyword: str, schema: Mapping[str, Any]) -> bool:
    """Whether this keyword of the schema excludes no value, while llguidance would refuse it or might."""
    value = schema[keyword]
    if keyword == "$schema":  # of a draft that llguidance does not know; it would fetch it
        return not isinstance(value, str) or value.rstrip("#") not in DRAFTS
    if keyword == "format":
        return not isinstance(value, str) or value not in FORMATS
    if keyword == "uniqueItems":
        return value is False or (value is True and schema.get("maxItems") in (0, 1))
    if keyword == "propertyNames":
        return is_anything(value) or _is_any_string(value)
    if keyword == "not":
        return value is False
    if keyword in ("contains", "minContains", "maxContains"):
        return "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema)
    if keyword in ("if", "then", "else"):
        branches = [schema.get(each, True) for each in ("then", "else")]
        return "if" not in schema or all(is_anything(branch) for branch in branches)
    if keyword == "unevaluatedProperties":
        return is_anything(value) or "additionalProperties" in schema
    if keyword == "unevaluatedItems":
        return is_anything(value) or isinstance(schema.get("items"), bool | dict)
    if keyword == "dependentRequired":
        return isinstance(value, dict) and not any(value.values())
    if keyword in ("dependencies", "dependentSchemas"):
        return isinstance(value, dict) and all(each == [] or is_anything(each) for each in value.values())
    if keyword == "minProperties":
        return is_number(value) and value <= len(listed(schema, "required"))
    if keyword == "maxProperties":
        is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        return is_closed and is_number(value) and value >= len(schema.get("properties", ()))
    return False


def _is_any_string(schema: Any) -> bool:
    if not isinstance(schema, dict) or (ENFORCED | REFUSED) & schema.keys() - {"minLength", "type"}:
        return False
    named = schema.get("type", "string")
    return schema.get("minLength", 0) == 0 and "string" in (named if isinstance(named, list) else [named])


def counts_properties(schema: Mapping[str, Any]) -> bool:
    """Whether llguidance can count the schema's properties: it cannot count optional ones, except up to one."""
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    required = set(listed(schema, "required"))
    if (not least and most is None) or PARTS & schema.keys() or schema.get("properties", {}).keys() <= required:
        return True
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return is_closed and least <= len(required) + 1 and most in (None, len(required) + 1)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_exact_integers(value: Any) -> bool:
    """Whether all integers in a JSON value are floats, so that llguidance keeps them as they are."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and abs(value) > EXACT and (abs(value) >= INT64 or int(float(value)) != value):
            return False
    return True


def write_property_names(schema: dict[str, Any], names: Any) -> None:
    """Replace `propertyNames` where properties or a pattern say the same. names: the schema of the names."""
    others = schema.get("additionalProperties", True)
    if not isinstance(names, dict) or schema.get("patternProperties"):
        return
    own = schema.get("properties", {})
    only = (ENFORCED | REFUSED) & names.keys() - {"type"}
    values = [names["const"]] if "const" in names else listed(names, "enum")
    if only in ({"const"}, {"enum"}):
        allowed = [name for name in values if isinstance(name, str)]
        schema["properties"] = {name: own.get(name, others) for name in allowed} | dict.fromkeys(
            own.keys() - set(allowed), False
        )
    elif only == {"pattern"} and not own and isinstance(names["pattern"], str):
        schema["patternProperties"] = {names["pattern"]: others}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def write_unevaluated(schema: dict[str, Any]) -> None:
    """Replace `unevaluatedProperties` where no other part of the schema evaluates any."""
    if not PARTS & schema.keys() and "additionalProperties" not in schema and "unevaluatedProperties" in schema:
        schema["additionalProperties"] = schema.pop("unevaluatedProperties")


def write_bounds(schema: dict[str, Any]) -> bool:
    """Move bounds that llguidance would not keep exactly to the next ones inward that it does. Return whether there
    are such: it knows no integers of more than 64 bits."""
    for inclusive, exclusive, sign in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        bounds = {
            keyword: schema[keyword]
            for keyword in (inclusive, exclusive)
            if is_number(schema.get(keyword)) and EXACT <= abs(schema[keyword]) < math.inf
        }
        if not bounds or (bounds == {"maximum": INT64 - 1} and schema.get("type") == "integer"):  # which it knows
            continue
        lowest = max(_next_float(sign * int(value) + (keyword == exclusive)) for keyword, value in bounds.items())
        if lowest > LARGEST_BOUND:
            return False
        for keyword in bounds:
            del schema[keyword]
        if is_number(schema.get(inclusive)):
            lowest = max(lowest, sign * schema[inclusive])
        schema[inclusive] = sign * lowest
    return True


def _next_float(integer: int) -> int:
    """The least integer that is a float and no less than this one, of those down to -LARGEST_BOUND."""
    bounded = max(-LARGEST_BOUND, min(integer, INT64))
    nearest = float(bounded)
    return int(nearest if nearest >= bounded else math.nextafter(nearest, math.inf))


def listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """The keyword's list; an empty one where it has none."""
    found = schema.get(keyword)
    return found if isinstance(found, list) else []
