"""What sequences ask of a step's rows, done on the host: each walk draws from the rows that it comes to.

Owns nothing. Invariant: what one sequence is told, or what is raised for it, is no other's concern.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.logprobs import token_logprobs
from decoding.sampling.sampler import verdict_on
from decoding.sampling.top_tokens import top_tokens


class HostSampler:
    """Logits of another device are copied, all at once."""

    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> HostDrawing:
        return HostDrawing(logits_RV, asked)


class HostDrawing:
    def __init__(self, logits_RV: torch.Tensor, asked: Sequence[Asked]) -> None:
        self._logits_RV = logits_RV
        self._asked = asked

    def collect(self, place: int) -> Drawn:
        self._logits_RV = self._logits_RV.cpu()
        asked = self._asked[place]
        return drawn_on_host(asked, self._logits_RV[asked.first : asked.first + asked.num_rows])


def drawn_on_host(asked: Asked, rows_RV: torch.Tensor) -> Drawn:
    """All that is asked of a sequence's rows, which are on the host. Raises BrokenSequence."""
    verdict, logprobs = None, None
    if asked.tree is not None:
        rows_NV = rows_RV[len(rows_RV) - len(asked.tree) :]
        verdict = verdict_on(asked.tree, rows_NV, asked.request, asked.processors)
        if asked.num_logprobs is not None:
            path_RV = rows_NV[torch.from_numpy(verdict.path)]
            logprobs = token_logprobs(path_RV, verdict.tokens, asked.num_logprobs)
    top = top_tokens(rows_RV, asked.num_top) if asked.num_top else None
    scored_RV = rows_RV[asked.first_scored : asked.first_scored + len(asked.prompt_tokens)]
    return Drawn(verdict, top, logprobs, token_logprobs(scored_RV, asked.prompt_tokens, asked.num_prompt_logprobs))
