"""Owns the threads that compute a step's gradients in parallel.

Does not know what is computed. Invariant: gradients are summed in the order of the micro-batches, each computed on one
thread, so a step does not depend on which thread was faster.

One core per micro-batch needs one barrier per step; dividing each product among cores needs one per operation, which is
slow if other programs use the cores too.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

Loss = Callable[[LlamaForCausalLM, Tensor, Tensor], Tensor]


class Replicas:
    """A model and copies that share its weights but have gradients of their own."""

    def __init__(self, model: LlamaForCausalLM, count: int) -> None:
        self.models = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        for replica in self.models[1:]:
            for weight, shared in zip(replica.parameters(), model.parameters(), strict=True):
                weight.data = shared.data
        self._threads = ThreadPoolExecutor(count, initializer=_use_one_core) if count > 1 else None

    def accumulate(self, loss: Loss, inputs: Tensor, targets: Tensor) -> float:
        """Sums `loss` over equal parts of the rows, adds the gradients up in the first model, and returns the sum."""
        parts = list(zip(self.models, inputs.chunk(len(self.models)), targets.chunk(len(self.models)), strict=False))
        if self._threads is None:
            return sum(_backward(loss, *part) for part in parts)
        total = sum(self._threads.map(lambda part: _backward(loss, *part), parts))
        for weight, *others in zip(*(model.parameters() for model in self.models), strict=True):
            for other in others:
                if other.grad is not None:
                    weight.grad += other.grad
                    other.grad = None
        return total


def _backward(loss: Loss, model: LlamaForCausalLM, inputs: Tensor, targets: Tensor) -> float:
    value = loss(model, inputs, targets)
    value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach())


def _use_one_core() -> None:
    torch.set_num_threads(1)
