"""What schemas let through of arguments, in one family of each way to write them."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.sampling.grammar.source import matcher_of
from server.http.errors import ApiError
from tests.server.grammars.call_texts import Piece
from tests.server.grammars.test_call_grammar import (
    FAMILIES,
    REQUIRED,
    Model,
    constraint_of,
    format_of,
    model,
    pieces_of,
)

__all__ = ["model"]
WAYS = {"json": "hermes", "raw": "qwen3_coder", "marked": "glm4", "python": "lfm2", "loose": "gemma4"}
OTHERS = [name for way, name in WAYS.items() if way != "json"]


def verdicts(model: Model, name: str, parameters: Any, *arguments: Any, is_strict: bool = False) -> list[bool]:
    """Whether calls with these arguments are whole replies."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": is_strict}}]
    constraint = constraint_of(model, REQUIRED | {"tools": tools}, format_of(name))
    return [model.read(constraint, pieces_of(name, ("f", each))) == "whole" for each in arguments]


def of(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("parameters", "fits", "does_not"),
    [
        (of(a={"type": "integer"}, next={"$ref": "#"}), {"next": {"next": {"a": 1}}}, {"next": {"next": {"a": "x"}}}),
        (
            of(
                **{
                    "from": {"type": "object", "properties": {"n": {"type": "integer"}}},
                    "to": {"$ref": "#/properties/from"},
                }
            ),
            {"to": {"n": 1}},
            {"to": {"n": "x"}},
        ),
        (
            of(a={"$ref": "#/$defs/x%20y"}) | {"$defs": {"x y": {"type": "integer"}}},
            {"a": 1},
            {"a": True},
        ),
        (
            of(a={"$ref": "#/definitions/x~1y"}) | {"definitions": {"x/y": {"type": "integer"}}},
            {"a": 1},
            {"a": True},
        ),
        (
            of(a={"$ref": "#here"}) | {"$defs": {"x": {"$anchor": "here", "type": "integer"}}},
            {"a": 1},
            {"a": True},
        ),
        (
            of(a={"$ref": "https://a.b/c#/$defs/x"}) | {"$id": "https://a.b/c", "$defs": {"x": {"type": "integer"}}},
            {"a": 1},
            {"a": True},
        ),
        (
            of(a={"type": "array", "items": {"$ref": "#/$defs/x"}})
            | {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "null"}}},
            {"a": [None]},
            {"a": [1]},
        ),
    ],
    ids=["root", "property", "percent", "tilde", "anchor", "id", "definition"],
)
def test_references_are_followed_in_every_family(
    model: Model, name: str, parameters: Any, fits: Any, does_not: Any
) -> None:
    assert verdicts(model, name, parameters, fits, does_not) == [True, False]


@pytest.mark.parametrize("name", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("parameters", "fits", "does_not"),
    [
        (of(a={"type": "string", "pattern": "^[a-c]+/?$"}), [{"a": "abc/"}, {"a": "a"}], [{"a": "x"}, {"a": ""}]),
        (of(a={"type": "string", "pattern": "b|^c"}), [{"a": "abc"}, {"a": "cd"}], [{"a": "acd"}]),
        (
            of(a={"type": "string", "minLength": 2, "maxLength": 3}),
            [{"a": "éé"}, {"a": "abc"}],
            [{"a": "a"}, {"a": "abcd"}],
        ),
        (of(a={"const": "x y"}), [{"a": "x y"}], [{"a": "x"}]),
        (
            of(a={"enum": ["a", 1, None, True, ["b"], {"c": "d"}]}),
            [{"a": "a"}, {"a": 1}, {"a": None}, {"a": True}, {"a": ["b"]}, {"a": {"c": "d"}}],
            [{"a": "b"}, {"a": 2}, {"a": False}],
        ),
        (of(a={"type": ["integer", "null"]}), [{"a": 1}, {"a": None}], [{"a": True}, {"a": "x"}]),
        (
            of(a={"anyOf": [{"enum": ["x"]}, {"type": "integer", "minimum": 5}]}),
            [{"a": "x"}, {"a": 7}],
            [{"a": "y"}, {"a": 3}],
        ),
        (
            of(a={"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}),
            [{"a": [True]}, {"a": [True, False]}],
            [{"a": []}, {"a": [True] * 3}, {"a": [1]}],
        ),
        (of(a={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}), [{"a": 4}], [{"a": 2}, {"a": 6}]),
        (
            of(a={"type": "integer"}) | {"additionalProperties": {"type": "integer"}},
            [{"a": 1, "ab": 2, "c": 3}, {"c": 1}, {}],
            [{"c": "x"}],
        ),
        (
            of(a={"type": "integer"}) | {"additionalProperties": True},
            [{"a": 1, "b": {"c": [None, "d"]}}],
            [{"a": "x", "b": 1}],
        ),
        (
            of(a={"type": "integer"}, b={"type": "integer"}) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
            [{}],
        ),
        (
            {"allOf": [of(a={"type": "integer"}), of(b={"type": "null"}) | {"required": ["b"]}], "type": "object"},
            [{"a": 1, "b": None}, {"b": None}],
            [{"a": 1}],
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": of(a={"type": "integer"}) | {"additionalProperties": False}}},
            [{"a": 1}, {}],
            [{"b": 1}],
        ),
        (of(a={}), [{"a": 1}, {"a": "x"}, {"a": [{"b": None}]}], []),
        ({}, [{}], [{"a": 1}]),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, dict) else "",
)
def test_schemas_are_kept_to(model: Model, name: str, parameters: Any, fits: Any, does_not: Any) -> None:
    assert verdicts(model, name, parameters, *fits, *does_not) == [True] * len(fits) + [False] * len(does_not)


def test_a_keyword_stands_before_each_of_its_values(model: Model) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": of(a={"type": "boolean"})}}]
    constraint = constraint_of(model, REQUIRED | {"tools": tools}, format_of("pythonic"))
    verdict = [model.read(constraint, [Piece(text)]) for text in ("[f(a=False)]", "[f(a=True)]", "[f(False)]")]
    assert verdict == ["whole", "whole", "refused"]


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_format_cannot_keep_to_is_refused_where_the_tool_is_strict_and_else_told(
    model: Model, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("server.grammars.chat_constraint.tell", told.append)
    for parameters, match in (
        (of(a={"type": "integer"}) | {"patternProperties": {"^x": {"type": "integer"}}}, "'f' has patternProperties"),
        (of(a={"type": "object", "$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/A"}}}, "refers to itself"),
    ):
        with pytest.raises(ApiError, match=match) as caught:
            verdicts(model, name, parameters, is_strict=True)
        assert caught.value.code == "invalid_schema"
        assert verdicts(model, name, parameters, {"b": "any"}) == [True]
        assert told.pop().startswith("The schema of the tool 'f' ")


@pytest.mark.parametrize("name", WAYS.values(), ids=WAYS)
def test_fifty_tools_of_twenty_properties_stay_within_the_limits(model: Model, name: str) -> None:
    kinds: list[Any] = [
        {"type": "string", "description": "What this is for. " * 20},
        {"type": "string", "maxLength": 2000},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["a", "b"]},
        {"type": "array", "items": {"type": "string"}},
    ]
    values: list[Any] = ["some\n text", "x" * 50, None, "b", ["c"]]
    names = [[f"property_{tool}_{place}" for place in range(20)] for tool in range(50)]
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{tool}",
                "parameters": of(**{each: kinds[place % 5] for place, each in enumerate(names[tool])}),
            },
        }
        for tool in range(50)
    ]
    constraint = constraint_of(model, REQUIRED | {"tools": tools}, format_of(name))
    matcher = matcher_of(constraint.grammar, model.ll_tokenizer)
    arguments = {each: values[place % 5] for place, each in enumerate(names[49])}
    for token in model.encode(pieces_of(name, ("tool_49", arguments))):
        matcher.compute_bitmask()
        assert matcher.try_consume_tokens([token]) == 1, matcher.get_error()
    assert matcher.is_accepting()
