"""A model's forward over packed steps, operation by operation, with what stands for its modules and functions.

Knows the seams and the rows that oneDNN must be given. Invariant: a step's logits are those of its tokens alone, and
padding's are dropped.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache.batch import StepBatch
from decoding.model.replacing.replacer import ReplacedFunctions, Replacements
from decoding.model.seam import Seam
from decoding.model.state.state_seam import StateSeam
from decoding.model.vision.deepstack import Deepstack
from decoding.weights.row_counts import padded

# Shape suffixes: M tokens of the step, R tokens that need logits, V vocabulary, E model width, N of some tokens.


class StepForward:
    """call: the model, or what stands for all of it. functions: of torch, by what takes their place. few_rows: of a
    packed model, up to so many go without oneDNN; None if nothing is packed. deepstack: what layers are given of
    pictures; None for their embeddings alone."""

    def __init__(self, model: PreTrainedModel, seam: Seam, states: StateSeam | None) -> None:
        self.call: Any = model
        self.functions: Replacements = {}
        self.few_rows: int | None = None
        self.deepstack: Deepstack | None = None
        self._device = model.device
        self._seam, self._states = seam, states
        self._model = model

    def run(self, batch: StepBatch) -> torch.Tensor:
        """float32 [R, V]: logits of the tokens `batch.logit_rows_R`. Stores all tokens' keys and values."""
        ids_M = torch.from_numpy(batch.ids_M)
        if batch.drawn_B is not None:
            ids_M = batch.tokens_at(ids_M.to(self._device)).long()
        ids_1M = self._padded(ids_M)[None]
        positions = self._padded(torch.from_numpy(batch.rotary_positions.T))  # [M], or [M, 3] where pictures are
        positions = positions.movedim(0, -1).unsqueeze(-2)
        rows_R = self._padded(torch.from_numpy(batch.logit_rows_R))  # the head is a linear layer like the others
        num_logits = len(batch.logit_rows_R)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.functions:
                stack.enter_context(ReplacedFunctions(self.functions))
            if self._states is not None:
                stack.enter_context(self._states.running(batch))
            if self.deepstack is not None:
                stack.enter_context(self.deepstack.running(batch.embedded))
            stack.enter_context(self._seam.running(self._seam.backend.prepare(batch), batch if batch.joint else None))
            ids_1M = ids_1M.to(self._device, non_blocking=True)
            tokens = {"inputs_embeds": self._embedded(ids_1M, batch)} if batch.embedded else {"input_ids": ids_1M}
            logits_1RV: torch.Tensor = self.call(
                **tokens,
                position_ids=positions.to(self._device, non_blocking=True),
                use_cache=False,
                logits_to_keep=rows_R.to(self._device, non_blocking=True),
            ).logits
        if logits_1RV.shape[1] != len(rows_R):  # a model without `logits_to_keep` gives logits of all tokens
            logits_1RV = logits_1RV[:, rows_R]
        return logits_1RV[0, :num_logits].float().contiguous()

    def _embedded(self, ids_1M: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        """[1, M, E]: the tokens' embeddings, of which the batch has some."""
        hidden_1ME: torch.Tensor = self._model.get_input_embeddings()(ids_1M)
        for first, rows_NF in batch.embedded:
            hidden_1ME[0, first : first + len(rows_NF)] = rows_NF[:, : hidden_1ME.shape[-1]]
        return hidden_1ME

    def _padded(self, numbers_M: torch.Tensor) -> torch.Tensor:
        is_run_by_onednn = self.few_rows is not None and len(numbers_M) > self.few_rows
        return padded(numbers_M, self.few_rows or 0) if is_run_by_onednn else numbers_M
