"""Asserts change nothing, so that `python -O` is the same program without its checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = frozenset(["all", "any", "int", "isinstance", "len", "list", "sorted", "set", "sum", "type"])
PURE_METHODS = frozenset(["all", "any", "get_error", "max", "min", "ravel", "sum", "tolist"])
NO_CALLS = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


def impure_parts(assertion: ast.Assert) -> list[str]:
    """What an assert runs that may change something: calls but of names known to change nothing."""
    calls = [node for node in ast.walk(assertion) if isinstance(node, ast.Call) and not _is_pure(node.func)]
    others = [node for node in ast.walk(assertion) if isinstance(node, NO_CALLS)]
    return [ast.unparse(node) for node in (*calls, *others)]


def _is_pure(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in PURE
    if not isinstance(called, ast.Attribute):
        return False
    is_numpys = isinstance(called.value, ast.Name) and called.value.id == "np"
    return is_numpys or called.attr in PURE_METHODS


@pytest.mark.parametrize("folder", ["decoding", "server"])
def test_no_assert_changes_anything(folder: str) -> None:
    num_seen = 0
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                num_seen += 1
                assert impure_parts(node) == [], f"{path}:{node.lineno}"
    assert num_seen > 0


@pytest.mark.parametrize(
    "statement",
    [
        "assert self._running.pop(sequence.id) is sequence, sequence",
        "assert self._matcher.rollback(3), self._matcher.get_error()",
        "assert (found := 3) == 3",
        "assert functions[0]()",
    ],
)
def test_a_side_effect_in_an_assert_is_seen(statement: str) -> None:
    (assertion,) = ast.parse(statement).body
    assert isinstance(assertion, ast.Assert)
    assert len(impure_parts(assertion)) == 1
