"""Fifty JSON schemas whose every text is short: nested, enums, arrays, patterns, references, numbers, choices."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "maxLength": 12}
DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
YES_OR_NO: Schema = {"type": "boolean"}


def record(optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these properties and no others, all required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def items(schema: Schema, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": schema, "minItems": least, "maxItems": most}


def pattern(text: str) -> Schema:
    return {"type": "string", "pattern": text}


PERSON = record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120})
TREE: Schema = record(value=DIGIT, children={"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/leaf"}})
LEAF = record(value=DIGIT, is_leaf={"const": True})

SCHEMAS: tuple[Schema, ...] = (
    PERSON,
    record(flag=YES_OR_NO),
    record(nothing={"type": "null"}),
    record(count={"type": "integer", "minimum": -5, "maximum": 5}),
    record(share={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}),
    record(colour={"enum": ["red", "green", "blue"]}),
    record(mixed={"enum": [1, "one", None, True]}),
    record(kind={"const": "circle"}, radius=DIGIT),
    record(tags=items(WORD)),
    record(tags=items({"enum": ["a", "b"]}, 2, 4)),
    record(grid=items(items(DIGIT, 2, 2), 2, 2)),
    record(person=PERSON),
    record(people=items(PERSON, 1, 2)),
    record(outer=record(middle=record(inner=record(value=DIGIT)))),
    record(("nick",), name=WORD, nick=WORD),
    record(("a", "b", "c"), a=DIGIT, b=DIGIT, c=DIGIT),
    record(code=pattern("^[A-Z]{3}-[0-9]{2}$")),
    record(date=pattern("^20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][0-9]$")),
    record(colour=pattern("^#[0-9a-f]{6}$")),
    record(mail=pattern("^[a-z]{1,8}@[a-z]{1,8}\\.(com|org)$")),
    record(version=pattern("^[0-9]\\.[0-9]\\.[0-9]$"), is_stable=YES_OR_NO),
    record(day={"type": "string", "format": "date"}),
    record(time=pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$")),
    record(id={"type": "string", "format": "uuid"}),
    record(address={"type": "string", "format": "ipv4"}),
    {"$defs": {"digit": DIGIT}, **record(first={"$ref": "#/$defs/digit"}, second={"$ref": "#/$defs/digit"})},
    {"$defs": {"leaf": LEAF}, **TREE},
    {"$defs": {"person": PERSON}, **record(author={"$ref": "#/$defs/person"}, title=WORD)},
    {"definitions": {"point": record(x=DIGIT, y=DIGIT)}, **record(line=items({"$ref": "#/definitions/point"}, 2, 2))},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": YES_OR_NO}, **record(value={"$ref": "#/$defs/a"})},
    record(value={"anyOf": [DIGIT, YES_OR_NO]}),
    record(value={"anyOf": [{"type": "null"}, WORD]}),
    record(shape={"anyOf": [record(kind={"const": "dot"}), record(kind={"const": "disc"}, radius=DIGIT)]}),
    record(value={"oneOf": [{"type": "boolean"}, {"type": "null"}]}),
    record(value={"type": ["boolean", "null"]}),
    record(value={"allOf": [DIGIT, {"maximum": 4}]}),
    items(DIGIT, 3, 3),
    items(PERSON, 1, 1),
    {"type": "array", "prefixItems": [DIGIT, YES_OR_NO, WORD], "items": False, "minItems": 3},
    {"enum": ["north", "south", "east", "west"]},
    {"type": "boolean"},
    {"type": "integer", "minimum": 10, "maximum": 99},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"const": {"status": "ok", "codes": [1, 2]}},
    record(name={"type": "string", "minLength": 1, "maxLength": 1}),
    record(a=DIGIT, b=WORD, c=YES_OR_NO, d=items(DIGIT), e={"enum": ["x", "y"]}, f={"type": "null"}),
    record(answer={"enum": ["yes", "no"]}, reasons=items(WORD, 1, 2), sure={"type": "integer", "enum": [1, 2, 3]}),
    record(**{"a key with spaces": DIGIT, 'a "quoted" key': YES_OR_NO, "schlüssel": WORD}),
    record(name={"enum": ["get_weather"]}, arguments=record(city=WORD, unit={"enum": ["C", "F"]})),
    record(
        order=record(
            id=pattern("^[0-9]{4}$"),
            lines=items(record(sku=pattern("^[a-z]{2}[0-9]$"), quantity=DIGIT, is_gift=YES_OR_NO), 1, 2),
            total={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        )
    ),
)
