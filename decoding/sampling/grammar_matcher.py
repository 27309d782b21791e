"""A grammar at work: what a reply may go on with, given how it began. Compiled and kept by llguidance.

Knows nothing of logits or trees.
Invariant: `consume` was given exactly the tokens of one beginning of a reply; `rollback` takes the last back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("gander.grammar")


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """What any number of replies can follow. start: llguidance's matcher, never moved; end_ids: the end tokens."""

    start: Any
    end_ids: frozenset[int]

    def new_matcher(self) -> GrammarMatcher:
        """For one reply, in microseconds."""
        return GrammarMatcher(self.start.deep_copy(), self.end_ids)


class GrammarMatcher:
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
        is_done = self._matcher.rollback(num_tokens)
        assert is_done, self._matcher.get_error()

    def forced(self) -> list[int]:
        """The tokens that the text must go on with whatever is drawn, as the tokenizer would cut it; maybe none."""
        return list(self._matcher.compute_ff_tokens())

    def mask(self) -> NDArray[np.uint32]:
        """uint32 [W], a bit per token that may come next; the end tokens alone where nothing else may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32).copy()  # compiled code wants it writable
        if self._matcher.is_error():
            logger.warning("a grammar grew too complex and ends its reply: %s", self._matcher.get_error())
        return bits
