"""Measures plain steps, trees and prompts of a model with random weights, beside transformers' `generate`.

Times are the least of interleaved rounds, since other work only adds to them. Knows nothing of options or tables.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from decoding.bench.architectures.drafted import drafted_ratios
from decoding.bench.shapes import Shape
from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.state_pool import StateShape
from decoding.config import EngineConfig
from decoding.config import Weights as RoundedWeights
from decoding.model.checkpoint import resolve_attention
from decoding.model.device.runner import silent
from decoding.model.state.rule_rows import RuleRows
from decoding.model.state.walk import CompiledWalk, Job, chain_walk
from decoding.model.target_model import TargetModel

WEIGHTS = ("float32", "bfloat16", "int8", "int4")
Weights = Literal["float32", "bfloat16", "int8", "int4"]
Clock = Callable[[], float]  # seconds
ROWS = (1, 2, 4, 8, 16)
CONTEXT, PROMPT_LEN = 64, 128
MOST_TOKENS = 448  # of a sequence: fewer than make the self-test run its longest chain
NUM_GENERATED = 8
READ_BYTES = 1 << 29  # of the matrix by which reading is measured


class Plan(NamedTuple):
    """threads: of both engines. clock: of the wall, or of this process's processors. is_drafted: whether replies are
    drafted, too. prompt_len: of prompts timed."""

    threads: int
    rounds: int
    clock: Clock
    is_drafted: bool = False
    prompt_len: int = PROMPT_LEN
    read_bytes: int = READ_BYTES


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: of a step of one token, of one of `generate`'s, of reading what a step must read once (active weights,
    and states there and back). row_ratios: t(n) / t(1) of trees of `ROWS` tokens. walk_shares: what the recurrences
    take of them, run alone. prompt_rate: tokens a second; dense_rate: of a Llama with as many parameters, where layers
    carry a state. drafted_ratios: the rate of `auto` over plain decoding's, with predictions that are right with each
    of `CHANCES`; empty where nothing was drafted."""

    name: str
    weights: str
    num_layers: int
    num_parameters: int
    num_active: int
    state_bytes: int
    step_seconds: float
    generate_seconds: float
    read_seconds: float
    row_ratios: list[float]
    walk_shares: list[float]
    prompt_rate: float
    dense_rate: float | None
    drafted_ratios: list[float] = []


def measure(name: str, config: PreTrainedConfig, weights: Weights, plan: Plan) -> Measured:
    stock = _build(config).to(getattr(torch, _dtype(weights)))
    num_active = active_parameters(stock)
    steps = Steps(_target(copy.deepcopy(stock), weights, plan.threads), plan)
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in ROWS}
    generated, read_rates, prompts = [], [], []
    for _ in range(plan.rounds):
        read_rates.append(_read_rate(plan))
        for num_rows in ROWS:
            seconds[num_rows].append(steps.tree_seconds(num_rows))
        generated.append(generate_seconds(stock, plan))
        prompts.append(steps.prompt_seconds())
    model, plain = steps.model, min(seconds[1])
    shape = steps.state_shape
    walks = [walk_seconds(shape, num_rows, plan) if shape is not None and shape.matrices else 0.0 for num_rows in ROWS]
    by_processor = plan.clock is time.process_time
    config_of_engine = _config(weights, plan.threads)
    drafted = drafted_ratios(model, config_of_engine, plan.rounds, by_processor) if plan.is_drafted else []
    del stock, steps
    dense = None if shape is None else _dense_prompt_seconds(config, model.num_parameters, weights, plan)
    need = num_active * model.num_bytes / model.num_parameters + 2 * model.state_bytes
    return Measured(
        name=name,
        weights=weights,
        num_layers=config.num_hidden_layers,
        num_parameters=model.num_parameters,
        num_active=num_active,
        state_bytes=model.state_bytes,
        step_seconds=plain,
        generate_seconds=min(generated),
        read_seconds=need / max(read_rates),
        row_ratios=[min(seconds[num_rows]) / plain for num_rows in ROWS],
        walk_shares=[walk / min(seconds[num_rows]) for walk, num_rows in zip(walks, ROWS, strict=True)],
        prompt_rate=plan.prompt_len / min(prompts),
        dense_rate=None if dense is None else plan.prompt_len / dense,
        drafted_ratios=drafted,
    )


def active_parameters(model: PreTrainedModel) -> int:
    """Those that a token reads: of experts the chosen ones, of an embedding that is no head nothing."""
    config: Any = model.config
    experts = sum(each.numel() for name, each in model.named_parameters() if ".experts." in name)
    if experts:
        experts -= experts * config.num_experts_per_tok // config.num_experts
    embedding = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    return model.num_parameters() - experts - embedding


class Steps:
    """Forwards of a model after `CONTEXT` tokens, none of which is committed."""

    def __init__(self, model: TargetModel, plan: Plan) -> None:
        self.model, self._plan = model, plan
        self._generator = np.random.default_rng(0)
        self._cache = KvCache(model.new_store(num_blocks_for(CONTEXT + max(ROWS)) + num_blocks_for(plan.prompt_len)))
        self._rows, self._prompt_rows = (self._cache.new_rows(size) for size in (CONTEXT + max(ROWS), plan.prompt_len))
        self._seconds(Segment(self._rows, self._tokens(CONTEXT), None, "last"))
        self._cache.store.commit(self._rows, np.arange(CONTEXT, dtype=np.int32))

    @property
    def state_shape(self) -> StateShape | None:
        """None where no layer carries anything."""
        carried = self._cache.store.carried
        return None if carried is None else carried.shape

    def tree_seconds(self, num_rows: int) -> float:
        """Of a root and the chain of candidates below it."""
        return self._seconds(Segment(self._rows, self._tokens(num_rows), np.arange(-1, num_rows - 1, dtype=np.int32)))

    def prompt_seconds(self) -> float:
        """Of a prompt in one forward."""
        return self._seconds(Segment(self._prompt_rows, self._tokens(self._plan.prompt_len), None, "last"))

    def _tokens(self, count: int) -> Any:
        return self._generator.integers(0, self.model.vocab_size, count, dtype=np.int32)

    def _seconds(self, segment: Segment) -> float:
        batch, clock = pack([segment], self._cache.store), self._plan.clock
        started = clock()
        self.model.forward(batch)
        return clock() - started


def generate_seconds(model: PreTrainedModel, plan: Plan) -> float:
    """Of a token after the first that transformers' own `generate` gives."""
    own: Any = model
    torch.set_num_threads(plan.threads)
    ids = torch.arange(CONTEXT)[None]
    seconds = []
    for num_tokens in (1, 1 + NUM_GENERATED):
        started = plan.clock()
        own.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
        seconds.append(plan.clock() - started)
    return (seconds[1] - seconds[0]) / NUM_GENERATED


def walk_seconds(shape: StateShape, num_rows: int, plan: Plan) -> float:
    """Of all recurrences of a step of so many rows, one after the other as layers call them."""
    torch.set_num_threads(plan.threads)
    walking, walk = CompiledWalk(), chain_walk(np.arange(num_rows))
    jobs = []
    for heads, keys, width in shape.matrices:
        rows = RuleRows(
            torch.randn(num_rows, heads, keys),
            torch.nn.functional.normalize(torch.randn(num_rows, heads, keys), dim=-1),
            torch.randn(num_rows, heads, width),
            torch.rand(num_rows, heads, 1, 1),
            torch.rand(num_rows, heads),
        )
        jobs.append(Job(rows, [torch.zeros(heads, keys, width)]))
    seconds = []
    for _ in range(plan.rounds + 1):
        started = plan.clock()
        for job in jobs:
            walking.run([job], walk)
        seconds.append(plan.clock() - started)
    return min(seconds)


def _build(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def _target(model: PreTrainedModel, weights: Weights, threads: int) -> TargetModel:
    return TargetModel(model, _config(weights, threads), silent)


def _dtype(weights: Weights) -> str:
    """Other weights are rounded from float32."""
    return "bfloat16" if weights == "bfloat16" else "float32"


def _config(weights: Weights, threads: int) -> EngineConfig:
    own: RoundedWeights = weights if weights == "int8" or weights == "int4" else "auto"
    attention = resolve_attention("auto", "cpu", _dtype(weights))
    return EngineConfig(max_model_len=MOST_TOKENS, threads=threads, weights=own, attention=attention)


def _dense_prompt_seconds(config: PreTrainedConfig, num_parameters: int, weights: Weights, plan: Plan) -> float:
    """Of a prompt through a Llama of as many layers, of the same width and vocabulary, with about `num_parameters`."""
    width, per_layer = config.hidden_size, (num_parameters - config.vocab_size * config.hidden_size)
    mlp_width = round((per_layer / config.num_hidden_layers - 4 * width * width) / (3 * width) / 64) * 64
    shape = Shape(
        num_layers=config.num_hidden_layers,
        width=width,
        num_heads=max(1, width // 64),
        mlp_width=max(64, mlp_width),
        vocab_size=config.vocab_size,
    )
    steps = Steps(_target(shape.build(_dtype(weights)), weights, plan.threads), plan)
    return min(steps.prompt_seconds() for _ in range(plan.rounds))


def _read_rate(plan: Plan) -> float:
    """Bytes a second that threads read of a matrix that no cache holds."""
    torch.set_num_threads(plan.threads)
    matrix, row = torch.ones(plan.read_bytes // 4 // 4096, 4096), torch.ones(4096)
    seconds = []
    for _ in range(3):
        started = plan.clock()
        torch.mv(matrix, row)
        seconds.append(plan.clock() - started)
    return plan.read_bytes / min(seconds)
