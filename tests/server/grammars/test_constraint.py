"""Schemas of calls' arguments."""

from typing import Any

from server.grammars.argument_schema import argument_schema
from server.http.body import depth_of
from server.schemas.tools import Tool


def tool(name: str, parameters: dict[str, Any]) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})


def test_a_function_takes_only_the_parameters_it_names_unless_it_says_so() -> None:
    assert argument_schema(tool("f", {})) == {"additionalProperties": False, "type": "object"}
    open_schema = {"type": "object", "additionalProperties": True}
    assert argument_schema(tool("f", open_schema)) == open_schema


def test_depth_counts_lists_and_objects() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = [deep]
    assert (depth_of(3), depth_of({}), depth_of({"a": [1, {"b": 2}]}), depth_of(deep)) == (0, 1, 3, 5001)
