"""Converts a caller's grammar to llguidance's form and sets llguidance's limits, the same in a trial and in use.

Knows no process. Cheap to import (llguidance is imported on use), since the trial process imports it.
Invariant: a grammar that compiles in a trial compiles again with the same result.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected

MAX_GRAMMAR_CHARS = 2**18
# Only one way to write JSON, so that all text but the values is forced and costs no forward. A schema's "x-guidance"
# may override it.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# One mask takes at most about 0.1 s. The states of a grammar's lexer, which all its replies add to, take at most 40 MB.
# A schema of 200 optional properties needs a quarter of each limit, except max_items_in_row, which it nearly reaches.
LIMITS = {"max_items_in_row": 1000, "step_max_items": 10_000, "step_lexer_fuel": 50_000, "max_lexer_states": 20_000}


class TokenizerFile(msgspec.Struct, frozen=True):
    """path: of a tokenizer.json. vocab_size: V of the model's logits, which may exceed the tokenizer's."""

    path: str
    vocab_size: int
    end_ids: list[int]

    def load(self) -> Any:
        """llguidance's tokenizer. Raises RequestRejected if llguidance does not support it."""
        from llguidance import LLTokenizer  # imported here because most workers never need it

        try:
            return LLTokenizer(self.path, n_vocab=self.vocab_size, eos_token=self.end_ids)
        except ValueError as error:
            raise rejected(f"grammars cannot be had with this model's tokenizer: {error}") from error


def matcher_of(grammar: Grammar, tokenizer: Any) -> Any:
    """llguidance's matcher at its start. Raises RequestRejected with llguidance's message if the grammar is invalid."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(**LIMITS, verbose_errors=False)  # verbose errors quote the grammar and the reply
    matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=limits)
    if matcher.is_error():
        raise rejected(f"the {grammar.kind} grammar is refused: {reason_of(matcher)}")
    return matcher


def reason_of(matcher: Any) -> str:
    """llguidance's message about a matcher's error."""
    return str(matcher.get_error()).replace("<non-verbose/>", "").strip()


def rejected(message: str) -> RequestRejected:
    return RequestRejected(message, param="grammar", code="invalid_grammar")


def _source(grammar: Grammar) -> str:
    """A grammar in llguidance's form."""
    from llguidance import LLMatcher

    try:
        if grammar.kind == "json_object":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=JSON_STYLE)
        if grammar.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.text, defaults=JSON_STYLE)
        if grammar.kind == "choice":
            return LLMatcher.grammar_from_lark(_choice_rule(grammar.text))
    except ValueError as error:
        raise rejected(f"the {grammar.kind} grammar is refused: {error}") from error
    return LLMatcher.grammar_from_regex(grammar.text) if grammar.kind == "regex" else grammar.text


def _choice_rule(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise rejected("choice must be a JSON array of non-empty strings")
    return "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
