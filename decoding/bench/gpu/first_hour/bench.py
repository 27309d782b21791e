"""A device to measure on, clocks for what is queued there, and engines of random weights in the shapes of known models.

Knows nothing of what is measured. On the CPU everything runs small, to try the programs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from decoding.bench.gpu.cost_model import LLAMA_8B, ModelShape
from decoding.config import EngineConfig
from decoding.core.events import Tokens
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import StepStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.capture import capture_on
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.device.runner import stopwatch_on
from decoding.model.target_model import TargetModel

TINY = ModelShape("tiny", 2, 64, 128, 4, 2, 16, 199)
Tokens32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bench:
    """device: to measure on. is_small: to try the programs out, on tiny shapes and few repetitions."""

    device: torch.device
    is_small: bool

    def count(self, many: int, few: int = 2) -> int:
        """How often, or how many."""
        return few if self.is_small else many

    @property
    def shape(self) -> ModelShape:
        return TINY if self.is_small else LLAMA_8B

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], rounds: int = 20) -> float:
        """The median of some rounds after a first one, each from an idle device to an idle device, launches of Python
        included."""
        work()
        times = []
        for _ in range(self.count(rounds)):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return median(times)

    def queued_seconds(self, works: Sequence[Callable[[], object]], rounds: int = 20) -> float:
        """What the device takes for one of `works`: all of them are captured and replayed together, so that no launch
        of Python is in it, and what they read is more than a cache holds if it is together."""

        def launch() -> None:
            for work in works:
                work()

        capture = capture_on(self.device)
        replay = launch if capture is None else capture.note(launch)
        replay()
        self.wait()
        stopwatch, rounds = stopwatch_on(self.device)(), self.count(rounds)
        for _ in range(rounds):
            replay()
        stopwatch.stop()
        return stopwatch.seconds() / rounds / len(works)

    def memory(self) -> dict[str, int]:
        """Bytes of the device, taken by now and at most."""
        if self.device.type != "cuda":
            return {}
        names = "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"
        return {name: getattr(torch.cuda, name)(self.device) for name in names}


def random_model(bench: Bench) -> PreTrainedModel:
    """Made on the device, always the same one."""
    shape = bench.shape
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=131_072,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with bench.device:
        model = AutoModelForCausalLM.from_config(config, dtype=bench.dtype)
    return model.eval()


@dataclass
class Served:
    """A random model behind an engine. told: by its start."""

    engine: Engine
    bench: Bench
    told: list[str] = field(default_factory=list)
    _number: int = 0

    @classmethod
    def of(cls, bench: Bench, longest: int) -> Served:
        told: list[str] = []
        config = EngineConfig(
            device=str(bench.device),
            max_model_len=bench.count(longest, 512),
            prefix_cache=False,
            draft_model="none",
            max_nodes=63,
            kv_slots=4096 if bench.is_small else None,
            threads=1 if bench.is_small else None,
        )
        target = TargetModel.from_model(random_model(bench), config, capture_on(bench.device))
        engine = start_engine(target, config, lambda sentence, _: told.append(sentence))
        return cls(engine, bench, told)

    def prompt(self, length: int, seed: int) -> Tokens32:
        vocab_size = self.engine.model.vocab_size
        return np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)

    def request(self, prompt: Tokens32, num_tokens: int, method: str = "none", **given: Any) -> Request:
        self._number += 1
        name, asked = str(self._number), given.pop("asked", {})
        sampling = SamplingParams(max_tokens=num_tokens, **{"temperature": 0.0, "ignore_eos": True} | asked)
        speculation = SpeculationParams(method=method)
        return Request(id=name, prompt=prompt, sampling=sampling, speculation=speculation, session_id=name, **given)

    def run(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Run requests together. Of the steps after the last one that read a prompt: tokens a second and a step, and
        medians of a step's rows and of its milliseconds, by phase too; and the seconds until then and in all."""
        for request in requests:
            self.engine.add(request)
        started, steps = time.perf_counter(), list[StepStats]()
        first, tokens = 0.0, 0
        while self.engine.has_work:
            result = self.engine.step()
            tokens += sum(len(each.token_ids) for each in result.of(Tokens))
            if result.stats is None:
                continue
            steps.append(result.stats)
            if result.stats.prefill_rows:
                first, tokens, steps = time.perf_counter() - started, 0, []
        seconds = time.perf_counter() - started
        found = {"tokens_a_second": tokens / max(seconds - first, 1e-9), "first_seconds": first, "seconds": seconds}
        return found | _of_steps(steps, tokens)


def _of_steps(steps: Sequence[StepStats], tokens: int) -> dict[str, Any]:
    if not steps:
        return {}
    phases = sorted({name for each in steps for name in each.phase_seconds})
    step_ms = 1000 * median(each.step_seconds for each in steps)
    phases_ms = {name: 1000 * median(each.phase_seconds.get(name, 0.0) for each in steps) for name in phases}
    return {
        "tokens_a_step": tokens / len(steps),
        "rows": median(each.rows for each in steps),
        "step_ms": step_ms,
        "beside_forward_ms": step_ms - phases_ms.get("forward", 0.0),
        "phases_ms": phases_ms,
    }


def start_of(engine: Engine, told: Sequence[str]) -> dict[str, Any]:
    """What an engine's start says of it. told: its sentences."""
    model = engine.model
    return {
        "told": [sentence for sentence in told if "Captur" in sentence or "layers" in sentence],
        "is_captured": isinstance(engine._runner, GraphRunner),
        "is_exact": engine.is_exact,
        "exactness": engine.exactness._asdict(),
        "exact_cost": model.exact_cost,
        "sampler": type(engine.sampler).__name__,
        "seconds": engine.load_seconds,
        "kv_slots": engine.room.num_slots,
    }


def corrupted(reply: Tokens32, rate: float, vocab_size: int, seed: int) -> Tokens32:
    """A prediction that is wrong in so many of its places, so that drafts are accepted at a known rate."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(len(reply)) < rate
    return np.where(is_wrong, (reply + rng.integers(1, vocab_size, len(reply))) % vocab_size, reply).astype(np.int32)
