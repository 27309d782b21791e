"""Which sequences run in the next step, with how many tokens each, and in which blocks. No tensors.

Owns who waits and who runs. Whose turn it is and who makes room is the fair queue's to say: a sequence is admitted as
soon as its known tokens find room, one that gives up its blocks is run again later, to the same tokens.
Invariant: who came first of those that run always finds room, so whatever runs ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import isfinite

from decoding.cache.block_pool import BLOCK_LEN, BlockPool, num_blocks_for
from decoding.costs.price import DraftBudget
from decoding.costs.pricing import Pricing, fitted
from decoding.engine.limits import Limits
from decoding.engine.sequence import Sequence
from decoding.engine.sequence_step import SequenceStep
from decoding.engine.sharing.fair_queue import FairQueue
from decoding.engine.sharing.step_plan import LongPrompts, Prompt, StepPlan, StepShares

PLANNED_SHARE = 0.8  # of the seconds that prompts may delay a step by: one step in a hundred takes a fifth longer


@dataclass(slots=True)
class Reuse:
    """Of one step. queries: tokens of the prompts admitted; hits: those that need not be run; preemptions: sequences
    that gave up their room."""

    queries: int = 0
    hits: int = 0
    preemptions: int = 0


class Scheduler:
    """pricing: says how long a prompt's tokens take."""

    def __init__(self, limits: Limits, pool: BlockPool, pricing: Pricing) -> None:
        self._limits = limits
        self._pool = pool
        self._pricing = pricing
        self._queue: FairQueue[Sequence] = FairQueue()
        self._sequences: dict[str, Sequence] = {}  # by their requests' ids
        self._shares = StepShares(limits.max_batch_rows)
        self._long_prompts = LongPrompts()
        self._num_steps = 0
        self._last_step: dict[Sequence, int] = {}  # in which each that decodes ran
        self._plan = StepPlan(0, {}, 0, 0)  # of the step under way
        self._grown: list[Sequence] = []  # who has blocks for a tree
        self._turned_away: tuple[Sequence | None, int] = None, 0  # by how many that ran
        self.reuse = Reuse()

    @property
    def num_waiting(self) -> int:
        return self._queue.num_waiting

    @property
    def num_running(self) -> int:
        return len(self._queue.running)

    @property
    def num_open(self) -> int:
        """How many wait or run."""
        return len(self._sequences)

    @property
    def num_owed(self) -> int:
        """Blocks that those that run need for the tokens they have, and one each to grow by."""
        return sum(map(_blocks_owed, self._queue.running))

    @property
    def is_full(self) -> bool:
        """Whether whose turn it is would be turned away again, as far as can be told: as many run as when it was."""
        sequence = self._queue.next()
        return sequence is None or self._turned_away == (sequence, self.num_running)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request.id] = sequence
        self._queue.add(sequence)

    def retire(self, request_id: str) -> Sequence | None:
        """Take a sequence out, whatever its state, and free its blocks; None if it is not here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._queue.remove(sequence)
            self._last_step.pop(sequence, None)
            sequence.release(self._pool)
        return sequence

    def all(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    @property
    def running(self) -> Collection[Sequence]:
        return self._queue.running

    def next_steps(self) -> list[SequenceStep]:
        """Every decoding sequence, prompts as far as they may delay those, and what room is left for trees."""
        self.reuse = Reuse()
        self._num_steps += 1
        self._drop_trees()
        self._admit()
        tokens = self._shares.tokens_of_keys(self._queue.running, self._pricing.base_tokens, time.monotonic())
        limits = self._limits
        self._plan = plan = StepPlan(limits.max_batch_rows, tokens, limits.max_prompt_logits, limits.max_tree_tokens)
        self._plan_decoding(plan)
        self._plan_prompts(plan)
        steps = [SequenceStep.of(sequence, size) for sequence, size in plan.sizes.items()]
        reading = [step for step in steps if step.tree is None]  # prompts that go on come first
        return [*reading, *(step for step in steps if step.tree is not None)] if reading else steps

    def note_step(self, seconds: float) -> None:
        """The step under way took so long."""
        self._long_prompts.note_step(seconds, self._plan)

    def grant(self, steps: list[SequenceStep], budgets: list[DraftBudget]) -> None:
        """Let these steps draft what they may, in what each key has left of the step and as far as there are blocks."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            places[step.sequence.turn.key].append(place)
        for key, own in places.items():
            left = self._plan.tokens_of[key], self._plan.tokens_left, self._plan.tree_tokens_left
            room = max(min(left), 0)
            for place, budget in zip(own, fitted([budgets[place] for place in own], room), strict=True):
                self._plan.tokens_left -= budget.max_nodes
                self._plan.tree_tokens_left -= budget.max_nodes
                steps[place].budget = self._with_room(steps[place], budget) if budget.max_nodes else budget

    def _drop_trees(self) -> None:
        """Leave running sequences the blocks that they have tokens in: the last step's trees are done with."""
        for sequence in self._grown:
            if sequence.rows is not None:
                self._pool.resize(sequence.rows.table, sequence.rows.length)
        self._grown.clear()

    def _admit(self) -> None:
        """Whose turn it is, as long as there is a place, and the tokens it has find room beside what is owed to those
        that run; or as long as others hold so much more that they have to make way."""
        while self._queue.num_waiting and (sequence := self._queue.next()) is not None:
            if not self._has_place(sequence) or not self._find_room(sequence):
                self._turned_away = sequence, self.num_running
                return
            if len(self._queue.running) == self._limits.max_running:
                victim = self._victim_for_place(sequence)
                assert victim is not None, sequence.request.id
                self._preempt(victim)
            self._queue.start(sequence)
            self.reuse.queries += sequence.note_admission()
            self.reuse.hits += sequence.note_found(sequence.num_committed)

    def _has_place(self, sequence: Sequence) -> bool:
        """Whether one more may run, be it for another."""
        return len(self._queue.running) < self._limits.max_running or self._victim_for_place(sequence) is not None

    def _victim_for_place(self, sequence: Sequence) -> Sequence | None:
        return self._queue.victim(sequence, self._queue.running, lambda _: 1, 1)

    def _find_room(self, sequence: Sequence) -> bool:
        """Take over the blocks that hold its tokens; whether there is room for the rest beside what is owed to those
        that run, which others may have to make. Always, where nobody runs."""
        num_owed = self.num_owed
        is_full = len(self._queue.running) and self._pool.num_available <= num_owed
        if is_full and self._victim_for_room(sequence, 1) is None:
            return False
        sequence.find_rows(self._pool)
        num_wanted = num_blocks_for(sequence.request.num_tokens)
        num_missing = num_wanted - sequence.num_committed // BLOCK_LEN
        while len(self._queue.running) and self._pool.num_available < max(num_missing, 1) + num_owed:
            victim = self._victim_for_room(sequence, num_wanted)
            if victim is None:
                sequence.release(self._pool)
                return False
            self._preempt(victim)
            num_owed = self.num_owed
        return True

    def _victim_for_room(self, sequence: Sequence, num_wanted: int) -> Sequence | None:
        return self._queue.victim(sequence, self._queue.running, _blocks_held, num_wanted)

    def _plan_decoding(self, plan: StepPlan) -> None:
        """Every sequence whose prompt is through, the oldest first; where a key has more of them than it may run, those
        that have waited longest, and but for a block if it has prompts, too."""
        last_step, kept, decoding = self._last_step, dict[str, int](), list[Sequence]()
        for sequence in self._queue.running:
            if sequence.num_pending == 1:
                decoding.append(sequence)
            else:
                kept[sequence.turn.key] = BLOCK_LEN
        for sequence in sorted(decoding, key=lambda each: (last_step.get(each, 0), each.arrived)):
            key = sequence.turn.key
            if plan.tokens_of[key] > kept.get(key, 0) and self._make_room(sequence, 1, plan):
                plan.add_root(sequence, key)
                last_step[sequence] = self._num_steps

    def _plan_prompts(self, plan: StepPlan) -> None:
        """Of each key that has prompts the same, by its weight, of the seconds they may take beside sequences that
        decode; what one does not need is for those that want more."""
        seconds_left = PLANNED_SHARE * self._limits.max_step_seconds if plan.sizes else float("inf")
        reading = self._without_twins([each for each in self._queue.running if each.num_pending > 1])
        if plan.sizes:
            reading = [each for each in reading if not self._long_prompts.has_to_wait(each)]
        prompts = [Prompt(each, self._seconds(each, each.num_pending)) for each in reading]
        if not prompts:
            return
        first = min(prompts, key=Prompt.rank).sequence
        weights = {each.sequence.turn.key: each.sequence.turn.weight for each in prompts}
        wanted = dict.fromkeys(weights, 0.0)
        for sequence, seconds in prompts:
            wanted[sequence.turn.key] += seconds
        total = sum(weights.values())
        whole = first.turn.key if first.joint else None  # whose picture has to fit into the step, before others take it
        for key in sorted(wanted, key=lambda key: (key != whole, wanted[key] / weights[key])):
            own = sorted((each for each in prompts if each.sequence.turn.key == key), key=Prompt.rank)
            seconds_left -= self._plan_prompts_of_key(own, seconds_left * weights[key] / total, first, plan)
            total -= weights[key]

    def _without_twins(self, reading: list[Sequence]) -> list[Sequence]:
        """Of sequences with one prompt the first alone, where the others can take over what layers carry after it."""
        if self._pool.states is None or not self._pool.states.max_checkpoints:
            return reading
        firsts: dict[object, Sequence] = {}
        for each in sorted(reading, key=lambda each: each.turn.arrived):
            request = each.request
            is_alone = request.runs_whole_prompt or request.num_output > 0
            is_alone |= len(request.prompt) <= BLOCK_LEN
            key = (
                each
                if is_alone
                else (request.tenant, request.cache_salt, request.keys[: len(request.prompt)].tobytes())
            )
            firsts.setdefault(key, each)
        return list(firsts.values())

    def _plan_prompts_of_key(self, prompts: list[Prompt], seconds: float, first: Sequence, plan: StepPlan) -> float:
        """As many of their tokens as take so many seconds, and a block's of `first` at least; the seconds they take."""
        seconds_left = seconds
        for sequence, _ in prompts:
            if sequence.rows is None:  # preempted for one before it
                continue
            self.reuse.hits += sequence.note_found(sequence.find_rows(self._pool))
            size = plan.room_for(sequence)
            if (needed := self._seconds(sequence, size)) > (allowed := max(seconds_left, 0.0)):
                size = max(int(size * allowed / needed), min(size, BLOCK_LEN) if sequence is first else 0)
            if size < sequence.num_pending:
                size = sequence.whole_size(size, sequence is first)
            if size > 0 and self._make_room(sequence, size, plan):
                seconds_left -= (needed := self._seconds(sequence, size))
                plan.add(sequence, size, needed)
        return seconds - seconds_left if isfinite(seconds) else 0.0

    def _with_room(self, step: SequenceStep, budget: DraftBudget) -> DraftBudget:
        """As much of the budget as there are blocks for."""
        table, end = step.table, step.end
        self._grown.append(step.sequence)
        if self._pool.resize(table, end + budget.max_nodes):
            return budget
        self._pool.resize(table, table.capacity + self._pool.num_available * BLOCK_LEN)
        return budget._replace(max_nodes=table.capacity - end)

    def _make_room(self, sequence: Sequence, size: int, plan: StepPlan) -> bool:
        """Blocks for the next `size` tokens, if need be of younger sequences; False where there are none to be had.

        What the blocks will hold after the coming step can be found from now on, so who is planned stays.
        """
        rows = sequence.rows
        if rows is None:
            return False
        end = rows.length + size
        while end > rows.table.capacity and not self._pool.resize(rows.table, end):
            num_missing = num_blocks_for(end) - rows.table.num_blocks
            unplanned = plan.unplanned(self._queue.running)
            victim = self._queue.victim(sequence, unplanned, _blocks_held, num_missing)
            if victim is None:
                victim = self._youngest_beside(sequence, unplanned)
            if victim is sequence:
                return False
            self._preempt(victim)
        if end >= BLOCK_LEN * (rows.table.num_hashed + 1):
            self._pool.publish(rows.table, sequence.request.keys[:end])
        return True

    def _youngest_beside(self, sequence: Sequence, unplanned: list[Sequence]) -> Sequence:
        """Where nobody else has to: of the sequence's own key, but of all for the one that came first."""
        key = None if sequence is self._queue.first else sequence.turn.key
        own = (each for each in unplanned if key in (None, each.turn.key))
        return max(own, key=lambda each: (each.turn.priority, each.turn.arrived))

    def _preempt(self, sequence: Sequence) -> None:
        sequence.release(self._pool)
        sequence.note_preemption()
        self._queue.stop(sequence)
        self._last_step.pop(sequence, None)
        self.reuse.preemptions += 1

    def _seconds(self, sequence: Sequence, num_tokens: int) -> float:
        """What so many of its next tokens add to a step."""
        return self._pricing.seconds_of_chain(num_tokens, sequence.num_committed, sequence.drafter.reads_ahead)


def _blocks_owed(sequence: Sequence) -> int:
    """That a running sequence needs for the tokens it has, and one to grow by."""
    assert sequence.rows is not None
    return max(0, num_blocks_for(sequence.request.num_tokens) + 1 - sequence.rows.table.num_blocks)


def _blocks_held(sequence: Sequence) -> int:
    return sequence.rows.table.num_blocks if sequence.rows is not None else 0
