"""A grammar at work: what a reply may go on with, given how it began. Compiled and kept by llguidance.

Knows nothing of logits or trees.
Invariant: `consume` was given exactly the tokens of one beginning of a reply; `rollback` takes the last back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.source import reason_of


class CompiledGrammar:
    """What any number of replies can follow. start: llguidance's matcher, never moved; end_ids: the end tokens;
    num_bytes: that it takes.

    All its matchers share one lexer, and the limit to its states: is_spent once one of them has broken.
    """

    def __init__(self, start: Any, end_ids: frozenset[int], num_bytes: int) -> None:
        self.end_ids = end_ids
        self.num_bytes = num_bytes
        self.is_spent = False
        self._start = start

    def new_matcher(self) -> GrammarMatcher:
        """For one reply, in microseconds."""
        return GrammarMatcher(self._start.deep_copy(), self)


class GrammarMatcher:
    """The state of one grammar in one reply. matcher: llguidance's, at its start.

    Every verb raises BrokenGrammar where llguidance's limits are met: the matcher is of no use from there on.
    """

    def __init__(self, matcher: Any, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._end_ids = grammar.end_ids

    def copy(self) -> GrammarMatcher:
        """One that may run ahead, and break there."""
        return GrammarMatcher(self._matcher.deep_copy(), self._grammar)

    def may_end_with(self, token: int) -> bool:
        """Whether this is an end token and the reply may end here."""
        return token in self._end_ids and bool(self._matcher.is_accepting())

    def consume(self, token: int) -> None:
        """Go on with a token that `mask` allows. End tokens change nothing: the reply is over."""
        if token not in self._end_ids:
            self._matcher.consume_token(token)
            self._check()

    def try_consume(self, token: int) -> bool:
        """`consume` a token if it is accepted and not an end token; whether it was."""
        if token in self._end_ids:
            return False
        is_accepted = int(self._matcher.try_consume_tokens([token])) == 1
        self._check()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def forced(self) -> list[int]:
        """The tokens that the text must go on with whatever is drawn, as the tokenizer would cut it; maybe none."""
        tokens = list(self._matcher.compute_ff_tokens())
        self._check()
        return tokens

    def mask(self) -> NDArray[np.uint32]:
        """uint32 [W], a bit per token that may come next; the end tokens alone where nothing else may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32).copy()  # compiled code wants it writable
        self._check()
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            self._grammar.is_spent = True
            raise BrokenGrammar(reason_of(self._matcher))
