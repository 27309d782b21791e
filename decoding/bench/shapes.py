"""Compares plain decoding with `generate`, and measures the cost of verifying n tokens, on a model of a given shape.

Weights are random, since only time is measured. `python -m decoding.bench.shapes` prints the verify curve of any model.
Knows nothing of workloads or drafters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.bench.contestant import Contestant, EngineContestant, Reply, Task
from decoding.bench.generate import GenerateContestant
from decoding.bench.tables.figures import pool
from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel

DTYPES = ("float32", "bfloat16")
ROWS = (1, 2, 4, 8, 16, 32, 64)
CURVE_HEAD = (
    f"| weights | one row, ms | {' | '.join(f't({num_rows})' for num_rows in ROWS)} |",
    f"| --- | --: |{' --: |' * len(ROWS)}",
)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a Llama with tied embeddings and no grouped heads."""

    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    vocab_size: int

    def build(self, dtype: str) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.width,
            intermediate_size=self.mlp_width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=None,
        )
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


GPT2_SIZED = Shape(num_layers=12, width=768, num_heads=12, mlp_width=2048, vocab_size=32000)
SMALL = Shape(num_layers=2, width=64, num_heads=4, mlp_width=128, vocab_size=512)


class ShapeResult(msgspec.Struct, frozen=True, kw_only=True):
    """context: tokens at the end of a reply, and before the verified tokens. verify_ratios: t(n) / t(1) for `ROWS`."""

    dtype: str
    parameters: int
    context: int
    none_rate: float
    generate_rate: float
    ratio: float
    plain_step_seconds: float
    verify_ratios: list[float]


def measure_shape(
    shape: Shape, dtype: str, context: int = 256, rounds: int = 3, on_answer: Callable[[], None] = lambda: None
) -> ShapeResult:
    """Run interleaved rounds of `none` and `generate` up to `context` tokens, then measure the verify curve there."""
    num_prompt = context // 2
    prompt = np.random.default_rng(0).integers(3, shape.vocab_size, num_prompt).astype(np.int32)
    task = Task(prompt=prompt, max_tokens=context - num_prompt, temperature=0.0, seed=0)
    engine = _engine(shape, dtype, context)
    none = EngineContestant(engine, "none", SpeculationParams(method="none", max_nodes=0))
    contestants: list[Contestant] = [none, GenerateContestant(shape.build(dtype), engine.model.threads)]
    replies: list[list[Reply]] = [[] for _ in contestants]
    for contestant in contestants:
        contestant.answer(Task(prompt=prompt, max_tokens=8, temperature=0.0, seed=0))
    for _ in range(rounds):
        for place, contestant in enumerate(contestants):
            replies[place].append(contestant.answer(task))
            on_answer()
    ours, theirs = (pool(one.label, None, given) for one, given in zip(contestants, replies, strict=True))
    plain, ratios = verify_curve(engine.model, context)
    return ShapeResult(
        dtype=dtype,
        parameters=engine.model.num_parameters,
        context=context,
        none_rate=ours.tokens_per_second,
        generate_rate=theirs.tokens_per_second,
        ratio=ours.ratio_to(theirs),
        plain_step_seconds=plain,
        verify_ratios=ratios,
    )


def _engine(shape: Shape, dtype: str, context: int) -> Engine:
    config = EngineConfig(max_model_len=4 * context, max_running=2, max_nodes=8)
    return start_engine(TargetModel.from_model(shape.build(dtype), config), config)


def verify_curve(
    model: TargetModel, context: int, repeats: int = 9, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[float]]:
    """Seconds of a forward of one token at `context`, and t(n) / t(1) for `ROWS`: medians of interleaved forwards."""
    cache = KvCache(model.new_store(num_blocks_for(context + max(ROWS))))
    store, rows = cache.store, cache.new_rows(context + max(ROWS))
    model.forward(pack([Segment(rows, np.zeros(context, np.int32))], store))
    store.commit(rows, np.arange(context, dtype=np.int32))
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in ROWS}
    for _ in range(repeats):
        for num_rows in ROWS:
            batch = pack([Segment(rows, np.zeros(num_rows, np.int32))], store)
            started = clock()
            model.forward(batch)[0, 0].item()
            seconds[num_rows].append(clock() - started)
    plain = median(seconds[1])
    return plain, [median(seconds[num_rows]) / plain for num_rows in ROWS]


def render_shapes(results: Sequence[ShapeResult]) -> str:
    """Two Markdown tables: rates, and the verify curve."""
    lines = [
        "| dtype | context | none tokens/s | generate tokens/s | none ÷ generate |",
        "| --- | --: | --: | --: | --: |",
    ]
    for result in results:
        rates = f"{result.none_rate:.0f} | {result.generate_rate:.0f} | {result.ratio:.2f}"
        lines.append(f"| {result.dtype} | {result.context} | {rates} |")
    lines += ["", *CURVE_HEAD]
    lines += [_curve_line(result.dtype, result.plain_step_seconds, result.verify_ratios) for result in results]
    return "\n".join(lines)


def _curve_line(name: str, plain: float, ratios: Sequence[float]) -> str:
    return f"| {name} | {1000 * plain:.1f} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print one model's curve. For another checkout: `PYTHONPATH=CHECKOUT python -P` with this file's path."""
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.shapes", description=__doc__)
    parser.add_argument("--model", default="gosling", help="a folder or a hub name")
    parser.add_argument("--weights", default="float32", choices=(*DTYPES, "int8"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=128, help="tokens before the rows")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--processor", action="store_true", help="count processor time, for busy machines")
    chosen = parser.parse_args(argv)
    kind = {"weights": "int8"} if chosen.weights == "int8" else {"dtype": chosen.weights}
    room = chosen.context + max(ROWS)
    config = EngineConfig(model=chosen.model, threads=chosen.threads, max_model_len=room, **kind)
    clock = time.process_time if chosen.processor else time.perf_counter
    model = TargetModel.load(config, lambda *_: None)
    curve = _curve_line(chosen.weights, *verify_curve(model, chosen.context, chosen.rounds, clock))
    sys.stdout.write("\n".join([*CURVE_HEAD, curve, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
