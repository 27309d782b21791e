"""Revised trees are trees: siblings distinct, the forbidden gone, the forced put in, the budget kept."""

from __future__ import annotations

import json

import numpy as np

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.tree import DraftTree, Source, chain
from decoding.drafting.revision import Revision
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.matcher import GrammarMatcher
from tests.asking import encode

END = 3
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_set": {"type": "boolean"}},
    "required": ["name", "is_set"],
    "additionalProperties": False,
}
GRAMMAR = GrammarBuilder(EngineConfig(), 2048, frozenset({0, END})).build(Grammar("json_schema", json.dumps(SCHEMA)))


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    """Each node's tokens from below the root on."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parents[1:].tolist(), tree.tokens[1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return set(paths)


def test_a_chain_is_merged_where_it_is_known_and_put_in_where_it_is_not() -> None:
    proposed = chain(9, np.array([1, 2, 3], np.int32), Source.CONTEXT)
    revision = Revision(proposed)
    revision.force(0, [1, 2, 5, 6])
    revision.force(0, [1, 2, 5, 7])
    tree, own = revision.tree()
    tree.check_integrity()
    assert len(tree) == len(paths_of(tree)) == 7
    assert {(1, 2, 3), (1, 2, 5, 6), (1, 2, 5, 7)} <= paths_of(tree)
    assert tree.sources.tolist()[4:] == [Source.GRAMMAR] * 3
    np.testing.assert_array_equal(own.tokens, proposed.tokens)


def test_random_trees_lose_exactly_what_the_grammar_forbids() -> None:
    rng = np.random.default_rng(0)
    text = encode('{"name": "abc def", "is_set": false}').tolist()
    num_cut = num_kept = num_forced = 0
    for start in range(len(text)):
        state = GRAMMAR.new_matcher()
        assert all(state.try_consume(token) for token in text[:start])
        proposed = _random_tree(rng, text[start:])
        revision = Revision(proposed)
        revision.obey(state, budget=40)
        tree, own = revision.tree()
        tree.check_integrity()
        assert tree.num_drafted <= 40
        expected = {path for path in paths_of(proposed) if _is_allowed(state, path)}
        drafted = tree.sources != Source.GRAMMAR
        assert paths_of(own) == expected
        assert int(drafted.sum()) == len(own)
        assert all(_is_allowed(state, path) for path in paths_of(tree))
        assert own.origins is not None
        np.testing.assert_array_equal(proposed.tokens[own.origins], own.tokens)
        num_cut += len(proposed) - len(own)
        num_kept += len(own) - 1
        num_forced += int((~drafted).sum())
    assert min(num_cut, num_kept, num_forced) > 10


def _random_tree(rng: np.random.Generator, right: list[int]) -> DraftTree:
    """The right tokens with wrong ones beside and below them, and an end token here and there."""
    tokens, parents = [0], [-1]
    node = 0
    for token in right[:6]:
        for other in {*rng.integers(5, 2048, 2).tolist(), END} - {token}:
            tokens.append(other)
            parents.append(node)
            tokens.append(int(rng.integers(5, 2048)))
            parents.append(len(tokens) - 2)
        tokens.append(token)
        parents.append(node)
        node = len(tokens) - 1
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(len(tokens), np.int8))


def _is_allowed(state: GrammarMatcher, path: tuple[int, ...]) -> bool:
    consumed = 0
    is_allowed = True
    for place, token in enumerate(path):
        if state.try_consume(token):
            consumed += 1
        else:
            is_allowed = state.may_end_with(token) and place == len(path) - 1
            break
    state.rollback(consumed) if consumed else None
    return is_allowed


def test_forced_tokens_stay_within_the_budget() -> None:
    proposed = chain(9, np.array([], np.int32), Source.CONTEXT)
    for budget in (0, 1, 3):
        revision = Revision(proposed)
        revision.obey(GRAMMAR.new_matcher(), budget)
        tree, _ = revision.tree()
        assert tree.num_drafted == budget
