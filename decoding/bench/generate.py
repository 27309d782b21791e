"""The baseline that everybody has: transformers' own `generate`, plain and with prompt lookup, on the same weights.

Owns an unmodified model. Knows nothing of our engine.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.bench.contestant import Reply, Task
from decoding.model.threads import ThreadChoice, use_threads

LOOKUP_TOKENS = 10  # as in transformers' own guide


class GenerateContestant:
    """`model.generate` with `prompt_lookup_num_tokens=num_lookup`, or plain if that is 0.

    Greedy replies should equal ours up to rounding; sampled ones draw other noise, so rates are compared
    per token. model: in evaluation mode, on the CPU. threads: the choice whose number of threads it uses.
    """

    is_ours = False
    budget: int | None = None

    def __init__(self, model: Any, threads: ThreadChoice, num_lookup: int = 0) -> None:
        self.label = "generate + prompt lookup" if num_lookup else "generate"
        self._model = model
        self._threads = threads
        self._num_lookup = num_lookup

    def answer(self, task: Task) -> Reply:
        prompt = torch.from_numpy(task.prompt.astype(np.int64))[None]
        rows: list[int] = []
        hook = self._model.register_forward_pre_hook(
            lambda _module, _args, inputs: rows.append(inputs["input_ids"].shape[1]), with_kwargs=True
        )
        torch.manual_seed(task.seed)
        use_threads(self._threads.chosen)
        started = time.perf_counter()
        try:
            output = self._model.generate(prompt, **self._options(task, prompt))
        finally:
            hook.remove()
        seconds = time.perf_counter() - started
        tokens: NDArray[np.int32] = output[0, prompt.shape[1] :].numpy().astype(np.int32)
        return Reply(
            tokens=tokens,
            seconds=seconds,
            forwards=len(rows),
            drafted=sum(rows[1:]) - len(rows[1:]) + rows[0] - prompt.shape[1],
            accepted=len(tokens) - len(rows),
        )

    def _options(self, task: Task, prompt: torch.Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {
            "attention_mask": torch.ones_like(prompt),
            "max_new_tokens": task.max_tokens,
            "do_sample": task.temperature > 0,
            "pad_token_id": 0,
        }
        if task.temperature > 0:
            options |= {"temperature": task.temperature, "top_k": 0, "top_p": 1.0}
        if self._num_lookup:
            options["prompt_lookup_num_tokens"] = self._num_lookup
        return options
