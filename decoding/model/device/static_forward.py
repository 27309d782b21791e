"""A model's forward over a step's tensors, eager or compiled, which can be captured.

Knows the seam. Invariant: compiled or not, the logits are the model's own up to rounding.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache.step_tensors import StepTensors
from decoding.errors import ModelRefused
from decoding.model.device.compiling import CompiledModel
from decoding.model.rowwise.replaced_functions import ReplacedFunctions, Replacements
from decoding.model.seam import SERVING, TRACED, Seam, set_implementation

# Shape suffixes: T padded tokens, L those that need logits, and padding, R those that do, V vocabulary.


class StaticForward:
    """is_compiled: whether `compile` succeeded. replaced: functions of torch, by what takes their place."""

    def __init__(self, model: PreTrainedModel, seam: Seam, replaced: Replacements) -> None:
        self.is_compiled = False
        self._model = model
        self._call: Any = model
        self._seam = seam
        self._replaced = replaced
        self._gives_all_rows = "logits_to_keep" not in inspect.signature(model.forward).parameters

    def run(self, step: StepTensors) -> torch.Tensor:
        """[L, V]: logits of the tokens `logit_rows_L`, in the model's dtype. Copies nothing to the host."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self._replaced:
                stack.enter_context(ReplacedFunctions(self._replaced))
            stack.enter_context(self._seam.running(step))
            logits_1LV: torch.Tensor = self._call(
                input_ids=step.ids_T[None],
                position_ids=step.positions_T[None],
                use_cache=False,
                logits_to_keep=step.logit_rows_L,
            ).logits
        return logits_1LV[0, step.logit_rows_L] if self._gives_all_rows else logits_1LV[0]

    def compile(self, step: StepTensors, expected_RV: torch.Tensor, tolerance: float) -> None:
        """Compile the forward, if `step` then gives the expected logits within `tolerance` times the largest of them.

        Otherwise raises ModelRefused, and `run` stays eager.
        """
        self._seam.check_traceable()
        set_implementation(self._model, TRACED)
        self._call = CompiledModel(self._model)
        try:
            found_RV = self.run(step)[: len(expected_RV)].float()
            difference = float((found_RV - expected_RV).abs().max() / expected_RV.abs().max())
            if not difference <= tolerance:
                raise ModelRefused(f"compiled it gives logits that differ by {difference:.2g} of the largest one")
        except ModelRefused:
            set_implementation(self._model, SERVING)
            self._call = self._model
            raise
        self.is_compiled = True
