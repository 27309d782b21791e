"""Schemas as tools and clients send them, compiled by the grammar library: what fits, and what is refused where."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AnyUrl, AwareDatetime, BaseModel, Field, TypeAdapter
from transformers import AutoTokenizer

import decoding
from decoding.core.grammar import Grammar
from decoding.sampling.grammar.source import TokenizerFile, matcher_of
from server.config import ServerSettings
from server.grammars.argument_schema import argument_schema
from server.grammars.constraint import schema_grammar
from server.grammars.schema import enforceable
from server.http.errors import ApiError
from server.schemas.tools import Tool

FOLDER = Path(decoding.__file__).parent / "gosling"
BIG = 2**53 + 1  # no 64-bit float
PARAM = "response_format.json_schema.schema"


class Library:
    """The grammar library with the bundled model's tokenizer."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
        end_ids = [self.tokenizer.eos_token_id]
        self.file = TokenizerFile(str(FOLDER / "tokenizer.json"), len(self.tokenizer), end_ids).load()

    def fits(self, grammar: Grammar, value: Any) -> bool:
        matcher = matcher_of(grammar, self.file)
        token_ids = self.tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


def tool(parameters: dict[str, Any]) -> Tool:
    function = {"name": "book", "parameters": parameters, "strict": True}
    return Tool.model_validate({"type": "function", "function": function})


def grammar_of(schema: Any) -> Grammar:
    return schema_grammar(schema, PARAM, ServerSettings())


def check(library: Library, grammar: Grammar, fitting: Sequence[Any], others: Sequence[Any]) -> None:
    assert [value for value in fitting if not library.fits(grammar, value)] == []
    assert [value for value in others if library.fits(grammar, value)] == []


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    puppies: list["Pet"] = []


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Visit(BaseModel):
    id: UUID
    at: AwareDatetime
    url: AnyUrl | None = None
    path: Path = Path()
    pet: Pet
    tree: Node | None = None
    point: tuple[int, str] = (0, "")
    prices: dict[str, float] = {}
    rooms: dict[Literal["a", "b"], int] = {}


IDENTIFIER, TIME = "123e4567-e89b-12d3-a456-426614174000", "2026-01-01T00:00:00Z"
ADDRESS = {"id": IDENTIFIER, "at": TIME}

# What generators make: a schema, values that fit it, values that do not.
GENERATED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "pydantic": (
        Visit.model_json_schema(),
        [
            ADDRESS | {"pet": {"kind": "cat", "lives": 9}},
            ADDRESS | {"url": None, "path": "a/b", "pet": {"kind": "dog", "puppies": [{"kind": "dog"}]}},
            ADDRESS | {"pet": {"kind": "dog"}, "tree": {"value": 1, "children": [{"value": 2}]}, "point": [1, "a"]},
            ADDRESS | {"pet": {"kind": "dog"}, "prices": {"x": 1.5}, "rooms": {"b": 1}},
        ],
        [
            ADDRESS | {"pet": {"lives": 9}},
            ADDRESS | {"pet": {"kind": "dog"}, "rooms": {"c": 1}},
            {"id": "1", "at": TIME, "pet": {"kind": "dog"}},
        ],
    ),
    "pydantic, recursive": (Node.model_json_schema(), [{"value": 1, "children": [{"value": 2}]}], [{"children": []}]),
    "pydantic, a union": (TypeAdapter(Pet).json_schema(), [{"kind": "cat", "lives": 9}], [{"kind": "cow"}]),
    "zod 4": (
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "count": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
                "share": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
                "size": {"type": "integer", "format": "uint32", "minimum": 0, "maximum": 4294967295},
                "tags": {
                    "type": "object",
                    "propertyNames": {"type": "string"},
                    "additionalProperties": {"type": "string"},
                },
                "shape": {
                    "oneOf": [
                        {
                            "type": "object",
                            "properties": {"is": {"type": "string", "const": "dot"}},
                            "required": ["is"],
                        },
                        {
                            "type": "object",
                            "properties": {"is": {"type": "string", "const": "bar"}, "x": {"type": "number"}},
                            "required": ["is", "x"],
                            "additionalProperties": False,
                        },
                    ]
                },
                "time": {"type": "string", "format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT.*Z$"},
                "any": {},
            },
            "required": ["count"],
            "additionalProperties": False,
        },
        [
            {"count": 9007199254740991, "share": -1.5, "size": 4294967295, "tags": {"a": "b"}, "any": [1]},
            {"count": 1, "shape": {"is": "bar", "x": 1}, "time": TIME},
        ],
        [{"count": 9007199254740992}, {"count": 1, "shape": {"is": "bar"}}, {"count": 1, "size": -1}, {}],
    ),
    "zod-to-json-schema": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "from": {"type": "string", "format": "email"},
                "to": {"$ref": "#/properties/from"},
                "maybe": {"anyOf": [{"not": {}}, {"type": "string"}]},
                "never": {"not": {}},
                "pair": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": [{"type": "string"}, {"type": "number"}],
                },
                "one": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
                "same": {"$ref": "#/properties/one/oneOf/0"},
            },
            "required": ["from"],
            "additionalProperties": False,
        },
        [{"from": "a@b.c", "to": "d@e.f", "maybe": "x", "pair": ["a", 1], "one": None, "same": "abc"}],
        [{"from": "a"}, {"from": "a@b.c", "never": 1}, {"from": "a@b.c", "same": "abcd"}],
    ),
    "an MCP server": (
        {
            "$id": "https://example.com/tools/search",
            "$schema": "https://example.com/dialect",
            "$comment": "made by hand",
            "title": "Search",
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 0, "format": "search-query", "examples": [BIG]},
                "id": {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1, "default": BIG},
                "limit": {"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": 50, "x-order": 1},
                "sites": {"type": "array", "items": {"type": "string", "format": "uri"}, "uniqueItems": False},
                "pattern": {"type": "string"},
                "format": {"enum": ["short", "long"], "deprecated": True},
                "filter": {
                    "type": "object",
                    "patternProperties": {"^x-": {"type": "string", "nullable": True}},
                    "additionalProperties": False,
                    "minProperties": 0,
                    "dependentRequired": {},
                },
                "blob": {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
                "free": {"type": "object", "additionalProperties": {}, "unevaluatedProperties": True},
            },
            "required": [],
        },
        [
            {
                "query": "a",
                "id": 2**63 - 1,
                "limit": None,
                "sites": ["https://a.b/c"],
                "pattern": "(?=",
                "format": "long",
            },
            {"filter": {"x-a": "b"}, "blob": "aGk=", "free": {"a": [1]}},
        ],
        [{"id": 2**63}, {"limit": 0}, {"limit": 51}, {"filter": {"a": "b"}}, {"format": "other"}],
    ),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_schemas_are_enforced(library: Library, name: str) -> None:
    schema, fitting, others = GENERATED[name]
    before = copy.deepcopy(schema)
    check(library, grammar_of(schema), fitting, others)
    check(library, grammar_of(argument_schema(tool(schema))), fitting, others)
    assert schema == before


# What constrains nothing, or can be said in another way.
HARMLESS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "object", "propertyNames": {}}, [{"a": 1}], []),
    ({"type": "object", "propertyNames": {"type": "string", "description": "a name"}}, [{"a": 1}], []),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
     [{}, {"b": None}], [{"c": None}, {"a": 1}]),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"b": 1}]),
    ({"type": "string", "format": "uri-reference"}, ["a"], [1]),
    ({"type": "string", "format": None}, ["a"], [1]),
    ({"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[1]], [[1, 1]]),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 0}, [[1]], [1]),
    ({"type": "integer", "not": False}, [1], ["a"]),
    ({"type": "integer", "if": {"minimum": 3}}, [1], ["a"]),
    ({"type": "integer", "then": {"minimum": 3}}, [1], ["a"]),
    ({"type": "object", "dependentSchemas": {"a": {}}, "dependencies": {"a": []}}, [{"a": 1}], [1]),
    ({"type": "object", "properties": {"a": True}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({"type": "object", "properties": {"a": True}, "minProperties": 0, "required": []}, [{}], [1]),
    ({"type": "object", "properties": {"a": True}, "additionalProperties": False, "maxProperties": 1},
     [{}], [{"b": 1}]),
    ({"type": "object", "$defs": {"unused": {"uniqueItems": True}}}, [{}], [1]),
    ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"type": "null"}}}}, [None], [1]),
    ({"$schema": "http://json-schema.org/schema#", "type": "null"}, [None], [1]),
    ({"$dynamicAnchor": "node", "type": "object", "properties": {"next": {"$ref": "#node"}},
      "additionalProperties": False}, [{"next": {"next": {}}}], [{"next": 1}]),
    ({"oneOf": [{"const": 1}, {"const": 2}]}, [1, 2], [3]),
    ({"oneOf": [{"const": 1}, {"const": 2}], "anyOf": [{"const": 2}, {"const": 3}]}, [2], [1, 3]),
    ({"type": "object", "properties": {"a": True, "b": True}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    # Values, and properties, that look like schemas.
    ({"const": {"format": "x", "not": {}}}, [{"format": "x", "not": {}}], [{}]),
    ({"enum": [{"oneOf": [1]}, {"$ref": "#/x"}], "default": {"uniqueItems": True}},
     [{"oneOf": [1]}, {"$ref": "#/x"}], [1]),
    ({"type": "object", "properties": {"propertyNames": {"type": "null"}, "oneOf": {"type": "null"}},
      "additionalProperties": False}, [{"propertyNames": None, "oneOf": None}], [{"oneOf": 1}]),
    ({"type": "object", "properties": {"$ref": {"const": 1}, "enum": {"type": "null"}}}, [{"$ref": 1}], [{"$ref": 2}]),
    # Large numbers.
    ({"enum": [2**60, -(2**62)]}, [2**60, -(2**62)], [2**60 + 1]),
    ({"type": "integer", "minimum": BIG, "maximum": BIG + 1000}, [BIG + 1], [BIG - 1, BIG + 1001]),
    ({"type": "integer", "exclusiveMinimum": 2**53}, [2**53 + 2], [2**53]),
    ({"type": "integer", "exclusiveMaximum": 2**60}, [2**60 - 128], [2**60]),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [0, 2**62], [-1, 2**64]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fitting", "others"), HARMLESS, ids=lambda value: json.dumps(value)[:60])
def test_what_excludes_nothing_is_left_out(
    library: Library, schema: Any, fitting: list[Any], others: list[Any]
) -> None:
    check(library, grammar_of(schema), fitting, others)
    written = enforceable(schema, PARAM)
    assert enforceable(written, PARAM) == written


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the client is told."""
    sentences: list[str] = []
    monkeypatch.setattr("server.grammars.schema.tell", sentences.append)
    return sentences


REFUSED: list[tuple[Any, str]] = [
    ({"const": BIG}, "#/const has an integer that is too large"),
    ({"enum": [1, {"id": [BIG]}]}, "#/enum has an integer that is too large"),
    ({"const": 2**63}, "#/const has an integer that is too large"),
    ({"type": "integer", "minimum": 2**63}, "# has a bound beyond the integers of 64 bits"),
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems cannot be enforced"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "#/propertyNames cannot be enforced"),
    ({"type": "string", "pattern": "^(?!x)"}, "#/pattern must be a regular expression without look-around"),
    ({"patternProperties": {"(?<=a/)": {}}}, "#/patternProperties/(?<=a~1) must be a regular expression"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "#/oneOf has schemas that may not exclude each other"),
    ({"properties": {"a": True}, "minProperties": 1}, "# counts properties"),
    ({"type": "any"}, "#/type is none of array, boolean"),
    ({"required": True}, "#/required must be a list of names"),
    ({"enum": None}, "#/enum must be a list"),
    ({"anyOf": {}}, "#/anyOf must be a list of schemas"),
    ({"items": 3}, "#/items must be an object or a boolean"),
    ({"properties": []}, "#/properties must be an object"),
    ({"maxLength": None}, "#/maxLength must be a whole number"),
    ({"oneOf": [{}], "required": 1, "discriminator": {"propertyName": "a"}}, "#/required must be a list of names"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        grammar_of(schema)
    assert caught.value.message.startswith(f"The schema: {said}")
    assert (caught.value.param, caught.value.status) == (PARAM, 400)
    used = {"$ref": "#/$defs/A", "$defs": {"A": schema}}
    with pytest.raises(ApiError) as caught:
        argument_schema(tool(used))
    assert caught.value.message.startswith(f"The schema of the tool 'book': #/$defs/A{said[1:]}")
    assert caught.value.param == "tools"


LOOSE: list[tuple[Any, list[Any], list[Any]]] = [  # with values that are allowed, and those that still are not
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [[1, 1]], [["a"]]),
    ({"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"const": 1}},
     [{"long": 1}], [{"a": 2}]),
    ({"type": "string", "pattern": "^(?!x)", "maxLength": 2}, ["x"], ["xxx"]),
    ({"type": "object", "patternProperties": {"^(?=a)": {"const": 1}, "b": False}, "additionalProperties": False,
      "required": ["c"]}, [{"c": 1, "a": 1}], [{"a": 1}]),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, [1, 1.5], ["a"]),
    ({"type": "object", "properties": {"a": True, "b": True}, "minProperties": 1}, [{}], [1]),
    ({"type": "integer", "minimum": 2**63, "multipleOf": 2}, [4], [3, "a"]),
    ({"type": "integer", "not": {"const": 1}}, [1], ["a"]),
    ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": False}, [{"a": 1}, {}], [1]),
    ({"anyOf": [{"type": "array", "contains": {"const": 1}, "minContains": 2}, {"type": "null"}]}, [[], None], [1]),
    ({"type": "array", "items": {"$dynamicRef": "#node"}}, [[1]], [1]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fitting", "others"), LOOSE, ids=lambda value: json.dumps(value)[:60])
def test_who_is_not_strict_is_held_to_what_a_grammar_can_and_told_of_the_rest(
    library: Library, schema: Any, fitting: list[Any], others: list[Any], told: list[str]
) -> None:
    with pytest.raises(ApiError):
        grammar_of(schema)
    assert told == []
    check(library, schema_grammar(schema, PARAM, ServerSettings(), is_strict=False), fitting, others)
    assert all(each.startswith("The schema is not strict: #") for each in told)
    assert told


def test_a_schema_that_is_none_is_refused_though_nobody_is_strict() -> None:
    for schema in ({"required": True}, {"type": "any"}, {"pattern": 5}, {"anyOf": {}}, {"maxLength": -1}):
        with pytest.raises(ApiError):
            schema_grammar(schema, PARAM, ServerSettings(), is_strict=False)


def test_a_one_of_without_schemas_is_an_any_of_without_schemas() -> None:
    for beside in ({}, {"type": "object"}):
        assert grammar_of({"oneOf": []} | beside) == grammar_of({"anyOf": []} | beside)


def test_brackets_are_no_look_around(library: Library) -> None:
    check(library, grammar_of({"type": "string", "pattern": r"^[(?=]\(?!]$"}), ["=(!]", "=!]"], ["a"])


def test_definitions_within_definitions_and_elsewhere_are_found(library: Library) -> None:
    schema: dict[str, Any] = {
        "$ref": "#/$defs/A/$defs/B",
        "$defs": {"A": {"$defs": {"B": {"$ref": "#/definitions/a~1b%25"}}}, "unused": {"not": {"type": "null"}}},
        "definitions": {"a/b%": {"anyOf": [{"$ref": "#C"}, {"type": "null"}]}, "C": {"$anchor": "C", "const": 1}},
    }
    with pytest.raises(ApiError, match="unused/not cannot be enforced"):  # an anchor may be anywhere
        grammar_of(schema)
    del schema["$defs"]["unused"]
    check(library, grammar_of(schema), [1, None], [2])


def test_the_work_is_linear() -> None:
    """These would take minutes where it is not."""
    names = [f"d{number}" for number in range(30_000)]
    chain = {name: {"$ref": f"#/$defs/{after}"} for name, after in zip(names[1:], names, strict=False)}
    enforceable({"$ref": f"#/$defs/{names[-1]}", "$defs": chain | {names[0]: True}}, PARAM)
    enforceable({"pattern": "[" * 300_000 + "\\"}, PARAM)
    enforceable({"$ref": "#" + "/a" * 300_000}, PARAM)
    options = [{"type": "array", "items": [{"const": n}]} for n in range(3000)]
    with pytest.raises(ApiError, match="may not exclude each other"):
        enforceable({"oneOf": options}, PARAM)


def test_callers_may_have_the_library_ignore_what_it_cannot_do(library: Library) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}
    check(library, grammar_of(schema | {"x-guidance": {"lenient": True}}), [[1, 1]], [["a"]])


def test_a_schema_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(ApiError, match="nested too deep"):
        enforceable(schema, PARAM)


A, B = ({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab")
NAMED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("parameters", "fitting", "others"),
    [
        ({}, [{}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": True}, [{"a": 1}], []),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{}, {"a": "x"}, {"a": 1, "c": 1}]),
        ({"type": "object", "allOf": [A, B]}, [{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
        (
            {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "discriminator": {"propertyName": "is"},
             "$defs": {name: {"type": "object", "properties": {"is": {"const": name}, name: True}} for name in "AB"}},
            [{"is": "A", "A": 1}, {"is": "B"}],
            [{}, {"is": "C"}, {"is": "A", "c": 1}],
        ),
        (NAMED | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "c": 1}]),
        (NAMED | {"minProperties": 1}, [{"a": 1}], [{}]),
        ({"type": "object", "anyOf": [A, {"type": "object", "additionalProperties": {"type": "null"}}]},
         [{"a": 1}, {"c": None}], []),
        ({"type": "object", "allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, [{"a": 1}], [{}, {"a": 1, "c": 1}]),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, [{"next": {"next": {}}}], [{"next": {"a": 1}}]),
        ({"type": "object", "propertyNames": {"enum": ["a"]}}, [{"a": 1}], [{"b": 1}]),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_a_function_takes_the_parameters_that_its_schema_names(
    library: Library, parameters: Any, fitting: list[Any], others: list[Any]
) -> None:
    check(library, grammar_of(argument_schema(tool(parameters))), fitting, others)


def test_parameters_come_in_the_order_of_the_schema(library: Library) -> None:
    schema = {"type": "object", "anyOf": [{"properties": {"a": True, "b": True}}], "properties": {"c": True}}
    check(library, grammar_of(argument_schema(tool(schema))), [{"a": 1, "b": 2, "c": 3}], [{"c": 3, "a": 1}])
