"""Which sequences run in the next step, and with how many tokens each. No tensors.

Owns the waiting queue and the running set. A request is admitted when the KV store has room for the
longest it can become, so nothing that runs is ever preempted. First come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from decoding.cache.store import KvStore
from decoding.config import EngineConfig
from decoding.costs.price import DraftBudget, Pricing
from decoding.engine.admission import room_needed
from decoding.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Task:
    """One sequence's part of a step: a prefill chunk of `chunk_len` tokens, then, unless the prompt goes on in the
    next step, the root and a tree within `budget` under it."""

    sequence: Sequence
    chunk_len: int
    budget: DraftBudget | None

    @property
    def end(self) -> int:
        """How many of the sequence's tokens the target knows after it."""
        return self.sequence.num_committed + self.chunk_len + (self.budget is not None)


class Scheduler:
    """pricing: says how much each sequence may draft."""

    def __init__(self, config: EngineConfig, store: KvStore, pricing: Pricing) -> None:
        self._config = config
        self._store = store
        self._pricing = pricing
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def retire(self, request_id: str) -> Sequence | None:
        """Take a sequence out, whatever its state, and free its slots; None if it is not here."""
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            handle = sequence.release()
            assert handle is not None, request_id
            self._store.free(handle)
            return sequence
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                self._waiting.remove(sequence)
                return sequence
        return None

    def all(self) -> Iterator[Sequence]:
        yield from self._running.values()
        yield from self._waiting

    def next_tasks(self) -> list[Task]:
        """Every decoding sequence, then prefill chunks in order of arrival while tokens are left.

        A chunk is never cut to fit: its borders depend on its request alone. The first one always runs, so
        prompts move on however many sequences decode.
        """
        self._admit()
        chunk_lens, tokens_left = self._chunks()
        chunks = [Task(each, size, None) for each, size in chunk_lens if each.num_pending > max(size, 1)]
        drafting = [each for each, size in chunk_lens if each.num_pending <= max(size, 1)]
        budgets = self._pricing.budgets([each.drafter.demand for each in drafting], max(tokens_left, 0))
        trees = [Task(each, each.num_pending - 1, budget) for each, budget in zip(drafting, budgets, strict=True)]
        return chunks + trees

    def _chunks(self) -> tuple[list[tuple[Sequence, int]], int]:
        """The sequences that run, each with the pending tokens it may bring, and how many tokens that leaves."""
        decoding = [sequence for sequence in self._running.values() if sequence.num_pending == 1]
        tokens_left = self._config.max_batch_rows - len(decoding)
        chosen = [(sequence, 0) for sequence in decoding]
        for sequence in self._running.values():
            size = min(sequence.num_pending, self._config.prefill_chunk)
            if sequence.num_pending > 1 and (size <= tokens_left or len(chosen) == len(decoding)):
                chosen.append((sequence, size))
                tokens_left -= size
        return chosen, tokens_left

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._config.max_running:
            handle = self._store.allocate(room_needed(self._waiting[0].request, self._config))
            if handle is None:
                return
            sequence = self._waiting.popleft()
            sequence.admit(handle)
            self._running[sequence.request.id] = sequence
