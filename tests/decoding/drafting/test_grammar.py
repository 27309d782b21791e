"""What a grammar makes of trees are trees: siblings distinct, the forbidden out, the forced in, the budget kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Draws, IntArray, Source, Verdict, chain, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import FixedBudgetDrafter
from decoding.drafting.grammar import TreeGrammar
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.matcher import GrammarMatcher
from tests.asking import encode
from tests.decoding.drafting.one_tree.growing import paths_of, request_of

END = 3
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_set": {"type": "boolean"}},
    "required": ["name", "is_set"],
    "additionalProperties": False,
}
GRAMMAR = GrammarBuilder(EngineConfig(), 2048, frozenset({0, END})).build(Grammar("json_schema", json.dumps(SCHEMA)))
TEXT = encode('{"name": "abc def", "is_set": false}').tolist()
FORCED = GRAMMAR.new_matcher().forced()


class Watched(GrammarMatcher):
    """Counts its copies. is_fragile: whether these break at once."""

    num_copies, is_fragile = 0, False

    def copy(self) -> GrammarMatcher:
        self.num_copies += 1
        return Broken(self._matcher, self._grammar) if self.is_fragile else super().copy()


class Broken(GrammarMatcher):
    def forced(self) -> list[int]:
        raise BrokenGrammar("")

    def try_consume(self, token: int) -> bool:
        raise BrokenGrammar(str(token))


class Recorder(FixedBudgetDrafter):
    """A drafter that keeps what it is shown."""

    num_top = 1

    def propose(self, budget: DraftBudget) -> DraftTree:
        raise AssertionError(budget)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        assert top is not None
        self.after = (start, top.ids[:, 0].tolist())

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        self.tree, self.verdict, self.top = tree, verdict, top


def grammar_after(num_said: int = 0, **speculation: object) -> tuple[TreeGrammar, Request, Watched]:
    """Of a request whose reply is so many of the text's tokens."""
    matcher, request = Watched(GRAMMAR.new_matcher()._matcher, GRAMMAR), request_of([1], **speculation)
    for token in TEXT[:num_said]:
        matcher.consume(token)
    request.extend(np.array(TEXT[:num_said], np.int32))
    return TreeGrammar(request, matcher), request, matcher


def path_to(tree: DraftTree, tokens: list[int]) -> IntArray:
    """The nodes of a path, the root's included."""
    nodes = [0]
    for token in tokens:
        nodes.append(int(np.flatnonzero((tree.parents == nodes[-1]) & (tree.tokens == token))[0]))
    return np.array(nodes, np.int32)


def tops_of(tree: DraftTree) -> TopTokens:
    """That tell each row by its number."""
    return TopTokens(np.arange(len(tree), dtype=np.int32)[:, None], np.ones((len(tree), 1), np.float32))


@pytest.mark.parametrize(("max_nodes", "num_added"), [(16, 3), (3, 2), (1, 0), (0, 0)])
def test_what_is_forced_goes_on_from_a_leaf_while_the_budget_lasts(max_nodes: int, num_added: int) -> None:
    proposed = chain(1, np.array(FORCED[:1], np.int32), Source.CONTEXT)
    tree = grammar_after()[0].revise(proposed, DraftBudget(max_nodes))
    tree.check_integrity()
    assert paths_of(tree) == [tuple(FORCED[:depth]) for depth in range(1, 2 + num_added)]
    assert tree.sources.tolist() == proposed.sources.tolist() + [Source.GRAMMAR] * num_added


@pytest.mark.parametrize("own", [True, False])
def test_what_is_forced_is_no_longer_than_the_reply_may_be_and_the_request_asks_for(*, own: bool) -> None:
    proposed = chain(1, np.array(FORCED[:1], np.int32), Source.CONTEXT)
    grammar = grammar_after(max_depth=2)[0] if own else grammar_after()[0]
    tree = grammar.revise(proposed, DraftBudget(16) if own else DraftBudget(16, max_depth=2))
    assert paths_of(tree) == [tuple(FORCED[:1]), tuple(FORCED[:2])]


@pytest.mark.parametrize(("most", "num_nodes"), [(9, 3), (6, 2), (3, 1), (2, 0)])
def test_before_a_long_forced_text_trees_are_small(monkeypatch: pytest.MonkeyPatch, most: int, num_nodes: int) -> None:
    monkeypatch.setattr("decoding.drafting.grammar.MOST_AHEAD", most)
    proposed = chain(1, np.array(FORCED[:1], np.int32), Source.CONTEXT)
    tree = grammar_after()[0].revise(proposed, DraftBudget(16))
    tree.check_integrity()
    assert len(FORCED) == 4
    assert paths_of(tree) == [tuple(FORCED[:depth]) for depth in range(1, 1 + num_nodes)]


def test_random_trees_lose_exactly_what_the_grammar_forbids() -> None:
    rng = np.random.default_rng(0)
    num_cut = num_kept = num_forced = 0
    for start in range(len(TEXT)):
        grammar, _, matcher = grammar_after(start)
        forced, proposed = grammar.forced(), _random_tree(rng, TEXT[start : start + start % 7])
        tree = grammar.revise(proposed, DraftBudget(60))
        tree.check_integrity()
        assert tree.num_drafted <= 60
        expected = [path for path in paths_of(proposed) if _is_allowed(matcher, path)]
        added = paths_of(tree)[len(expected) :]
        assert paths_of(tree)[: len(expected)] == expected
        assert all(_is_forced(matcher, path) for path in added)
        assert not forced or tuple(forced[:1]) in paths_of(tree)
        recorder = Recorder(request_of([1]))
        grammar.show(recorder, Verdict(np.zeros(1, np.int32), tree.tokens[:1]), None)
        assert paths_of(recorder.tree) == expected
        nodes = np.arange(len(proposed), dtype=np.int32)
        np.testing.assert_array_equal(proposed.tokens[recorder.tree.of_nodes(nodes)], recorder.tree.tokens)
        num_cut += len(proposed) - 1 - len(expected)
        num_kept += len(expected)
        num_forced += len(tree) - len(recorder.tree)
    assert min(num_cut, num_kept, num_forced) > 10


def _random_tree(rng: np.random.Generator, right: list[int]) -> DraftTree:
    """The right tokens with wrong ones beside and below them, and an end token here and there."""
    tokens, parents = [0], [-1]
    node = 0
    for token in right:
        for other in {*rng.integers(5, 2048, 2).tolist(), END} - {token}:
            tokens.append(other)
            parents.append(node)
            tokens.append(int(rng.integers(5, 2048)))
            parents.append(len(tokens) - 2)
        tokens.append(token)
        parents.append(node)
        node = len(tokens) - 1
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(len(tokens), np.int8))


def _is_allowed(matcher: GrammarMatcher, path: tuple[int, ...]) -> bool:
    ahead = matcher.copy()
    for place, token in enumerate(path):
        if not ahead.try_consume(token):
            return ahead.may_end_with(token) and place == len(path) - 1
    return True


def _is_forced(matcher: GrammarMatcher, path: tuple[int, ...]) -> bool:
    ahead = matcher.copy()
    return all(ahead.try_consume(token) for token in path[:-1]) and ahead.forced()[:1] == [path[-1]]


def test_the_grower_and_the_pruning_share_one_copy_a_step() -> None:
    grammar, request, matcher = grammar_after()
    for step in range(3):
        first = grammar.forced()
        assert (first == FORCED) == (step == 0)
        grammar.revise(chain(1, np.array(TEXT[step : step + 3], np.int32), Source.CONTEXT), DraftBudget(8))
        assert grammar.forced() == first
        assert matcher.num_copies == step + 1
        matcher.consume(TEXT[step])
        request.extend(np.array(TEXT[step : step + 1], np.int32))


def test_the_method_is_shown_its_own_part_and_the_rest_of_the_path_as_text() -> None:
    grammar, request, _ = grammar_after()
    proposed = chain(1, np.array([*FORCED[:1], 999], np.int32), Source.CONTEXT)
    tree = grammar.revise(proposed, DraftBudget(16))
    assert paths_of(tree) == [tuple(FORCED[:depth]) for depth in range(1, len(FORCED) + 1)]
    path, recorder = path_to(tree, FORCED[:3]), Recorder(request_of([1]))
    verdict = Verdict(path, np.append(tree.tokens[path[1:]], np.int32(FORCED[3])))
    request.extend(verdict.tokens)
    grammar.show(recorder, verdict, tops_of(tree))
    assert recorder.tree.tokens.tolist() == [1, FORCED[0]]
    assert recorder.verdict.path.tolist() == [0, 1]
    assert recorder.verdict.tokens.tolist() == FORCED[:2]
    assert recorder.top is not None
    assert recorder.top.ids[:, 0].tolist() == [0, 1]
    assert recorder.after == (2, path[2:].tolist())


def test_a_plain_step_is_shown_as_one() -> None:
    grammar, request, _ = grammar_after()
    grammar.revise(chain(1, np.array(FORCED, np.int32), Source.CONTEXT), DraftBudget(16))
    request.extend(np.array(FORCED[:1], np.int32))
    plain, recorder = root_only(FORCED[0]), Recorder(request_of([1]))
    assert grammar.revise(plain, DraftBudget(0)) is plain
    grammar.show(recorder, Verdict(np.zeros(1, np.int32), plain.tokens), tops_of(plain))
    assert recorder.tree is plain


def test_who_may_not_draft_from_the_grammar_is_kept_to_it_all_the_same() -> None:
    grammar, _, _ = grammar_after(sources=["context"])
    tree = grammar.revise(chain(1, np.array([*FORCED[:2], 999], np.int32), Source.CONTEXT), DraftBudget(16))
    assert tree.tokens.tolist() == [1, *FORCED[:2]]


def test_a_tree_that_is_verified_by_rejection_stays() -> None:
    grammar, _, _ = grammar_after()
    tree = chain(1, np.array([999], np.int32), Source.NGRAM)
    tree = replace(tree, draws=Draws(np.array([[999], [0]], np.int32), np.array([[1.0], [0.0]])))
    assert grammar.revise(tree, DraftBudget(16)) is tree


def test_a_grammar_that_breaks_ahead_leaves_the_tree_as_it_is() -> None:
    grammar, _, matcher = grammar_after()
    matcher.is_fragile = True
    tree = chain(1, np.array([999], np.int32), Source.CONTEXT)
    assert grammar.forced() == []
    assert grammar.revise(tree, DraftBudget(16)) is tree
