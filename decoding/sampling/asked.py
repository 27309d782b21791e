"""What one sequence asks of its rows of a step's logits, and what it is told. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.core.request import Request
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.sampling.logits_processors import LogitsProcessors


@dataclass(frozen=True, slots=True)
class Asked:
    """first, num_rows: its rows; the last follow the tree's nodes. tree: None where no token is drawn yet. processors:
    up to date with the reply, None for a request that asks for nothing of its logits. num_top: likeliest tokens wanted
    of each row, 0 for none. prompt_tokens: int32, those whose log probabilities are wanted, of which the first follows
    row `first + first_scored`.
    """

    request: Request
    first: int
    num_rows: int
    tree: DraftTree | None
    processors: LogitsProcessors | None
    num_top: int
    prompt_tokens: IntArray
    first_scored: int

    @property
    def first_of_tree(self) -> int:
        """The row that follows the root."""
        return self.first + self.num_rows - (0 if self.tree is None else len(self.tree))

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens' log probabilities are told with those of the drawn tokens; None for neither."""
        return None if self.tree is None else self.request.sampling.logprobs

    @property
    def num_prompt_logprobs(self) -> int:
        """The same of the prompt's tokens."""
        return self.request.sampling.prompt_logprobs or 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """verdict: None without a tree; top: a row for each of the sequence's, None if not asked for; logprobs: of the
    verdict's tokens; prompt_logprobs: of `prompt_tokens`."""

    verdict: Verdict | None
    top: TopTokens | None
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs]
