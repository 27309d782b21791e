"""What differs between drafters is a member of their protocol: nobody asks which one it is."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import decoding
from decoding.core.request import Request
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import Drafter, FixedBudgetDrafter
from decoding.drafting.registry import METHODS
from decoding.drafting.sources import Sources
from tests.decoding.drafting.one_tree.growing import drafter_of, new_session, request_of

ROOT = Path(decoding.__file__).parent
MEMBERS = {name for name in vars(Drafter) if not name.startswith("_")}
CLASS_MEMBERS = MEMBERS - {"weighs_harvest"}  # which may be set by each object for itself


def drafters() -> set[type]:
    """The classes of `decoding.drafting` that are drafters."""
    found: set[type] = {Drafter}
    for path in ROOT.joinpath("drafting").rglob("*.py"):
        module = importlib.import_module(".".join(("decoding", *path.relative_to(ROOT).with_suffix("").parts)))
        classes = [each for _, each in inspect.getmembers(module, inspect.isclass)]
        found |= {
            each for each in classes if issubclass(each, FixedBudgetDrafter) or vars(each).keys() >= CLASS_MEMBERS
        }
    return found


def asked_for(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names of classes by which a module tells objects apart, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            if node.func.id in ("isinstance", "issubclass"):
                yield from _names(node.args[1])
        elif isinstance(node, ast.MatchClass):
            yield from _names(node.cls)


def _names(expression: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr


def test_nobody_asks_which_drafter_it_is() -> None:
    names = {each.__name__ for each in drafters()}
    assert names >= {"Drafter", "OneTree", "FixedBudgetDrafter", "HarvestingDrafter", "NoDrafter", "ModelDrafter"}
    asked = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name in asked_for(ast.parse(path.read_text(encoding="utf-8")))
        if name in names
    ]
    assert asked == []


def test_such_a_question_would_be_found() -> None:
    text = "isinstance(a, one_tree.OneTree | B)\nissubclass(c, (D, E))\nmatch f:\n    case G(): pass"
    assert {name for _, name in asked_for(ast.parse(text))} == {"OneTree", "one_tree", "B", "D", "E", "G"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_all_that_the_protocol_says(method: str) -> None:
    request, session = request_of([1, 2, 3], method=method), new_session()
    state = drafter_of(session, request, has_model=True)._state
    drafter = METHODS[method].start(request, Sources(session, state))
    assert set(dir(drafter)) >= MEMBERS
    assert 0.0 <= drafter.hit_rate <= 1.0
    assert 0.0 <= drafter.probe() <= 1.0


class Echo(FixedBudgetDrafter):
    """Drafts the last token again."""

    def propose(self, budget: DraftBudget) -> DraftTree:  # noqa: ARG002
        return root_only(int(self._request.tokens[-1]))


def test_a_method_of_a_fixed_budget_has_but_to_propose() -> None:
    request: Request = request_of([1, 2, 3])
    drafter: Drafter = Echo(request)
    assert set(dir(drafter)) >= MEMBERS
    for _ in range(3):
        assert drafter.is_awake
        assert drafter.probe() == 1.0
        tree = drafter.propose(DraftBudget(4))
        drafter.observe_prefill(0, None)
        drafter.observe(tree, Verdict(np.zeros(1, np.int32), tree.tokens), None)
    assert drafter.num_top == 0
    assert drafter.finish() == {}
