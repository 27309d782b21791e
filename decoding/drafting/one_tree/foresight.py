"""What one request itself knows of its reply, as chains that a tree may grow along: from its prediction what comes
next, from its grammar what must.

Owns neither. Knows nothing of trees.
"""

from __future__ import annotations

import contextlib

from decoding.core.request import Request
from decoding.drafting.one_tree.desk import LONGEST_FORESEEN, Foreseen
from decoding.drafting.one_tree.prediction import Prediction
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.stores.evidence import FORCED


class Foresight:
    """prediction, matcher: None where the request has none, or may not be drafted for from it; the matcher is up to
    date with the reply."""

    def __init__(self, request: Request, prediction: Prediction | None, matcher: GrammarMatcher | None) -> None:
        may_use = request.speculation.may_use
        self._request = request
        self._prediction = prediction if may_use("prediction") else None
        self._matcher = matcher if may_use("grammar") else None

    @property
    def has_prediction(self) -> bool:
        return self._prediction is not None

    @property
    def wakes(self) -> bool:
        """Whether nobody is to sleep now: the reply has come to follow the prediction, or has a grammar."""
        if self._matcher is not None or self._prediction is None:
            return self._matcher is not None
        was_followed = self._prediction.is_followed
        self._prediction.follow(self._request.output)
        return self._prediction.is_followed and not was_followed

    def write(self, foreseen: Foreseen, max_tokens: int) -> None:
        """Chains of at most so many tokens that may come after the last one, the likeliest first."""
        most = min(max_tokens, LONGEST_FORESEEN)
        chains = self._forced(most)
        if self._prediction is not None:
            self._prediction.follow(self._request.output)
            chains += self._prediction.chains(most)
        foreseen.sizes[:] = 0
        for chain, (tokens, reasons) in enumerate(chains):
            size = foreseen.sizes[chain] = len(tokens)
            foreseen.tokens[chain, :size], foreseen.reasons[chain, :size] = tokens, reasons

    def _forced(self, most: int) -> list[tuple[list[int], list[int]]]:
        """The chain that the grammar leaves no choice but to go on with, if any."""
        if self._matcher is not None:
            with contextlib.suppress(BrokenGrammar):  # further than the reply itself may ever come
                tokens = self._matcher.copy().forced()[:most]
                return [(tokens, [FORCED] * len(tokens))]
        return []
