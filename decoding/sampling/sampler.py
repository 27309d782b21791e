"""How a sequence's tree is verified, and the sampler that first does to the logits what the request asks for."""

from __future__ import annotations

import torch

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.sampling.cpu_sampler import CpuSampler, draw_along
from decoding.sampling.law import law_of
from decoding.sampling.logits_processors import LogitsProcessors
from decoding.sampling.rejection import RejectionSampler
from decoding.sampling.verify import Sampler, verify


class ProcessedSampler:
    """Another sampler's tokens from processed rows. processors: up to date with the reply.

    A row is processed when the walk comes to it, and a token noted when it goes on with it.
    """

    def __init__(self, sampler: Sampler, processors: LogitsProcessors) -> None:
        self._sampler = sampler
        self._processors = processors
        self._drawn: int | None = None

    def draw(self, logits_V: torch.Tensor, node: int, /) -> int:
        if self._drawn is not None:  # the walk came to another node, so it accepted this token
            self._processors.note(self._drawn)
        row = self._processors.row(logits_V.numpy())
        self._drawn = self._sampler.draw(torch.from_numpy(row), node)
        return self._drawn


def warm_up() -> None:
    """Compile both ways through a tree."""
    tree, logits_NV, law = root_only(0), torch.zeros(1, 1), law_of(SamplingParams(max_tokens=1))
    draw_along(tree, logits_NV, law, 0)
    verify(tree, logits_NV, CpuSampler(law, 0))


def verdict_on(
    tree: DraftTree, logits_NV: torch.Tensor, request: Request, processors: LogitsProcessors | None
) -> Verdict:
    """What the target says of a request's tree, from its rows on the host. Raises BrokenSequence.

    processors: None for a request that asks for nothing of its logits.
    """
    if tree.draws is None and processors is None:
        return draw_along(tree, logits_NV, law_of(request.sampling), request.num_tokens)
    return verify(tree, logits_NV, sampler_for(request, tree, processors))


def sampler_for(request: Request, tree: DraftTree, processors: LogitsProcessors | None) -> Sampler:
    """A sampler for one step of a request: by rejection for a tree that brings its `draws`, else the target's own."""
    law, position = law_of(request.sampling), request.num_tokens
    sampler: Sampler = CpuSampler(law, position)
    if tree.draws is not None:
        sampler = RejectionSampler(tree, law, position)
    return sampler if processors is None else ProcessedSampler(sampler, processors)
