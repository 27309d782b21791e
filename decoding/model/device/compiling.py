"""Compiles a model's forward as one graph for any number of tokens; attention stays one opaque operation.

Knows modelling code only through torch's compiler. A model that cannot be traced is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.errors import ModelRefused

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
