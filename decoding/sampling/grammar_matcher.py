"""A grammar at work: what a reply may go on with, given how it began. Compiled and kept by llguidance.

Owns the tokenizer that grammars are compiled for, read at the first one. Knows nothing of logits or trees.
Invariant: `consume` was given exactly the tokens of one beginning of a reply; `rollback` takes the last back.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers.utils.hub import cached_file

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.model.checkpoint import folder_of

COMPILE_SECONDS = 2.0
MAX_GRAMMAR_CHARS = 2**18
# One way to write JSON, so that what is not a value is forced, hence free; a schema's "x-guidance" may say otherwise
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

logger = logging.getLogger("gander.constraint")


class Constraint:
    """The state of one grammar in one reply. matcher: llguidance's, at its start; end_ids: the end tokens."""

    def __init__(self, matcher: Any, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    def may_end_with(self, token: int) -> bool:
        """Whether this is an end token and the reply may end here."""
        return token in self._end_ids and bool(self._matcher.is_accepting())

    def consume(self, token: int) -> None:
        """Go on with a token that `mask` allows. End tokens change nothing: the reply is over."""
        if token not in self._end_ids and not self._matcher.consume_token(token):
            logger.warning("a grammar was left at token %d: %s", token, self._matcher.get_error())

    def try_consume(self, token: int) -> bool:
        """`consume` a token if it is accepted and not an end token; whether it was."""
        return token not in self._end_ids and int(self._matcher.try_consume_tokens([token])) == 1

    def rollback(self, num_tokens: int) -> None:
        assert self._matcher.rollback(num_tokens), self._matcher.get_error()

    def forced(self) -> list[int]:
        """The tokens that the text must go on with whatever is drawn, as the tokenizer would cut it; maybe none."""
        return list(self._matcher.compute_ff_tokens())

    def mask(self) -> NDArray[np.uint32]:
        """uint32 [W], a bit per token that may come next; the end tokens alone where nothing else may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32).copy()  # compiled code wants it writable
        if self._matcher.is_error():
            logger.warning("a grammar grew too complex and ends its reply: %s", self._matcher.get_error())
        return bits


class GrammarCompiler:
    """Compiles grammars for one model. Raises RequestRejected, for `grammar`, for what cannot be compiled.

    vocab_size: V of the model's logits, which may be more than the tokenizer has.
    """

    def __init__(self, config: EngineConfig, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: Any = None

    def compile(self, grammar: Grammar) -> Constraint:
        """A grammar ready for a new reply, within COMPILE_SECONDS."""
        if not self._eos_token_ids:
            raise _rejected("this model has no end token, so a grammar could never end its reply")
        if len(grammar.text) > MAX_GRAMMAR_CHARS:
            raise _rejected(f"a grammar has at most {MAX_GRAMMAR_CHARS} characters")
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        matcher = _within_time(self._tokenizer, _source(grammar))
        if matcher.is_error():
            raise _rejected(f"the {grammar.kind} grammar is refused: {matcher.get_error()}")
        return Constraint(matcher, self._eos_token_ids)

    def _load_tokenizer(self) -> Any:
        from llguidance import LLTokenizer  # here, because most workers never need it

        try:
            path = cached_file(folder_of(self._config.model), "tokenizer.json", revision=self._config.revision)
        except OSError as error:
            raise _rejected(f"{self._config.model} has no tokenizer.json, which grammars need") from error
        try:
            return LLTokenizer(path, n_vocab=self._vocab_size, eos_token=sorted(self._eos_token_ids))
        except ValueError as error:
            raise _rejected(f"grammars cannot be had with this model's tokenizer: {error}") from error


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
        raise _rejected(f"the {grammar.kind} grammar is refused: {error}") from error
    return LLMatcher.grammar_from_regex(grammar.text) if grammar.kind == "regex" else grammar.text


def _choice_rule(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise _rejected("choice must be a JSON array of non-empty strings")
    return "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)


def _within_time(tokenizer: Any, source: str) -> Any:
    """The matcher. llguidance's own limits end a compilation that took too long for us, in its thread."""
    from llguidance import LLMatcher

    compiled: list[Any] = []
    thread = threading.Thread(target=lambda: compiled.append(LLMatcher(tokenizer, source, log_level=0)), daemon=True)
    thread.start()
    thread.join(COMPILE_SECONDS)
    if not compiled:
        raise _rejected(f"the grammar takes more than {COMPILE_SECONDS:g} seconds to compile")
    return compiled[0]


def _rejected(message: str) -> RequestRejected:
    return RequestRejected(message, param="grammar", code="invalid_grammar")
