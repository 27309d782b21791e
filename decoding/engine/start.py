"""How an engine starts: models loaded, kernels compiled, costs measured, memory sized, every kind of step run once.

Owns the order of these. What they make is an engine's `Resources`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import torch

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvStore
from decoding.cache.prefix_folder import PrefixFolder
from decoding.cache.prefix_index import DIGEST_BYTES, PrefixIndex
from decoding.cache.prefix_keeper import PrefixKeeper
from decoding.cache.state_pool import StatePool
from decoding.cache.top_token_store import TopTokenStore
from decoding.config import EngineConfig
from decoding.drafting.block.block_drafting import BlockDrafting
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.draft_model.draft_model import DraftModel, draft_name, load_draft_model
from decoding.drafting.draft_model.vocabulary import token_map
from decoding.drafting.drafting import Drafting
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.head_loading import load_head_model
from decoding.drafting.kept_worth import KeptWorth
from decoding.drafting.stand.static_tree import read_tree
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.engine import Engine
from decoding.engine.limits import Limits, limits_for
from decoding.engine.resources import Resources
from decoding.engine.step_costs import StepCosts
from decoding.engine.warm_up import run_first
from decoding.errors import ConfigError, ModelRefused
from decoding.model.checkpoint import resolve
from decoding.model.device.exactness import exactness
from decoding.model.device.graph_runner import BUCKETS
from decoding.model.device.runner import Progress, silent
from decoding.model.features import LastHidden
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.loading import packed_kinds
from decoding.model.memory import (
    affordable_slots,
    captured_bytes,
    expected_bytes,
    meter_on,
    room_for,
    state_room,
    step_bytes,
)
from decoding.model.parallel.leader import LeadModel
from decoding.model.refusal import refusing
from decoding.model.target_model import TargetModel
from decoding.model.vision.seen import SeenPictures
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.sampling.grammar.compiler import GrammarCompiler
from decoding.sampling.step_sampler import sampler_on
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

logger = logging.getLogger(__name__)
EDITED_BYTES = 4  # of a logit that processors change in a copy
AnyDraftModel = TargetModel | HeadModel | BlockModel


def load_engine(
    config: EngineConfig,
    on_progress: Progress = silent,
    kept: KeptMeasurements | None = None,
    kernels: Kernels | None = None,
) -> Engine:
    """Load `config.model`, and its draft model or head, and make an engine of it. Arguments as of `start_engine`.

    Raises ModelRefused or ConfigError.
    """
    started = time.perf_counter()
    on_progress("Compiling what every reply needs", 0.0)
    kernels = kernels or Kernels()
    kernels.load_plain()
    resolved, _ = resolve(config)
    with refusing(f"model {config.model!r} cannot be served"):
        kinds = packed_kinds(resolved)
        if kinds:
            on_progress("Compiling what multiplies packed weights", 0.0)
            kernels.load_weights(kinds)
        if resolved.attention == "exact":
            on_progress("Compiling attention and layers", 0.0)
            kernels.wait_for_layers()
        return _load(config, on_progress, kept, kernels, started)


def _load(
    config: EngineConfig, on_progress: Progress, kept: KeptMeasurements | None, kernels: Kernels, started: float
) -> Engine:
    kind = LeadModel if config.tensor_parallel_size > 1 else TargetModel
    model = kind.load(config, lambda sentence, fraction: on_progress(sentence, 0.7 * fraction), kept)

    def on_draft_progress(sentence: str, fraction: float) -> None:
        on_progress(sentence, 0.7 + 0.1 * fraction)

    head = load_head_model(config, model, on_draft_progress)
    draft_model = head or load_draft_model(config, on_draft_progress, kept)
    return start_engine(model, config, on_progress, draft_model, kept, kernels, started)


def start_engine(
    model: TargetModel,
    config: EngineConfig,
    on_progress: Progress = silent,
    draft_model: AnyDraftModel | None = None,
    kept: KeptMeasurements | None = None,
    kernels: Kernels | None = None,
    started: float | None = None,
) -> Engine:
    """An engine of a model that is ready to run.

    on_progress: told of start-up work, a sentence and a fraction. draft_model: the one that `config` names, or one of
    the same vocabulary as `model`, or a head of it. kept: timings of earlier starts. kernels: those of drafting, if
    they may come later. started: when loading began, on the clock of `time.perf_counter`.
    """
    started = time.perf_counter() if started is None else started
    kernels = kernels or Kernels()
    on_progress("Compiling the drafters", 0.8)
    kernels.load_plain()
    kernels.load()
    on_progress("Measuring what a token costs on this machine", 0.9)
    costs = StepCosts(model, draft_model, kept)
    worth = KeptWorth(kept if draft_model else None, _pair(model, config, draft_model))
    engine = Engine(_resources(model, config, draft_model, costs, kernels, on_progress), worth)
    if not engine.is_exact and engine.exactness.reason is not None:
        logger.warning("Drafted replies may differ from plain ones. %s", engine.exactness.reason)
    on_progress("Warming up", 0.95)
    if model.device.type != "cpu":
        _compile_samplers(engine, draft_model)
    run_first(engine, model, draft_model is not None and not kernels.missing)
    engine.start_afresh(time.perf_counter() - started)
    kernels.load_beside()
    return engine


def _pair(model: TargetModel, config: EngineConfig, draft_model: AnyDraftModel | None) -> str:
    """Names a target and what drafts for it."""
    drafter = draft_model.fingerprint if draft_model else None
    return f"{model.fingerprint} {drafter} {config.draft_model} {config.draft_head}"


def _compile_samplers(engine: Engine, draft_model: AnyDraftModel | None) -> None:
    """Have everything compiled that any step may call on a device, so that none waits for a compiler."""
    model = engine.model
    engine.sampler.warm_up(torch.zeros(1 + engine.config.max_nodes, model.num_logits, device=model.device))
    if draft_model is not None:
        top_tokens(torch.zeros(1, draft_model.num_logits, device=model.device), NUM_SUCCESSORS)


def _resources(
    model: TargetModel,
    config: EngineConfig,
    draft_model: AnyDraftModel | None,
    costs: StepCosts,
    kernels: Kernels,
    on_progress: Progress,
) -> Resources:
    """Everything that is sized by what the machine affords."""

    def on_capture(sentence: str, fraction: float) -> None:
        on_progress(sentence, 0.9 + 0.05 * fraction)

    config = replace(config, exact=model.is_row_exact)
    models = [each for each in (model, draft_model) if each]
    slot_bytes = sum(each.bytes_per_slot for each in models) + TopTokenStore.bytes_per_slot(NUM_SUCCESSORS)
    joint_len = model.tower.joint_len if model.tower else 0
    slots = affordable_slots(config, model.device, slot_bytes)
    most = limits_for(config, costs.curve, model.device.type, slots, joint_len)
    largest = _step_bytes(models, config, most, on_progress)
    slots = affordable_slots(config, model.device, slot_bytes, step_bytes=largest)
    limits = limits_for(config, costs.curve, model.device.type, slots, joint_len)
    state_bytes, max_checkpoints, draft_bytes = 0, 0, draft_model.state_bytes if draft_model else 0
    if model.state_bytes or draft_bytes:
        states_room = state_room(config, model.device, model.state_bytes, limits.max_running, draft_bytes, largest)
        state_bytes, max_checkpoints = states_room.num_bytes, states_room.max_checkpoints
        limits = replace(limits, max_running=states_room.max_running)
        slots = affordable_slots(config, model.device, slot_bytes, state_bytes, largest)
    room = room_for(model.max_model_len, config, slots, limits.max_running)
    store = model.new_store(room.num_slots // BLOCK_LEN)
    states = StatePool(store.carried.shape, store.state_dtype, store.device, max_checkpoints) if store.carried else None
    pool = BlockPool(store.num_blocks, PrefixIndex() if config.prefix_cache else None, states)
    proposer = _proposer(config, draft_model, pool, limits.most_rows, model.vocab_size, on_capture)
    hidden = _last_hidden(model)
    runner = model.runner_over(store, room.max_model_len + config.max_nodes, limits.max_batch_rows, on_capture)
    code_bytes = sum(each.code_bytes(limits.most_rows) for each in models)
    return Resources(
        model=model,
        config=config,
        runner=runner,
        exactness=exactness(model, runner, store, limits.most_rows),
        store=store,
        pool=pool,
        tops=TopTokenStore(pool, NUM_SUCCESSORS),
        costs=costs,
        limits=limits,
        room=room,
        sampler=sampler_on(model.device),
        drafting=Drafting(proposer, kernels.has, read_tree(config.tree) if config.tree else None),
        draft_model=proposer,
        kernels=kernels,
        hidden=hidden,
        keeper=keeper_for(model, config, store, pool),
        pictures=SeenPictures(model.tower, config.image_bytes) if model.tower else None,
        grammars=GrammarCompiler(GrammarBuilder(config, model.vocab_size, model.eos_token_ids).build),
        expected_bytes=config.tensor_parallel_size  # of which no rank takes more than this one, which drafts as well
        * expected_bytes(model.device, room.num_slots * slot_bytes + state_bytes + code_bytes),
    )


def _last_hidden(model: TargetModel) -> LastHidden | None:
    """What embeddings are made of. It is there before forwards are captured, which record it then."""
    try:
        return model.last_hidden()
    except ModelRefused as refused:
        logger.info("The model gives no embeddings: %s.", refused)
        return None


def keeper_for(model: TargetModel, config: EngineConfig, store: KvStore, pool: BlockPool) -> PrefixKeeper | None:
    """What keeps prompts in the folder that `config` names. Raises ConfigError where that cannot be done."""
    if config.prefix_dir is None:
        return None
    for is_so, reason in (
        (not config.prefix_cache, "the prefix cache is off"),
        (model.device.type != "cpu", "the cache is in a device's memory"),
        (config.tensor_parallel_size > 1, "the cache is divided among several processes"),
        (pool.states is not None, "this model's layers carry states beside it"),
        (config.prefix_bytes < store.block_bytes, f"--prefix-bytes is less than one block's {store.block_bytes:,}"),
    ):
        if is_so:
            raise ConfigError(f"prompts cannot be kept in {config.prefix_dir}: {reason}")
    kind = blake2b(f"{model.fingerprint} {store.layout}".encode(), digest_size=DIGEST_BYTES).digest()
    folder = PrefixFolder(Path(config.prefix_dir).expanduser(), config.prefix_bytes, kind, store.block_bytes)
    return PrefixKeeper(folder, store, pool)


def _step_bytes(models: Sequence[AnyDraftModel], config: EngineConfig, limits: Limits, on_progress: Progress) -> int:
    """What steps take of a device beside weights and cache, where that is not left to chance."""
    meter = meter_on(models[0].device)
    if meter is None:
        return 0
    on_progress("Measuring what the largest step takes of the memory", 0.9)
    most_rows, total = limits.most_rows, limits.max_logits * models[0].vocab_size * EDITED_BYTES
    for each in models:
        captured = captured_bytes(each, each.max_model_len + config.max_nodes, most_rows, meter)
        by_operations = step_bytes(each, most_rows, limits.max_logits, meter)
        total += captured + by_operations if most_rows > BUCKETS[-1] else max(captured, by_operations)
    return total


def _proposer(
    config: EngineConfig,
    draft_model: AnyDraftModel | None,
    pool: BlockPool,
    most_tokens: int,
    vocab_size: int,
    progress: Progress,
) -> DraftModel | HeadDrafting | BlockDrafting | None:
    """What drafts with a draft model or a head."""
    if draft_model is None:
        return None
    if isinstance(draft_model, BlockModel):
        return BlockDrafting(draft_model, pool)
    if isinstance(draft_model, HeadModel):
        return HeadDrafting(draft_model, pool, most_tokens, progress)
    name = draft_name(config)
    tokens = token_map(config, name, vocab_size, draft_model.vocab_size) if name else None
    return DraftModel(draft_model, pool, most_tokens, vocab_size, tokens, progress)
