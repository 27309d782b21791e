"""Which schemas are shown to have no value in common."""

from typing import Any

import jsonschema
import pytest

from server.grammars.disjoint import are_all_disjoint, target_of

DOT: Any = {"type": "object", "properties": {"is": {"const": "dot"}}, "required": ["is"]}
BAR: Any = {"type": "object", "properties": {"is": {"enum": ["bar", "rod"]}}}
ROOT: Any = {
    "$defs": {"dot": DOT, "bar": BAR, "again": {"allOf": [{"$ref": "#/$defs/bar"}]}, "a/b %": {"type": "null"}}
}
NODE: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schemas", "beside"),
    [
        ([{"type": "string"}, {"type": ["integer", "null"]}, {"enum": [True]}], {}),
        ([{"const": 1}, {"const": 2}, {"const": "1"}, {"enum": [True, False, None]}], {}),
        ([{"type": "number"}, {"enum": ["a", None]}], {}),
        ([{"$ref": "#/$defs/dot"}, {"$ref": "#/$defs/again"}, {"$ref": "#/$defs/a~1b%20%25"}], {}),
        ([{"anyOf": [DOT, {"type": "null"}]}, {"oneOf": [BAR, {"type": "string"}]}], {}),
        (
            [{"properties": {"is": {"const": 1}}}, {"properties": {"is": {"const": 2}}}],
            {"type": "object", "required": ["is"]},
        ),
        ([True, False], {}),
        ([{"type": "object", "properties": {"is": {"const": n}}, "required": ["a", "is"]} for n in range(1000)], {}),
        ([{}], {}),
    ],
)
def test_schemas_without_a_common_value_are_found(schemas: Any, beside: Any) -> None:
    assert are_all_disjoint(ROOT, schemas, beside)


@pytest.mark.parametrize(
    ("schemas", "beside"),
    [
        ([{"type": "integer"}, {"type": "number"}], {}),
        ([{"const": 1}, {"type": "integer"}], {}),
        ([{"const": [1]}, {"const": [2]}], {}),
        ([{"properties": {"is": {"const": 1}}}, {"properties": {"is": {"const": 2}}}], {}),
        ([{"properties": {"is": {"const": 1}}}, {"properties": {"is": {"const": 2}}}], {"required": ["is"]}),
        ([{"properties": {"is": {"const": 1}}}, {"properties": {"is": {"const": 2}}}], {"type": "object"}),
        ([{"$ref": "#/$defs/none"}, {"$ref": "#/$defs/dot"}], {}),
        ([{"type": 3, "required": 4, "properties": 5, "enum": 6, "anyOf": 7}, {"required": [[]], "allOf": [3]}], {}),
    ],
)
def test_what_is_not_shown_counts_as_common(schemas: Any, beside: Any) -> None:
    assert not are_all_disjoint(ROOT, schemas, beside)


def test_the_work_is_bounded() -> None:
    assert not are_all_disjoint(NODE, [NODE, {**NODE}], {})
    wide = {"anyOf": [{"anyOf": [{"anyOf": [{"minimum": n} for n in range(30)]}] * 30}] * 30}
    assert not are_all_disjoint({}, [wide, {**wide}], {})


def test_pointers_lead_where_they_point() -> None:
    root: Any = {"a/b~": [{"%": 1}]}
    assert target_of(root, "#/a~1b~0/0/%25") == 1
    assert target_of(root, "#") is root
    assert [target_of(root, each) for each in ("#/x", "#/a~1b~0/1", "#x", "x", None, "#/a~1b~0/-1")] == [None] * 6


def test_a_proof_holds_for_every_value() -> None:
    values: list[Any] = [None, True, 1, 1.5, "dot", [], {}, {"is": "dot"}, {"is": "bar"}, {"is": 1}]
    schemas = [
        DOT,
        BAR,
        {"type": "integer"},
        {"enum": [1, None]},
        {"const": True},
        {"required": ["is"]},
        {},
        {"type": "array"},
    ]
    for one in schemas:
        for other in schemas:
            common = [
                value
                for value in values
                if all(jsonschema.Draft202012Validator(each).is_valid(value) for each in (one, other))
            ]
            assert not (are_all_disjoint({}, [one, other], {}) and common)
