"""A device to measure on, clocks for what is queued there, and engines of random weights in the shapes of known models.

Knows nothing of what is measured. On the CPU everything runs small, to try the programs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from decoding.bench.gpu.cost_model import QWEN3, ModelShape
from decoding.config import EngineConfig
from decoding.core.events import Finished, Tokens
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.capture import capture_on
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

    def shape(self, place: int) -> ModelShape:
        """One of Qwen3's: 0.6B, 8B or 32B."""
        return TINY if self.is_small else QWEN3[place]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], rounds: int = 20) -> float:
        """The median of some rounds after a first one, each from an idle device to an idle device."""
        work()
        times = []
        for _ in range(self.count(rounds)):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return median(times)

    def memory(self) -> dict[str, int]:
        """Bytes of the device, taken by now and at most."""
        if self.device.type != "cuda":
            return {}
        names = "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"
        return {name: getattr(torch.cuda, name)(self.device) for name in names}


def random_model(bench: Bench, shape: ModelShape) -> PreTrainedModel:
    """Made on the device, always the same one."""
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=40_960,
        tie_word_embeddings=shape.name == "0.6B",
    )
    torch.manual_seed(0)
    with bench.device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if bench.device.type == "cuda" else torch.float32
        )
    return model.eval()


@dataclass
class Served:
    """A random model behind an engine. told: by its start."""

    engine: Engine
    bench: Bench
    told: list[str] = field(default_factory=list)
    _number: int = 0

    @classmethod
    def of(
        cls,
        bench: Bench,
        model: PreTrainedModel,
        longest: int,
        kv_slots: int | None = None,
        compile: bool = False,
        exact: bool = False,
    ) -> Served:
        told: list[str] = []
        config = EngineConfig(
            device=str(bench.device),
            max_model_len=bench.count(longest, 512),
            prefix_cache=False,
            draft_model="none",
            max_nodes=63,
            kv_slots=4096 if bench.is_small else kv_slots,
            threads=1 if bench.is_small else None,
            compile=compile,
            exact=exact,
        )
        target = TargetModel.from_model(model, config, capture_on(bench.device))
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

    def run(self, requests: list[Request]) -> dict[str, Any]:
        """Run requests together: their tokens and seconds, after the last prompt was read and in all, target forwards,
        and the seconds between a step's tokens and the next's."""
        for request in requests:
            self.engine.add(request)
        started, emitted, moments, forwards = time.perf_counter(), 0, list[float](), 0
        first, first_emitted = 0.0, 0
        while self.engine.has_work:
            result = self.engine.step()
            now = time.perf_counter() - started
            emitted += sum(len(each.token_ids) for each in result.of(Tokens))
            forwards += sum(each.stats.target_forwards for each in result.of(Finished))
            moments.append(now)
            if result.stats is not None and result.stats.prefill_rows:
                first, first_emitted, moments = now, emitted, [now]
        seconds = time.perf_counter() - started
        gaps = np.diff(moments) if len(moments) > 1 else np.zeros(1)
        return {
            "tokens": emitted,
            "seconds": seconds,
            "tokens_a_second": (emitted - first_emitted) / max(seconds - first, 1e-9),
            "tokens_a_forward": emitted / max(1, forwards),
            "first_seconds": first,
            "gap_ms": [1000 * float(np.quantile(gaps, share)) for share in (0.5, 0.99, 1.0)],
        }


def corrupted(reply: Tokens32, rate: float, vocab_size: int, seed: int) -> Tokens32:
    """A prediction that is wrong in so many of its places, so that drafts are accepted at a known rate."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(len(reply)) < rate
    return np.where(is_wrong, (reply + rng.integers(1, vocab_size, len(reply))) % vocab_size, reply).astype(np.int32)
