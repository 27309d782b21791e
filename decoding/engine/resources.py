"""What an engine runs on: made once at its start, by `start`. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.cache.block_pool import BlockPool
from decoding.cache.kv_store import KvStore
from decoding.cache.prefix_keeper import PrefixKeeper
from decoding.cache.top_token_store import TopTokenStore
from decoding.config import EngineConfig
from decoding.drafting.block.block_drafting import BlockDrafting
from decoding.drafting.draft_model.draft_model import DraftModel
from decoding.drafting.drafting import Drafting
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.limits import Limits
from decoding.engine.step_costs import StepCosts
from decoding.model.device.exactness import Exactness
from decoding.model.device.runner import Runner
from decoding.model.features import LastHidden
from decoding.model.memory import CacheRoom
from decoding.model.target_model import TargetModel
from decoding.model.vision.seen import SeenPictures
from decoding.sampling.grammar.compiler import GrammarCompiler
from decoding.sampling.step_sampler import StepSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """runner: of the target's forwards over `store`; exactness: in which of its steps a token has the same bits however
    it is run; tops: what follows each token in the blocks of `pool`, where it is known; kernels: those of drafting,
    which may still be coming; hidden: what embeddings are made of, None where the model gives none; keeper: of prompts
    in files, None where none are kept; pictures: the rows of those seen, None where none are served;
    expected_bytes: of the process once the cache is full, sessions apart."""

    model: TargetModel
    config: EngineConfig
    runner: Runner
    exactness: Exactness
    store: KvStore
    pool: BlockPool
    tops: TopTokenStore
    costs: StepCosts
    limits: Limits
    room: CacheRoom
    sampler: StepSampler
    drafting: Drafting
    draft_model: DraftModel | HeadDrafting | BlockDrafting | None
    kernels: Kernels
    grammars: GrammarCompiler
    hidden: LastHidden | None
    keeper: PrefixKeeper | None
    pictures: SeenPictures | None
    expected_bytes: int
