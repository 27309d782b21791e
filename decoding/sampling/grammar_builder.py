"""From a caller's grammar to a compiled one, by llguidance, for one model's tokenizer, which is read at the first.

Knows nothing of replies, and waits where it is called. Invariant: nobody waits longer for a compilation than
COMPILE_SECONDS; one that takes longer is left to llguidance's own limits.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from typing import Any

from transformers.utils.hub import cached_file

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.errors import RequestRejected
from decoding.model.checkpoint import folder_of
from decoding.sampling.grammar_matcher import CompiledGrammar

COMPILE_SECONDS = 2.0
MAX_GRAMMAR_CHARS = 2**18
# One way to write JSON, so that what is not a value is forced, hence free; a schema's "x-guidance" may say otherwise
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarBuilder:
    """vocab_size: V of the model's logits, which may be more than the tokenizer has."""

    def __init__(self, config: EngineConfig, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: Any = None

    def build(self, grammar: Grammar) -> CompiledGrammar:
        """Raises RequestRejected, for `grammar`, for what cannot be compiled."""
        if not self._eos_token_ids:
            raise rejected("this model has no end token, so a grammar could never end its reply")
        if len(grammar.text) > MAX_GRAMMAR_CHARS:
            raise rejected(f"a grammar has at most {MAX_GRAMMAR_CHARS} characters")
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        matcher = _within_time(self._tokenizer, _source(grammar))
        if matcher.is_error():
            raise rejected(f"the {grammar.kind} grammar is refused: {matcher.get_error()}")
        return CompiledGrammar(matcher, self._eos_token_ids)

    def _load_tokenizer(self) -> Any:
        from llguidance import LLTokenizer  # here, because most workers never need it

        try:
            path = cached_file(folder_of(self._config.model), "tokenizer.json", revision=self._config.revision)
        except OSError as error:
            raise rejected(f"{self._config.model} has no tokenizer.json, which grammars need") from error
        try:
            return LLTokenizer(path, n_vocab=self._vocab_size, eos_token=sorted(self._eos_token_ids))
        except ValueError as error:
            raise rejected(f"grammars cannot be had with this model's tokenizer: {error}") from error


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


def _within_time(tokenizer: Any, source: str) -> Any:
    """llguidance's matcher, compiled in a thread that can be left behind; or what was raised there."""
    from llguidance import LLMatcher

    compiled: Future[Any] = Future()

    def compile_source() -> None:
        try:
            compiled.set_result(LLMatcher(tokenizer, source, log_level=0))
        except BaseException as error:  # llguidance's panics are no Exception; the one who waits is told of all
            compiled.set_exception(error)

    threading.Thread(target=compile_source, name="grammar", daemon=True).start()
    try:
        return compiled.result(COMPILE_SECONDS)
    except TimeoutError:
        raise rejected(f"the grammar takes more than {COMPILE_SECONDS:g} seconds to compile") from None
