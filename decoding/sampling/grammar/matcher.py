"""Follows a reply through a compiled grammar and says which tokens may come next. llguidance does the work.

Knows nothing of logits or trees.
Invariant: a matcher has consumed exactly the first tokens of one reply; `rollback` takes back the last ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.source import reason_of


class CompiledGrammar:
    """A grammar that any number of replies can follow. start: llguidance's matcher, which never moves. end_ids: the end
    tokens. num_bytes: its memory.

    All its matchers share one lexer and the limit of its states. is_spent: one of the matchers has broken.
    """

    def __init__(self, start: Any, end_ids: frozenset[int], num_bytes: int) -> None:
        self.end_ids = end_ids
        self.num_bytes = num_bytes
        self.is_spent = False
        self._start = start

    def new_matcher(self) -> GrammarMatcher:
        """A matcher for one reply. Takes microseconds."""
        return GrammarMatcher(self._start.deep_copy(), self)


class GrammarMatcher:
    """The state of one grammar in one reply. matcher: llguidance's, at its start.

    Every method raises BrokenGrammar when llguidance's limits are reached; the matcher is unusable afterwards.
    """

    def __init__(self, matcher: Any, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._end_ids = grammar.end_ids

    def copy(self) -> GrammarMatcher:
        """An independent copy, which may run ahead of the reply."""
        return GrammarMatcher(self._matcher.deep_copy(), self._grammar)

    def may_end_with(self, token: int) -> bool:
        """Whether this is an end token and the reply may end here."""
        return token in self._end_ids and bool(self._matcher.is_accepting())

    def consume(self, token: int) -> None:
        """Advance by a token that `mask` allows. End tokens change nothing: the reply is over."""
        if token not in self._end_ids:
            self._matcher.consume_token(token)
            self._check()

    def try_consume(self, token: int) -> bool:
        """Advance by a token if the grammar accepts it and it is no end token; return whether it did."""
        if token in self._end_ids:
            return False
        is_accepted = int(self._matcher.try_consume_tokens([token])) == 1
        self._check()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def forced(self) -> list[int]:
        """The tokens that must come next whatever is drawn, as the tokenizer splits the forced text; may be empty."""
        tokens = list(self._matcher.compute_ff_tokens())
        self._check()
        return tokens

    def mask(self) -> NDArray[np.uint32]:
        """uint32 [W]: a bit for each token that may come next; the end tokens alone if nothing else may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32).copy()  # compiled code needs writable memory
        self._check()
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            self._grammar.is_spent = True
            raise BrokenGrammar(reason_of(self._matcher))
