"""Compiles callers' grammars with llguidance for one model's tokenizer, which is loaded for the first grammar.

Knows nothing of replies; calls block. Invariant: a grammar is compiled here only after a separate process has compiled
it within the limits.
"""

from __future__ import annotations

from typing import Any

from transformers.utils.hub import cached_file

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.model.checkpoint import folder_of
from decoding.sampling.grammar.matcher import CompiledGrammar
from decoding.sampling.grammar.source import MAX_GRAMMAR_CHARS, TokenizerFile, matcher_of, rejected
from decoding.sampling.grammar.trial import TrialLimits, TrialProcess

COMPILE_LIMITS = TrialLimits()


class GrammarBuilder:
    """vocab_size: V of the model's logits, which may exceed the tokenizer's. limits: of every compilation."""

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        limits: TrialLimits = COMPILE_LIMITS,
    ) -> None:
        self._config = config
        self._limits = limits
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: Any = None
        self._trials: TrialProcess | None = None

    def build(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar. Raises RequestRejected, with param "grammar", if that is not possible."""
        if not self._eos_token_ids:
            raise rejected("this model has no end token, so a grammar could never end its reply")
        if len(grammar.text) > MAX_GRAMMAR_CHARS:
            raise rejected(f"a grammar has at most {MAX_GRAMMAR_CHARS} characters")
        if self._trials is None:
            file = self._tokenizer_file()
            self._tokenizer = file.load()
            self._trials = TrialProcess(file, self._limits)
        num_bytes = self._trials.cost_of(grammar)
        return CompiledGrammar(matcher_of(grammar, self._tokenizer), self._eos_token_ids, num_bytes)

    def _tokenizer_file(self) -> TokenizerFile:
        try:
            config = self._config
            folder = folder_of(config.model, config.gguf_file, config.revision)
            path = cached_file(folder, "tokenizer.json", revision=config.revision)
        except OSError as error:
            raise rejected(f"{self._config.model} has no tokenizer.json, which grammars need") from error
        return TokenizerFile(str(path), self._vocab_size, sorted(self._eos_token_ids))
