"""Which sequences run in the next step, with how many tokens each, and in which blocks. No tensors.

Owns the waiting queue and the running set. Sequences are admitted in order of arrival, as soon as their known tokens
find room; when blocks run out the youngest gives up its own and is run again later, to the same tokens.
Invariant: the oldest running sequence always finds room, so whatever runs ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from decoding.cache.block_pool import BLOCK_LEN, BlockPool, BlockTable, num_blocks_for
from decoding.costs.price import DraftBudget, Pricing
from decoding.engine.limits import Limits
from decoding.engine.sequence import Sequence

PLANNED_SHARE = 0.8  # of the seconds that prompts may delay a step by: one step in a hundred takes a fifth longer


@dataclass(frozen=True, slots=True)
class Task:
    """One sequence's part of a step: a prefill chunk of `chunk_len` tokens, then, unless the prompt goes on in the
    next step, the root and a tree within `budget` under it."""

    sequence: Sequence
    chunk_len: int
    budget: DraftBudget | None

    @property
    def table(self) -> BlockTable:
        """The blocks that it runs in."""
        assert self.sequence.rows is not None, self.sequence.request.id
        return self.sequence.rows.table

    @property
    def end(self) -> int:
        """How many of the sequence's tokens the target knows after it."""
        return self.sequence.num_committed + self.chunk_len + (self.budget is not None)


@dataclass(slots=True)
class Reuse:
    """Of one step. queries: tokens of the prompts admitted; hits: those that need not be run; preemptions: sequences
    that gave up their room."""

    queries: int = 0
    hits: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Plan:
    """A step in the making: who runs with how many of its pending tokens, and how many more tokens there may be."""

    tokens_left: int
    sizes: dict[Sequence, int] = field(default_factory=dict)

    def add(self, sequence: Sequence, size: int) -> None:
        self.sizes[sequence] = size
        self.tokens_left -= size

    def unplanned(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        return [each for each in sequences if each not in self.sizes]


class Scheduler:
    """pricing: says how much each sequence may draft, and how long a prompt's tokens take."""

    def __init__(self, limits: Limits, pool: BlockPool, pricing: Pricing) -> None:
        self._limits = limits
        self._pool = pool
        self._pricing = pricing
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self.reuse = Reuse()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def retire(self, request_id: str) -> Sequence | None:
        """Take a sequence out, whatever its state, and free its blocks; None if it is not here."""
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            sequence.release(self._pool)
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
        """Every decoding sequence, prompts as far as they may delay those, and trees in what room is left."""
        self.reuse = Reuse()
        self._drop_trees()
        self._admit()
        plan = _Plan(self._limits.max_batch_rows)
        self._plan_decoding(plan)
        self._plan_prompts(plan)
        chunks = [Task(each, size, None) for each, size in plan.sizes.items() if each.num_pending > size]
        drafting = [each for each, size in plan.sizes.items() if each.num_pending == size]
        budgets = self._pricing.budgets([each.drafter.demand for each in drafting], max(plan.tokens_left, 0))
        trees = [Task(each, each.num_pending - 1, budget) for each, budget in zip(drafting, budgets, strict=True)]
        return chunks + [self._with_room(task) for task in trees]

    def _drop_trees(self) -> None:
        """Leave running sequences the blocks that they have tokens in: the last step's trees are done with."""
        for sequence in self._running.values():
            assert sequence.rows is not None
            self._pool.resize(sequence.rows.table, sequence.num_committed)

    def _admit(self) -> None:
        """Who came first, as long as the tokens it has find room beside what is owed to those that run."""
        while self._waiting and len(self._running) < self._limits.max_running:
            sequence, num_owed = self._waiting[0], sum(map(_blocks_owed, self._running.values()))
            if self._running and self._pool.num_available <= num_owed:
                return
            num_found = sequence.find_rows(self._pool)
            num_missing = num_blocks_for(sequence.request.num_tokens) - num_found // BLOCK_LEN
            if self._running and self._pool.num_available < num_owed + num_missing:
                sequence.release(self._pool)
                return
            self._running[sequence.request.id] = self._waiting.popleft()
            self.reuse.queries += sequence.note_admission()
            self.reuse.hits += sequence.note_found(num_found)

    def _plan_decoding(self, plan: _Plan) -> None:
        """Every sequence whose prompt is through, the oldest first."""
        for sequence in sorted(self._running.values(), key=lambda each: each.arrived):
            if sequence.num_pending == 1 and self._make_room(sequence, 1, plan):
                plan.add(sequence, 1)

    def _plan_prompts(self, plan: _Plan) -> None:
        """Prompts, the one that is soonest through first, but for those that have waited for longer than they take.

        Beside sequences that decode they get the seconds they may take, or a block's tokens where that is more.
        """
        now = time.monotonic()
        seconds_left = PLANNED_SHARE * self._limits.max_step_seconds if plan.sizes else float("inf")
        prompts = [each for each in self._running.values() if each.num_pending > 1]
        waits = {each: self._seconds(each, each.num_pending) - (now - each.arrived) for each in prompts}
        is_first = True
        for sequence in sorted(prompts, key=lambda each: waits[each]):
            if sequence.rows is None:  # preempted for one before it
                continue
            self.reuse.hits += sequence.note_found(sequence.find_rows(self._pool))
            size = min(sequence.num_pending, plan.tokens_left)
            seconds = self._seconds(sequence, size)
            if seconds > seconds_left:
                size = max(int(size * seconds_left / seconds), BLOCK_LEN * is_first)
            if size < sequence.num_pending:
                size -= (sequence.num_committed + size) % BLOCK_LEN  # so that whole blocks can be found
            if size > 0 and self._make_room(sequence, size, plan):
                seconds_left -= self._seconds(sequence, size)
                plan.add(sequence, size)
                is_first = False

    def _with_room(self, task: Task) -> Task:
        """The task with as much of its budget as there are blocks for."""
        assert task.budget is not None
        table, end = task.table, task.end
        if self._pool.resize(table, end + task.budget.max_nodes):
            return task
        self._pool.resize(table, table.capacity + self._pool.num_available * BLOCK_LEN)
        return replace(task, budget=replace(task.budget, max_nodes=table.capacity - end))

    def _make_room(self, sequence: Sequence, size: int, plan: _Plan) -> bool:
        """Blocks for the next `size` tokens, if need be of younger sequences; False where there are none to be had.

        What the blocks will hold after the coming step can be found from now on, so who is planned stays.
        """
        if sequence.rows is None:
            return False
        end = sequence.num_committed + size
        while not self._pool.resize(sequence.rows.table, end):
            youngest = max(plan.unplanned(self._running.values()), key=lambda each: each.arrived)
            if youngest is sequence:
                return False
            self._preempt(youngest)
        self._pool.publish(sequence.rows.table, sequence.request.tokens[:end])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.request.id]
        sequence.release(self._pool)
        sequence.note_preemption()
        self._waiting.appendleft(sequence)
        self.reuse.preemptions += 1

    def _seconds(self, sequence: Sequence, num_tokens: int) -> float:
        """What so many of its next tokens add to a step."""
        return self._pricing.seconds_of_rows(num_tokens, sequence.num_committed, sequence.drafter.demand)


def _blocks_owed(sequence: Sequence) -> int:
    """That a running sequence needs for the tokens it has, and one to grow by."""
    assert sequence.rows is not None
    return max(0, num_blocks_for(sequence.request.num_tokens) + 1 - sequence.rows.table.num_blocks)
