"""The state of a grammar follows a reply, back and forth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import BrokenGrammar
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.matcher import GrammarMatcher
from tests.asking import TOKENIZER, encode

VOCAB_SIZE, END = 2048, 3
BUILDER = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({0, END}))
MANY = Grammar("lark", 'start: secret{1000000}\nsecret: "x"')
PAIR = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_set": {"type": "boolean"}},
    "required": ["name", "is_set"],
    "additionalProperties": False,
}


def allowed(matcher: GrammarMatcher) -> set[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:VOCAB_SIZE]).tolist())


def start(grammar: Grammar) -> GrammarMatcher:
    return BUILDER.build(grammar).new_matcher()


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the text may be a whole reply."""
    state = start(grammar)
    return all(state.try_consume(token) for token in encode(text).tolist()) and state.may_end_with(END)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar("json_object", ""), '{"a": [1, {"b": null}]}', "[1]"),
        (Grammar("json_schema", json.dumps(PAIR)), '{"name": "x", "is_set": true}', '{"name": 1, "is_set": true}'),
        (Grammar("regex", "[ab]{2}c?"), "abc", "abd"),
        (Grammar("choice", '["yes", "no \\"x\\"\\n", "é/\\\\"]'), 'no "x"\n', "no"),
        (Grammar("choice", '["yes", "no \\"x\\"\\n", "é/\\\\"]'), "é/\\", "é"),
        (Grammar("lark", 'start: "a" NUMBER\nNUMBER: /[0-9]+/'), "a42", "a"),
    ],
)
def test_each_kind_accepts_its_texts_and_no_other(grammar: Grammar, good: str, bad: str) -> None:
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


def test_the_end_token_is_allowed_where_the_grammar_accepts_alone() -> None:
    state = start(Grammar("regex", "ab?"))
    assert END not in allowed(state)
    assert state.try_consume(int(encode("a")[0]))
    assert allowed(state) == {0, END, int(encode("b")[0])}
    state.consume(int(encode("b")[0]))
    assert allowed(state) == {0, END}
    state.consume(END)
    assert state.may_end_with(END)


def test_rollback_gives_the_state_before() -> None:
    state = start(Grammar("json_schema", json.dumps(PAIR)))
    masks = [allowed(state)]
    tokens = encode('{"name": "ab", "is_set": true}').tolist()
    for token in tokens:
        assert token in masks[-1]
        assert state.try_consume(token)
        masks.append(allowed(state))
    for mask in reversed(masks[:-1]):
        state.rollback(1)
        assert allowed(state) == mask


def test_what_the_schema_fixes_is_forced() -> None:
    state = start(Grammar("json_schema", json.dumps(PAIR)))
    forced = state.forced()
    assert TOKENIZER.decode(forced).startswith('{"name":')
    for token in forced:
        assert state.try_consume(token)


def test_a_vocabulary_larger_than_the_tokenizers_has_masks_of_its_size() -> None:
    padded = GrammarBuilder(EngineConfig(model=str(BUNDLED_FOLDER)), VOCAB_SIZE + 100, frozenset({END}))
    mask = padded.build(Grammar("regex", "[a-c]+")).new_matcher().mask()
    assert 32 * len(mask) >= VOCAB_SIZE + 100
    assert not np.unpackbits(mask.view(np.uint8), bitorder="little")[VOCAB_SIZE : VOCAB_SIZE + 100].any()


def test_the_matchers_of_one_grammar_know_nothing_of_each_other() -> None:
    compiled = BUILDER.build(Grammar("regex", "ab?"))
    first, second = compiled.new_matcher(), compiled.new_matcher()
    before = allowed(second)
    assert first.try_consume(int(encode("a")[0]))
    assert first.may_end_with(END)
    assert not second.may_end_with(END)
    assert allowed(second) == allowed(compiled.new_matcher()) == before


def run_on(matcher: GrammarMatcher, text: str) -> None:
    """Draw the same token again and again, as often as any limit can need."""
    for _ in range(2000):
        matcher.mask()
        matcher.consume(int(encode(text)[0]))


def test_a_reply_beyond_llguidances_limits_breaks_its_matcher_alone_and_spends_the_grammar() -> None:
    compiled = BUILDER.build(MANY)
    matcher = compiled.new_matcher()
    ahead = matcher.copy()
    with pytest.raises(BrokenGrammar, match=r"cannot be followed any further: .*Too many items"):
        run_on(ahead, "x")
    assert compiled.is_spent
    for act in (ahead.mask, ahead.forced, lambda: ahead.rollback(1), lambda: ahead.try_consume(5)):
        with pytest.raises(BrokenGrammar):
            act()
    assert int(encode("x")[0]) in allowed(matcher)


def test_what_is_said_of_a_broken_grammar_quotes_neither_it_nor_the_reply() -> None:
    with pytest.raises(BrokenGrammar) as caught:
        run_on(start(MANY), "x")
    assert not [quoted for quoted in ("secret", "⟦", "\n") if quoted in str(caught.value)]


def test_a_token_that_the_grammar_forbids_breaks_the_matcher() -> None:
    with pytest.raises(BrokenGrammar):
        start(Grammar("regex", "a")).consume(int(encode("b")[0]))


@pytest.mark.parametrize("rule", ["e e", "e e e"])
def test_an_ambiguous_grammar_breaks_before_its_masks_take_long(rule: str) -> None:
    with pytest.raises(BrokenGrammar, match="items; max is 1000"):
        run_on(start(Grammar("lark", f'start: e\ne: {rule} | "x"')), "x")
