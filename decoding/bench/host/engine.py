"""An engine over the device that answers at once: no weights, and all else that serves on a GPU.

Owns what such an engine runs on. Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch

from decoding.bench.host.device import VOCAB_SIZE, Answers, move_nothing, runner_over
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvStore
from decoding.cache.prefix_index import PrefixIndex
from decoding.cache.top_token_store import TopTokenStore
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import CostCurve, Curves
from decoding.drafting.draft_model.state import DraftCost
from decoding.drafting.drafting import Drafting
from decoding.drafting.kept_worth import KeptWorth
from decoding.drafting.registry import AUTO, PLAIN
from decoding.engine.compiling.groups import run_group
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.engine import Engine
from decoding.engine.limits import GPU_BATCH, GPU_PROMPT_LOGITS, GPU_TREE_TOKENS, Limits
from decoding.engine.resources import Resources
from decoding.engine.step_costs import HostStep, StepCosts
from decoding.model.device.exactness import Exactness
from decoding.model.memory import CacheRoom
from decoding.model.target_model import TargetModel
from decoding.sampling.device.device_sampler import DeviceSampler
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.compiler import GrammarCompiler
from decoding.stores.successor_table import NUM_SUCCESSORS

PROMPT_LEN, MOST_TOKENS = 1024, 4096  # tokens of a prompt, and of a reply
FORWARD = CostCurve(base=7e-3, token=3e-5, key=1e-9, few=256, few_token=1e-5)  # an 8B on an H100, roughly


class GivenCosts(Curves):
    """Which no step changes."""

    def note_step(self, host: HostStep, costs: Sequence[DraftCost], num_tokens: int = 1) -> None:
        """A step of so many tokens went by."""

    def refine(self) -> None:
        """Nothing was timed."""


def engine_over(answers: Answers, num_requests: int, costs: Curves | None = None) -> Engine:
    """For so many requests at a time. costs: of its steps, whatever they take."""
    config = EngineConfig(max_running=num_requests)
    num_blocks = num_requests * (PROMPT_LEN + MOST_TOKENS) // BLOCK_LEN
    layer = LayerSpec(index=0, num_query_heads=1, num_kv_heads=1, key_dim=1, value_dim=1, scaling=1.0)
    store = KvStore([layer], num_blocks, torch.float32, torch.device("cpu"), move_all=move_nothing)
    pool = BlockPool(num_blocks, PrefixIndex())
    most_len = PROMPT_LEN + MOST_TOKENS
    limits = Limits(num_requests, GPU_BATCH, num_requests, 1.0, GPU_PROMPT_LOGITS, GPU_TREE_TOKENS)
    kernels = Kernels()
    kernels.load_plain()
    run_group(AUTO)
    return Engine(
        Resources(
            model=cast(TargetModel, SimpleNamespace(is_exact=True, vocab_size=VOCAB_SIZE, tower=None, blindness=None)),
            config=config,
            runner=runner_over(store, most_len + config.max_nodes, GPU_BATCH),
            exactness=Exactness(GPU_BATCH),
            store=store,
            pool=pool,
            tops=TopTokenStore(pool, NUM_SUCCESSORS),
            costs=cast(StepCosts, costs or GivenCosts(FORWARD)),
            limits=limits,
            room=CacheRoom(num_blocks * BLOCK_LEN, most_len, None),
            sampler=DeviceSampler(kernels=answers.kernels),
            drafting=Drafting(None, has_kernels=lambda method: method in (AUTO, PLAIN)),
            draft_model=None,
            kernels=kernels,
            grammars=GrammarCompiler(GrammarBuilder(config, VOCAB_SIZE, frozenset()).build),
            hidden=None,
            keeper=None,
            pictures=None,
            expected_bytes=0,
        ),
        KeptWorth(None, ""),
    )


def request_of(
    number: int, speculation: SpeculationParams, num_tokens: int = MOST_TOKENS, prompt_len: int = PROMPT_LEN
) -> Request:
    """One of its own prompt and session."""
    prompt = np.random.default_rng(number).integers(0, VOCAB_SIZE, prompt_len).astype(np.int32)
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.7, top_p=0.9, seed=number, ignore_eos=True)
    name = str(number)
    return Request(id=name, prompt=prompt, sampling=sampling, speculation=speculation, session_id=name)
