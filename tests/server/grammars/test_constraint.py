"""Schemas of forced calls, checked by a JSON schema library."""

from typing import Any

import jsonschema
import pytest

from server.config import ServerSettings
from server.grammars.call_grammar import required_calls_schema
from server.grammars.schema import argument_schema
from server.http.body import depth_of
from server.schemas.tools import FunctionDefinition, Tool


def tool(name: str, parameters: dict[str, Any]) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})


CITY = tool(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "near": {"type": "array", "items": {"$ref": "#/$defs/City"}}},
        "required": ["city"],
        "$defs": {"City": {"type": "object", "properties": {"in": {"$ref": "#/$defs/Land"}}}, "Land": {"enum": ["it"]}},
    },
)
OTHER = tool(
    "other", {"properties": {"x": {"$ref": "#/definitions/City"}}, "definitions": {"City": {"type": "number"}}}
)


@pytest.mark.parametrize(
    ("calls", "is_valid"),
    [
        ([{"name": "weather", "parameters": {"city": {"in": "it"}}}], True),
        ([{"name": "weather", "parameters": {"city": {"in": "fr"}}}], False),
        ([{"name": "weather", "parameters": {"city": 3}}], False),
        ([{"name": "other", "parameters": {"x": 3}}], True),
        ([{"name": "other", "parameters": {"x": {"in": "it"}}}], False),
        ([{"name": "other", "parameters": {"y": 3}}], False),
        ([{"name": "third", "parameters": {}}], False),
        ([{"name": "other", "parameters": {}}] * 2, True),
        ([], False),
    ],
    ids=str,
)
def test_definitions_of_several_tools_do_not_mix(calls: Any, is_valid: bool) -> None:
    schema = required_calls_schema([CITY, OTHER], None, ServerSettings())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(calls) == is_valid
    at_most_one = required_calls_schema([CITY, OTHER], 1, ServerSettings())
    assert jsonschema.Draft202012Validator(at_most_one).is_valid(calls) == (is_valid and len(calls) == 1)


def test_a_function_takes_only_the_parameters_it_names_unless_it_says_so() -> None:
    assert argument_schema(tool("f", {})) == {"additionalProperties": False, "type": "object"}
    open_schema = {"type": "object", "additionalProperties": True}
    assert argument_schema(tool("f", open_schema)) == open_schema


def test_depth_counts_lists_and_objects() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = [deep]
    assert (depth_of(3), depth_of({}), depth_of({"a": [1, {"b": 2}]}), depth_of(deep)) == (0, 1, 3, 5001)


def test_every_way_to_point_at_a_definition_is_followed() -> None:
    names = ["plain", "a/b", "c~d", "é"]
    pointers = ["plain", "a~1b", "c~0d", "é"]
    properties: dict[str, Any] = {
        f"{keyword}{number}": {"$ref": f"#/{keyword}/{pointer}/properties/x"}
        for keyword in ("$defs", "definitions")
        for number, pointer in enumerate(pointers)
    }
    definition = {"type": "object", "properties": {"x": {"type": "integer"}}}
    unknown = {"here": {"$ref": "#"}, "gone": {"$ref": "#/$defs/gone"}, "other": {"$ref": "#/properties/plain"}}
    parameters = {
        "type": "object",
        "properties": properties | unknown,
        "$defs": dict.fromkeys(names, definition),
        "definitions": dict.fromkeys(names, definition),
    }
    function = FunctionDefinition.model_validate({"name": "f", "parameters": parameters})
    schema = required_calls_schema([Tool(type="function", function=function)], None, ServerSettings())
    assert set(schema["$defs"]) == {f"tool0_{name}" for name in names}
    written = schema["items"]["anyOf"][0]["properties"]["parameters"]["properties"]
    for keyword in ("$defs", "definitions"):
        for number, pointer in enumerate(pointers):
            assert written[f"{keyword}{number}"] == {"$ref": f"#/$defs/tool0_{pointer}/properties/x"}
    assert {name: written[name] for name in unknown} == unknown
