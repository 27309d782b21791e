"""One sequence's part of a step: a chunk of its prompt, a tree, and what becomes of their rows.

Pure; what it says of logits is told to the sequence by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from decoding.cache.batch import LogitRows, Segment
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray
from decoding.core.verdict import Verdict
from decoding.drafting.draft_model.state import DraftCost
from decoding.engine.sequence import Sequence
from decoding.sampling.logprobs import token_logprobs
from decoding.sampling.sampler import sampler_for
from decoding.sampling.verify import verify

# R rows of the part, V vocabulary


@dataclass(frozen=True, slots=True)
class SequencePart:
    """chunk: prompt tokens in a chain from position `start` on; tree: its root follows the chunk, None where the prompt
    goes on in the next step. cost: the draft model's; budget: the nodes the tree was allowed."""

    sequence: Sequence
    start: int
    chunk: IntArray
    tree: DraftTree | None
    cost: DraftCost
    budget: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.chunk) + (0 if self.tree is None else len(self.tree))

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt was through before this step."""
        return self.tree is not None and len(self.chunk) == 0

    @property
    def is_plain(self) -> bool:
        """Whether the drafter was not asked for the tree there is."""
        return self.tree is not None and self.budget == 0

    @property
    def is_harvested(self) -> bool:
        """Whether the drafter is to see this part's logits. A plain step is not, or it would not be cheap."""
        return self.sequence.drafter.num_top > 0 and (not self.is_plain or len(self.chunk) > 0)

    def segment(self) -> Segment:
        """The rows of this part. Logits: all rows if the drafter harvests, else the tree's alone."""
        handle = self.sequence.handle
        assert handle is not None
        num_chunk = len(self.chunk)
        wants_all = self.is_harvested or self.sequence.request.sampling.prompt_logprobs is not None
        if self.tree is None:
            return Segment(handle, self.chunk, None, "all" if wants_all else "none")
        logits: LogitRows = "all" if wants_all else len(self.tree)
        if num_chunk == 0:
            return Segment(handle, self.tree.tokens, self.tree.parents, logits)
        tokens = np.concatenate((self.chunk, self.tree.tokens))
        chunk_parents = np.arange(-1, num_chunk - 1, dtype=np.int32)
        parents = np.concatenate((chunk_parents, self.tree.parents + np.int32(num_chunk)))
        return Segment(handle, tokens, parents, logits)

    def verify(self, rows_RV: torch.Tensor) -> Verdict | None:
        """The target's own tokens along the tree; None where there is none. Raises BrokenLogits."""
        if self.tree is None:
            return None
        sequence = self.sequence
        sampler = sampler_for(sequence.request, self.tree, sequence.root_processors, rows_RV.device)
        return verify(self.tree, self.tree_rows(rows_RV), sampler)

    def tree_rows(self, rows_RV: torch.Tensor) -> torch.Tensor:
        """Of this part's logits those that follow the tree's nodes, a row for each."""
        assert self.tree is not None
        return rows_RV[len(rows_RV) - len(self.tree) :]

    def kept_rows(self, verdict: Verdict | None) -> IntArray:
        """int32: the rows of the segment whose keys and values stay: the chunk and the accepted path."""
        num_chunk = len(self.chunk)
        if num_chunk == 0 and verdict is not None:
            return verdict.path
        chunk = np.arange(num_chunk, dtype=np.int32)
        return chunk if verdict is None else np.concatenate((chunk, verdict.path + np.int32(num_chunk)))

    def prompt_logprobs(self, rows_RV: torch.Tensor) -> list[TokenLogprobs]:
        """Of the prompt's tokens that follow this part's chunk, if they are asked for."""
        request = self.sequence.request
        if request.sampling.prompt_logprobs is None:
            return []
        tokens = request.prompt[self.start + 1 : self.start + 1 + len(self.chunk)]
        return token_logprobs(rows_RV[: len(tokens)], tokens, request.sampling.prompt_logprobs)

    def logprobs(self, verdict: Verdict, rows_RV: torch.Tensor) -> list[TokenLogprobs] | None:
        """Of the verdict's tokens, if they are asked for."""
        num_top = self.sequence.request.sampling.logprobs
        if num_top is None:
            return None
        return token_logprobs(self.tree_rows(rows_RV)[torch.from_numpy(verdict.path)], verdict.tokens, num_top)

    def observe(self, verdict: Verdict | None, top: TopTokens | None) -> None:
        """Give the drafter the step's outcome; `top` has a row for each row of the segment."""
        drafter, num_chunk = self.sequence.drafter, len(self.chunk)
        if num_chunk:
            drafter.observe_prefill(self.start, top and TopTokens(top.ids[:num_chunk], top.probabilities[:num_chunk]))
        if self.tree is not None and verdict is not None and not self.is_plain:
            drafter.observe(self.tree, verdict, top and TopTokens(top.ids[num_chunk:], top.probabilities[num_chunk:]))


class VerifiedPart(NamedTuple):
    """A part after its forward: what the target says of its tree, None where there is none, and its raw logits."""

    part: SequencePart
    verdict: Verdict | None
    rows_RV: torch.Tensor
