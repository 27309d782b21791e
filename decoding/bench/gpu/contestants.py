"""The contestants on a GPU, each in its own process: `python -m decoding.bench.gpu.contestants NAME < task.json`.

Prints a JSON list of the batch sizes. All continue the same prompts greedily to the same length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from decoding.bench.contestant import step
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.start import load_engine
from decoding.model.checkpoint import folder_of

Answer = Callable[[Sequence[Sequence[int]]], int]  # continues prompts as one batch; returns the number of new tokens


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """prompts: token ids, as many as the largest batch. max_tokens: of each reply. compile: whether we compile ours."""

    model: str
    device: str
    prompts: list[list[int]]
    max_tokens: int
    batches: list[int]
    compile: bool = False


class Measured(msgspec.Struct, frozen=True):
    """One batch: its new tokens, and its seconds, prompts included."""

    batch: int
    tokens: int
    seconds: float


def load_gander(task: Task, method: str) -> Answer:
    longest = max(map(len, task.prompts)) + task.max_tokens + 64
    config = EngineConfig(
        model=task.model, device=task.device, max_model_len=longest, prefix_cache=False, compile=task.compile
    )
    engine, names = load_engine(config), count()

    def answer(prompts: Sequence[Sequence[int]]) -> int:
        requests = []
        for prompt in prompts:
            name = str(next(names))  # also the name of its session
            sampling = SamplingParams(max_tokens=task.max_tokens, temperature=0.0, ignore_eos=True)
            speculation = SpeculationParams(method=method)
            tokens = np.array(prompt, np.int32)
            requests.append(
                Request(id=name, prompt=tokens, sampling=sampling, speculation=speculation, session_id=name)
            )
            engine.add(requests[-1])
        while engine.has_work:
            step(engine)
        return sum(request.num_output for request in requests)

    return answer


def load_transformers(task: Task) -> Answer:
    dtype = torch.float32 if task.device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder_of(task.model), dtype=dtype).to(task.device).eval()

    def answer(prompts: Sequence[Sequence[int]]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made = model.generate(
            ids.to(task.device),
            attention_mask=mask.to(task.device),
            max_new_tokens=task.max_tokens,
            min_new_tokens=task.max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return int(made[:, longest:].numel())

    return answer


def load_vllm(task: Task) -> Answer:
    """Load vLLM. Raises ImportError if it is not installed."""
    vllm = import_module("vllm")

    model = vllm.LLM(model=folder_of(task.model), enable_prefix_caching=False)
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=task.max_tokens, ignore_eos=True)

    def answer(prompts: Sequence[Sequence[int]]) -> int:
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        replies = model.generate(asked, sampling, use_tqdm=False)
        return sum(len(reply.outputs[0].token_ids) for reply in replies)

    return answer


CONTESTANTS: dict[str, Callable[[Task], Answer]] = {
    "Gander, plain": lambda task: load_gander(task, "none"),
    "Gander, drafted": lambda task: load_gander(task, "auto"),
    "transformers": load_transformers,
    "vLLM": load_vllm,
}


def measure(answer: Answer, task: Task) -> list[Measured]:
    """Measure each batch size, after an uncounted warm-up round."""
    found = []
    for batch in task.batches:
        prompts = task.prompts[:batch]
        answer(prompts)
        started = time.perf_counter()
        tokens = answer(prompts)
        found.append(Measured(batch, tokens, time.perf_counter() - started))
    return found


def main(name: str) -> int:
    """Measure a contestant; return 1 if it is not installed."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        answer: Any = CONTESTANTS[name](task)
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(measure(answer, task)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
