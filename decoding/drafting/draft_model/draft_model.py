"""The draft model: what it remembers of each request, and the rounds in which trees grow, all requests together.

Owns the draft model, its KV store and each request's seat in it. Knows nothing of how a tree grows: growers do.
Invariant: a seat's committed rows are the first tokens of its request, and no token is ever forwarded twice.
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
from decoding.drafting.draft_model.seat import Ask, Refusal, Seat
from decoding.drafting.draft_model.vocabulary import check_same_vocabulary
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import Progress, TargetModel
from decoding.model.timing import Timing
from decoding.sampling.sampling import top_tokens
from decoding.stores.ngram import NUM_SUCCESSORS


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

    def open(self, request: Request) -> Seat:
        """A seat, which takes slots when it is first drafted for."""
        return Seat(request, self.store, self._vocab_size)

    @property
    def num_bytes(self) -> int:
        """Of the weights and of all slots."""
        return self.model.num_bytes + self.store.total * self.model.bytes_per_slot

    def draft(self, asks: Sequence[Ask]) -> dict[Seat, Refusal]:
        """Bring every seat up to date and grow the trees of those that are; the growers hold the trees then.

        One packed forward for what the draft model has not seen, then one for each depth of the trees. A seat with
        more than a chunk to catch up on gets no tree in this step.
        """
        refusals = {ask.seat: refusal for ask in asks if (refusal := self._refusal(ask)) is not None}
        asks = [ask for ask in asks if ask.seat not in refusals and ask.end > ask.seat.num_committed]
        growing = self._catch_up(asks)
        while growing:
            growing = self._round(growing, refusals)
        return refusals

    def _refusal(self, ask: Ask) -> Refusal | None:
        seat, longest = ask.seat, self.model.max_model_len
        if ask.end >= longest:
            return Refusal(seat, "context", f"the draft model's context ends after {longest} tokens")
        unseen = seat.request.tokens[seat.num_committed : ask.end]
        if len(unseen) and unseen.max() >= self.model.vocab_size:
            return Refusal(seat, "vocabulary", f"the draft model knows no token {unseen.max()}")
        if seat.handle is None:
            seat.handle = self._allocate(min(seat.request.max_total, longest))
            if seat.handle is None:
                return Refusal(seat, "slots", "the draft model is out of slots")
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

    def _catch_up(self, asks: Sequence[Ask]) -> list[tuple[Seat, TopTokens]]:
        """Forward what the draft model has not seen; what it says after the root of each seat that is through."""
        segments = [self._unseen(ask) for ask in asks]
        tops = self._forward([ask.seat for ask in asks], segments)
        ready = []
        for ask, segment, top in zip(asks, segments, tops, strict=True):
            self.store.commit(segment.handle, np.arange(len(segment.tokens), dtype=np.int32))
            ask.seat.note_read(len(segment.tokens))
            if segment.logits == "last" and ask.allowance is not None and ask.seat.grower is not None:
                room = segment.handle.capacity - segment.handle.length
                ask.seat.grower.begin(ask.allowance, room, self.model.max_model_len - ask.end)
                ready.append((ask.seat, top))
        return ready

    def _unseen(self, ask: Ask) -> Segment:
        handle = ask.seat.handle
        assert handle is not None
        end = min(ask.end, handle.length + self._chunk)
        is_through = end == ask.end and ask.allowance is not None
        return Segment(handle, ask.seat.request.tokens[handle.length : end], None, "last" if is_through else "none")

    def _round(
        self, growing: Sequence[tuple[Seat, TopTokens]], refusals: dict[Seat, Refusal]
    ) -> list[tuple[Seat, TopTokens]]:
        """Let every tree grow by a depth and forward the rows they ask for; those that go on growing."""
        seats, segments = [], []
        for seat, top in growing:
            if not np.isfinite(top.probabilities).all():
                refusals[seat] = Refusal(seat, "nan", "the draft model gave numbers that are not finite")
                continue
            assert seat.grower is not None
            assert seat.handle is not None
            rows = seat.grower.grow(top)
            if rows is not None:
                num_written = len(rows.parents) - len(rows.tokens)
                seats.append(seat)
                segments.append(Segment(seat.handle, rows.tokens, rows.parents, "all", num_written))
        return list(zip(seats, self._forward(seats, segments), strict=True))

    def _forward(self, seats: Sequence[Seat], segments: Sequence[Segment]) -> list[TopTokens]:
        """One packed forward, paid by the seats; the likeliest tokens after each segment's logit rows."""
        if not segments:
            return []
        started = time.perf_counter()
        batch = pack(segments, self.store)
        top = top_tokens(self.model.forward(batch), NUM_SUCCESSORS)
        seconds = time.perf_counter() - started
        for seat, segment in zip(seats, segments, strict=True):
            seat.note_seconds(seconds * len(segment.tokens) / batch.num_rows)
        return [TopTokens(top.ids[a:b], top.probabilities[a:b]) for a, b in pairwise(batch.logit_offsets.tolist())]


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
