"""A sequence's request to the sampler of a step, and the answer. Pure data."""

from __future__ import annotations

from typing import NamedTuple

from decoding.core.request import Request
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.sampling.law import Law
from decoding.sampling.logits_processors import LogitsProcessors


class Asked(NamedTuple):
    """law: of the request. first, num_rows: the sequence's rows of logits, the last of which belong to the nodes of the
    tree. tree: None if no token is to be drawn yet. processors: up to date with the reply; None if the request changes
    no logits. num_top: how many of the most likely tokens of each row are wanted. prompt_tokens: int32, the prompt
    tokens whose log probabilities are wanted; the first of them follows row `first + first_scored`. position: of the
    token that is drawn at the tree's root, which may be further on than the request has tokens by now.
    """

    request: Request
    law: Law
    first: int
    num_rows: int
    tree: DraftTree | None
    processors: LogitsProcessors | None
    num_top: int
    prompt_tokens: IntArray
    first_scored: int
    position: int

    @property
    def first_of_tree(self) -> int:
        """The row of the tree's root."""
        return self.first + self.num_rows - (0 if self.tree is None else len(self.tree))

    @property
    def is_ranked(self) -> bool:
        """Whether anything is wanted of its rows but a verdict."""
        tells = self.tree is not None and self.request.sampling.logprobs is not None
        return tells or self.num_top > 0 or len(self.prompt_tokens) > 0

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens get logprobs at each drawn token; None if no logprobs are wanted."""
        return None if self.tree is None else self.request.sampling.logprobs

    @property
    def num_prompt_logprobs(self) -> int:
        """How many of the most likely tokens get logprobs at each prompt token."""
        return self.request.sampling.prompt_logprobs or 0


class Drawn(NamedTuple):
    """verdict: None without a tree. top: one row for each of the sequence's rows, None if not wanted. logprobs: of the
    verdict's tokens, None if not wanted. prompt_logprobs: of `prompt_tokens`."""

    verdict: Verdict | None
    top: TopTokens | None
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs]
