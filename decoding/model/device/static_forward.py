"""A model's forward over a step's tensors, eager or compiled, which can be captured.

Compiled, it is one graph for any number of tokens, in which attention stays one opaque operation. Knows the seam, and
modelling code only through torch's compiler. Invariant: compiled or not, the logits are the model's own up to rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache.step_tensors import StepTensors
from decoding.errors import ModelRefused
from decoding.model.replacing.replacer import ReplacedFunctions, Replacements
from decoding.model.seam import SERVING, TRACED, Seam, set_implementation

LEAST_ROWS = 2  # torch would compile a separate graph for a single token
BACKEND = "inductor"


class CompiledModel:
    """Called like the model, with `input_ids`, `position_ids` and `logits_to_keep` of two or more tokens.

    backend: of `torch.compile`.
    """

    def __init__(self, model: PreTrainedModel, backend: str | Callable[..., Any] = BACKEND) -> None:
        self._call: Callable[..., Any] = torch.compile(model.forward, backend=backend, fullgraph=True)

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **options: Any
    ) -> Any:
        """Run the compiled forward. Raises ModelRefused if the model cannot be traced."""
        assert len(logits_to_keep) >= LEAST_ROWS
        for rows, dimension in ((input_ids, 1), (position_ids, 1), (logits_to_keep, 0)):
            torch._dynamo.mark_dynamic(rows, dimension)
        try:
            return self._call(input_ids=input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            told = getattr(error, "inner_exception", error)  # a backend's own error, if the backend failed
            reason = str(told).strip().partition("\n")[0]
            raise ModelRefused(f"the model cannot be compiled: {reason}") from error


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
                position_ids=step.rotary_T[None],
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
