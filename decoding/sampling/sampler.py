"""Answers all sequences' requests of a step on the host: each tree's walk draws from the rows that it reaches, with the
sampler and the logits processors that its request needs.

Owns nothing. Invariant: one sequence's answer, or exception, does not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.cpu_sampler import CpuSampler, draw_along
from decoding.sampling.law import Law, law_of
from decoding.sampling.logits_processors import LogitsProcessors
from decoding.sampling.logprobs import token_logprobs
from decoding.sampling.rejection import RejectionSampler
from decoding.sampling.top_tokens import top_tokens_on_host
from decoding.sampling.verify import Sampler, verify


class HostSampler:
    """Logits on another device are copied to the host in one copy."""

    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> HostDrawing:
        return HostDrawing(logits_RV, asked)

    def warm_up(self, _logits_RV: torch.Tensor) -> None:
        """Its kernels are compiled with all others of the host."""


class HostDrawing:
    roots = None

    def __init__(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> None:
        self._logits_RV = logits_RV
        self._asked = asked

    def collect(self, place: int) -> Drawn:
        self._logits_RV = self._logits_RV.cpu()
        asked = self._asked[place]
        return drawn_on_host(asked, self._logits_RV[asked.first : asked.first + asked.num_rows])


def drawn_on_host(asked: Asked, rows_RV: torch.Tensor) -> Drawn:
    """The answer for one sequence, whose rows are on the host. Raises BrokenSequence."""
    verdict, logprobs = None, None
    if asked.tree is not None:
        rows_NV = rows_RV[len(rows_RV) - len(asked.tree) :]
        verdict = verdict_on(asked.tree, rows_NV, asked.request, asked.law, asked.processors)
        if (num_logprobs := asked.request.sampling.logprobs) is not None:
            path_RV = rows_NV[torch.from_numpy(verdict.path)]
            logprobs = token_logprobs(path_RV, verdict.tokens, num_logprobs)
    top = top_tokens_on_host(rows_RV, asked.num_top) if asked.num_top else None
    scored: list[TokenLogprobs] = []
    if len(asked.prompt_tokens):
        scored_RV = rows_RV[asked.first_scored : asked.first_scored + len(asked.prompt_tokens)]
        scored = token_logprobs(scored_RV, asked.prompt_tokens, asked.num_prompt_logprobs)
    return Drawn(verdict, top, logprobs, scored)


class ProcessedSampler:
    """Passes processed rows to another sampler. processors: up to date with the reply.

    A row is processed when the walk reaches it; a token is noted when the walk continues past it.
    """

    def __init__(self, sampler: Sampler, processors: LogitsProcessors) -> None:
        self._sampler = sampler
        self._processors = processors
        self._drawn: int | None = None

    def draw(self, logits_V: torch.Tensor, node: int, /) -> int:
        if self._drawn is not None:  # the walk reached another node, so the last token was accepted
            self._processors.note(self._drawn)
        row = self._processors.row(logits_V.numpy())
        self._drawn = self._sampler.draw(torch.from_numpy(row), node)
        return self._drawn


def warm_up() -> None:
    """Compile both kinds of walks through a tree."""
    tree, logits_NV, law = root_only(0), torch.zeros(1, 1), law_of(SamplingParams(max_tokens=1))
    draw_along(tree, logits_NV, law, 0)
    verify(tree, logits_NV, CpuSampler(law, 0))


def verdict_on(
    tree: DraftTree, logits_NV: torch.Tensor, request: Request, law: Law, processors: LogitsProcessors | None
) -> Verdict:
    """The target's verdict on a request's tree. logits_NV: the rows of its nodes, on the host. Raises BrokenSequence.

    law: of the request; processors: None if it changes no logits.
    """
    if tree.draws is None and processors is None:
        return draw_along(tree, logits_NV, law, request.num_tokens)
    return verify(tree, logits_NV, sampler_for(request, tree, processors))


def sampler_for(request: Request, tree: DraftTree, processors: LogitsProcessors | None) -> Sampler:
    """A sampler for one step of a request: by rejection if the tree has `draws`, else of the target's own tokens."""
    law, position = law_of(request.sampling), request.num_tokens
    sampler: Sampler = CpuSampler(law, position)
    if tree.draws is not None:
        sampler = RejectionSampler(tree, law, position)
    return sampler if processors is None else ProcessedSampler(sampler, processors)
