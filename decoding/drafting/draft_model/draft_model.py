"""The draft model: what it remembers of each sequence, and the forwards by which trees grow, all together.

Owns the draft model, its keys and values in the target's blocks, and each sequence's state. Knows nothing of how a
tree grows: growers do.
Invariant: a state's committed rows are the first tokens of its sequence, and no committed token is forwarded twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvRows, KvStore
from decoding.cache.stamped import FilledBlocks
from decoding.cache.state_pool import StatePool
from decoding.config import BUNDLED_MODEL, NO_NAMES, EngineConfig
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.drafting.draft_model.rounds import grow_in_rounds, unseen_of
from decoding.drafting.draft_model.state import DraftModelState, Fallback, GrowthRequest, KeptTokens
from decoding.drafting.draft_model.vocabulary import TokenMap
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.device.runner import Progress, silent
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.target_model import TargetModel
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS


class DraftModel:
    """model: ready to run; pool: of the target's blocks, in which the draft model's rows lie as well. most_rows: of the
    prompts that sequences may bring to one forward together; vocab_size: the target's; tokens: None where ids mean the
    same to both models."""

    reads_features = False

    def __init__(
        self,
        model: TargetModel,
        pool: BlockPool,
        most_rows: int,
        vocab_size: int,
        tokens: TokenMap | None = None,
        progress: Progress = silent,
    ) -> None:
        assert model.vocab_size >= NUM_SUCCESSORS, model.vocab_size
        self.model = model
        self.store: KvStore = model.new_store(pool.num_blocks)
        self._runner = model.runner_over(self.store, model.max_model_len, progress=progress)
        self._filled = FilledBlocks(pool)  # whose rows were all run here
        self._vocab_size = min(vocab_size, model.vocab_size) if tokens is None else vocab_size
        self._tokens = tokens
        self._most_rows = most_rows

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""
        return DraftModelState(request, self.store, self._vocab_size)

    def keep_features(self, kept: Iterable[KeptTokens]) -> None:
        """A draft model computes everything itself."""

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Bring every sequence up to date and grow the trees of those that are; which ones it can do no more for.

        One packed forward for what the draft model has not seen, then one for each depth of the trees. Of a sequence
        with more to catch up on than it has room for no tree is begun.
        """
        fallbacks = {request.state: found for request in requests if (found := self._fallback(request)) is not None}
        unseen = unseen_of((each for each in requests if each.state not in fallbacks), self._unseen, self._most_rows)
        longest = self.model.max_model_len
        return fallbacks | grow_in_rounds(unseen, self._forward, lambda each: longest - each.end, "draft model")

    def _fallback(self, request: GrowthRequest) -> Fallback | None:
        state, longest = request.state, self.model.max_model_len
        if request.end >= longest:
            return Fallback("context", f"the draft model's context ends after {longest} tokens")
        unseen = state.request.tokens[self._rows(request).length : request.end]
        if self._tokens is None and len(unseen) and unseen.max() >= self.model.vocab_size:
            return Fallback("vocabulary", f"the draft model knows no token {unseen.max()}")
        return None

    def _rows(self, request: GrowthRequest) -> KvRows:
        """Its rows. What layers carry is in a pool of the sequence's own, which goes when the rows go: nobody goes on
        from it."""
        rows = request.state.rows_in(request.table)
        if self.store.carried is not None and rows.state is None:
            rows.state = StatePool(self.store.carried.shape, self.store.state_dtype, self.store.device).open()
        return rows

    def _unseen(self, request: GrowthRequest, most_rows: int) -> Segment:
        """The next tokens to read, but for those in blocks that are filled, be it by another sequence of this step: all
        of them where layers carry a state, which is in no block."""
        rows, blocks = self._rows(request), request.table.blocks
        is_shared = self.store.carried is None
        while is_shared and rows.length + BLOCK_LEN < request.end and blocks[rows.length // BLOCK_LEN] in self._filled:
            rows.length += BLOCK_LEN - rows.length % BLOCK_LEN
        end = min(request.end, rows.length + most_rows)
        self._filled.note(blocks[: end // BLOCK_LEN])
        is_through = end == request.end and request.budget is not None
        return Segment(rows, request.state.request.tokens[rows.length : end], None, "last" if is_through else "none")

    def _forward(self, asked: Sequence[tuple[DraftModelState, Segment]]) -> list[TopTokens]:
        """One packed forward: the likeliest tokens after each segment's logit rows."""
        segments, tokens = [segment for _, segment in asked], self._tokens
        if tokens is not None:
            segments = [each._replace(tokens=tokens.to_draft[each.tokens]) for each in segments]
        batch = pack(segments, self.store)
        top = top_tokens(self._runner.launch(batch).logits_RV, NUM_SUCCESSORS)
        if tokens is not None:
            top = replace(top, ids=tokens.to_target[top.ids])
        return [top.rows(*borders) for borders in pairwise(batch.logit_offsets.tolist())]


def draft_name(config: EngineConfig) -> str | None:
    """Of the draft model that `config` asks for, if any."""
    if config.draft_model == "auto":
        return str(BUNDLED_FOLDER / "draft") if config.model == BUNDLED_MODEL else None
    return None if config.draft_model in NO_NAMES else config.draft_model


def load_draft_model(
    config: EngineConfig, progress: Progress, kept: KeptMeasurements | None = None
) -> TargetModel | None:
    """The draft model that goes with `config`, on the same device and in the same dtype, if one is asked for. kept:
    what earlier starts found.

    Raises what `TargetModel.load` raises.
    """
    name = draft_name(config)
    if name is None:
        return None
    weights = "auto" if gguf_paths(name, None, None) else config.weights  # a GGUF file is packed already
    own = replace(config, model=name, gguf_file=None, weights=weights, max_model_len=None, revision=None, threads=None)
    own = replace(own, exact=False, tensor_parallel_size=1)  # what it drafts may round as it likes; rank 0 has it whole
    own = replace(own, images=False)  # drafts are of text alone
    model = TargetModel.load(own, progress, kept)
    model.fixed_rows = 1
    if config.threads is not None:
        model.threads.limit(config.threads)  # and it may well be quicker on fewer
    return model
