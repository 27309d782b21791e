"""The draft model: what it remembers of each sequence, and the rounds in which trees grow, all together.

Owns the draft model, its KV store and each sequence's state in it. Knows nothing of how a tree grows: growers do.
Invariant: a state's committed rows are the first tokens of its sequence, and no token is ever forwarded twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from decoding.cache.batch import Segment, pack
from decoding.cache.store import KvHandle, KvStore
from decoding.config import BUNDLED_MODEL, EngineConfig
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree
from decoding.drafting.draft_model.state import DraftModelState, Fallback, GrowthRequest
from decoding.drafting.draft_model.vocabulary import check_same_vocabulary
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import Progress, TargetModel
from decoding.model.timing import Timing
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS


class DraftModel:
    """model: ready to run; config: the engine's. vocab_size: the target's."""

    def __init__(self, model: TargetModel, config: EngineConfig, num_slots: int, vocab_size: int) -> None:
        assert model.vocab_size >= NUM_SUCCESSORS, model.vocab_size
        self.model = model
        self.calibration = Timing(model)
        self.store: KvStore = model.new_store(num_slots)
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._chunk = config.prefill_chunk
        self._extra_rows = config.max_nodes

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence; it takes slots when it is first drafted for."""
        return DraftModelState(request, self.store, self._vocab_size)

    @property
    def num_bytes(self) -> int:
        """Of the weights and of all slots."""
        return self.model.num_bytes + self.store.total * self.model.bytes_per_slot

    def propose_batch(self, requests: Sequence[GrowthRequest]) -> list[DraftTree | Fallback | None]:
        """Bring every sequence up to date and grow the trees of those that are; None where there is no budget.

        One packed forward for what the draft model has not seen, then one for each depth of the trees. A sequence with
        more than a chunk to catch up on gets a tree of its root alone.
        """
        fallbacks = {request.state: found for request in requests if (found := self._fallback(request)) is not None}
        growing = self._catch_up(
            [each for each in requests if each.state not in fallbacks and each.end > each.state.num_committed]
        )
        while growing:
            growing = self._round(growing, fallbacks)
        return [fallbacks.get(request.state) or _proposal(request) for request in requests]

    def _fallback(self, request: GrowthRequest) -> Fallback | None:
        state, longest = request.state, self.model.max_model_len
        if request.end >= longest:
            return Fallback("context", f"the draft model's context ends after {longest} tokens")
        unseen = state.request.tokens[state.num_committed : request.end]
        if len(unseen) and unseen.max() >= self.model.vocab_size:
            return Fallback("vocabulary", f"the draft model knows no token {unseen.max()}")
        if state.handle is None:
            handle = self._allocate(min(state.request.max_total, longest))
            if handle is None:
                return Fallback("slots", "the draft model is out of slots")
            state.take_room(handle)
        return None

    def _allocate(self, max_tokens: int) -> KvHandle | None:
        """Room for the tokens and for trees, smaller ones where room is short."""
        extra = self._extra_rows
        while extra > 0:
            handle = self.store.allocate(max_tokens + extra)
            if handle is not None:
                return handle
            extra //= 2
        return None

    def _catch_up(self, requests: Sequence[GrowthRequest]) -> list[tuple[DraftModelState, TopTokens]]:
        """Forward what the draft model has not seen; what it says after the root of each sequence that is through."""
        segments = [self._unseen(request) for request in requests]
        tops = self._forward([request.state for request in requests], segments)
        ready = []
        for request, segment, top in zip(requests, segments, tops, strict=True):
            state = request.state
            self.store.commit(segment.handle, np.arange(len(segment.tokens), dtype=np.int32))
            state.note_read(len(segment.tokens))
            if segment.logits == "last" and request.budget is not None and state.grower is not None:
                room = segment.handle.capacity - segment.handle.length
                state.grower.begin(request.budget, room, self.model.max_model_len - request.end)
                ready.append((state, top))
        return ready

    def _unseen(self, request: GrowthRequest) -> Segment:
        handle = request.state.handle
        assert handle is not None
        end = min(request.end, handle.length + self._chunk)
        is_through = end == request.end and request.budget is not None
        tokens = request.state.request.tokens[handle.length : end]
        return Segment(handle, tokens, None, "last" if is_through else "none")

    def _round(
        self, growing: Sequence[tuple[DraftModelState, TopTokens]], fallbacks: dict[DraftModelState, Fallback]
    ) -> list[tuple[DraftModelState, TopTokens]]:
        """Let every tree grow by a depth and forward the rows they ask for; those that go on growing."""
        states, segments = [], []
        for state, top in growing:
            if not np.isfinite(top.probabilities).all():
                fallbacks[state] = Fallback("nan", "the draft model gave numbers that are not finite")
                continue
            assert state.grower is not None
            assert state.handle is not None
            rows = state.grower.grow(top)
            if rows is not None:
                num_written = len(rows.parents) - len(rows.tokens)
                states.append(state)
                segments.append(Segment(state.handle, rows.tokens, rows.parents, "all", num_written))
        return list(zip(states, self._forward(states, segments), strict=True))

    def _forward(self, states: Sequence[DraftModelState], segments: Sequence[Segment]) -> list[TopTokens]:
        """One packed forward, paid by the sequences; the likeliest tokens after each segment's logit rows."""
        if not segments:
            return []
        started = time.perf_counter()
        batch = pack(segments, self.store)
        top = top_tokens(self.model.forward(batch), NUM_SUCCESSORS)
        seconds = time.perf_counter() - started
        for state, segment in zip(states, segments, strict=True):
            state.note_seconds(seconds * len(segment.tokens) / batch.num_tokens)
        return [TopTokens(top.ids[a:b], top.probabilities[a:b]) for a, b in pairwise(batch.logit_offsets.tolist())]


def _proposal(request: GrowthRequest) -> DraftTree | None:
    if request.budget is None or request.state.grower is None:
        return None
    return request.state.grower.propose(request.budget)


def load_draft_model(config: EngineConfig, progress: Progress) -> TargetModel | None:
    """The draft model that goes with `config`, on the same device and in the same dtype, if one is asked for.

    Raises ConfigError where its vocabulary is not the target's, and what `TargetModel.load` raises.
    """
    name = config.draft_model
    if name == "auto":
        name = str(BUNDLED_FOLDER / "draft") if config.model == BUNDLED_MODEL else "none"
    if name == "none":
        return None
    check_same_vocabulary(config, name)
    model = TargetModel.load(replace(config, model=name, max_model_len=None, revision=None, threads=None), progress)
    if config.threads is not None:
        model.threads.limit(config.threads)  # and it may well be quicker on fewer
    return model
