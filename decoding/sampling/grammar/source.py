"""A caller's grammar as llguidance takes it, and all that llguidance may spend on it: in a trial as in earnest.

Knows no process. Light to import, llguidance apart: the process of the trials begins with this file.
Invariant: what a trial compiles, compiles again with the same outcome.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected

MAX_GRAMMAR_CHARS = 2**18
# One way to write JSON, so that what is not a value is forced, hence free; a schema's "x-guidance" may say otherwise
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Of one mask, about 0.1 s; of all states of a grammar's lexer, which every reply that follows it adds to, 40 MB.
# Schemas of 200 optional properties fit four times over, but for the items of a row, which they nearly fill.
LIMITS = {"max_items_in_row": 1000, "step_max_items": 10_000, "step_lexer_fuel": 50_000, "max_lexer_states": 20_000}


class TokenizerFile(msgspec.Struct, frozen=True):
    """path: of a tokenizer.json; vocab_size: V of the model's logits, which may be more than the tokenizer has."""

    path: str
    vocab_size: int
    end_ids: list[int]

    def load(self) -> Any:
        """llguidance's tokenizer. Raises RequestRejected for one that grammars cannot be had with."""
        from llguidance import LLTokenizer  # here, because most workers never need it

        try:
            return LLTokenizer(self.path, n_vocab=self.vocab_size, eos_token=self.end_ids)
        except ValueError as error:
            raise rejected(f"grammars cannot be had with this model's tokenizer: {error}") from error


def matcher_of(grammar: Grammar, tokenizer: Any) -> Any:
    """llguidance's matcher at its start. Raises RequestRejected, in llguidance's words, for what is no grammar."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(**LIMITS, verbose_errors=False)  # verbose errors quote the grammar and the reply
    matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=limits)
    if matcher.is_error():
        raise rejected(f"the {grammar.kind} grammar is refused: {reason_of(matcher)}")
    return matcher


def reason_of(matcher: Any) -> str:
    """Why a matcher is in error."""
    return str(matcher.get_error()).replace("<non-verbose/>", "").strip()


def rejected(message: str) -> RequestRejected:
    return RequestRejected(message, param="grammar", code="invalid_grammar")


def _source(grammar: Grammar) -> str:
    """llguidance's form of a grammar."""
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
