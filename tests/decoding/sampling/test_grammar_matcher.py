"""The state of a grammar follows a reply, back and forth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.sampling.grammar_builder import GrammarBuilder
from decoding.sampling.grammar_matcher import GrammarMatcher
from tests.asking import TOKENIZER, encode

VOCAB_SIZE, END = 2048, 3
BUILDER = GrammarBuilder(EngineConfig(), VOCAB_SIZE, frozenset({0, END}))
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
