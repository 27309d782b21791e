"""How much of a step each key may have, when a long prompt has to wait, and the step in the making.

Invariants: no key's step is longer than it would be alone on a machine of its share of the speed; beside sequences that
decode, prompts that take long have half of the time, all together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from decoding.cache.block_pool import BLOCK_LEN
from decoding.engine.sequence import Sequence

LATELY = 1.0  # seconds
LONG = 1.0  # seconds that a prompt has been read for


class Prompt(NamedTuple):
    """A sequence that reads its prompt, and the seconds that the rest of it takes."""

    sequence: Sequence
    seconds: float

    def rank(self) -> tuple[float, float]:
        """The one that is soonest through first, but for those that have waited for longer than they take."""
        turn = self.sequence.turn
        return turn.priority, self.seconds + turn.arrived


@dataclass(slots=True)
class StepPlan:
    """A step in the making: who runs with how many of its pending tokens, and how many more there may be, in all and of
    each key; of how many tokens of prompts whose log probabilities are told, and of how many in trees."""

    tokens_left: int
    tokens_of: dict[str, int]
    logits_left: int
    tree_tokens_left: int
    sizes: dict[Sequence, int] = field(default_factory=dict)
    seconds: dict[Sequence, float] = field(default_factory=dict)  # that prompts are expected to take

    def add(self, sequence: Sequence, size: int, seconds: float) -> None:
        """A prompt's next tokens, or all that are left."""
        self.sizes[sequence], self.seconds[sequence] = size, seconds
        self.tokens_left -= size
        self.tokens_of[sequence.turn.key] -= size
        if sequence.scores_prompt:
            self.logits_left -= size
        self.tree_tokens_left -= size == sequence.num_pending

    def add_root(self, sequence: Sequence, key: str) -> None:
        """One whose prompt is through."""
        self.sizes[sequence] = 1
        self.tokens_left -= 1
        self.tokens_of[key] -= 1
        self.tree_tokens_left -= 1
        if sequence.scores_prompt:
            self.logits_left -= 1

    def room_for(self, sequence: Sequence) -> int:
        """How many of its tokens there may be."""
        room = min(sequence.num_pending, self.tokens_left, self.tokens_of[sequence.turn.key])
        return min(room, self.logits_left) if sequence.scores_prompt else room

    def unplanned(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        return [each for each in sequences if each not in self.sizes]


class LongPrompts:
    """Owns by how many seconds they are ahead of the sequences that decode. A short prompt is read at once."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._decode_seconds = 0.0  # of the latest step that read nothing

    def has_to_wait(self, sequence: Sequence) -> bool:
        """Whether this prompt is long, and those that decode are to run alone for a while."""
        return self._ahead > 0 and sequence.read_seconds > LONG

    def note_step(self, seconds: float, plan: StepPlan) -> None:
        """The planned step took so many seconds, or one that followed it without a plan, which reads nothing.

        What a step took beyond one that only decodes, it read: far into a prompt that may be many times what was
        expected.
        """
        expected, plan.seconds = plan.seconds, {}
        if not expected:
            self._decode_seconds = seconds
        is_decoding = not expected.keys() >= plan.sizes.keys()
        decoded = min(seconds, self._decode_seconds) if is_decoding else 0.0
        in_all, long = sum(expected.values()), 0.0
        for sequence, share in expected.items():
            read = (seconds - decoded) * share / in_all if in_all else 0.0
            sequence.read_seconds += read
            long += read if sequence.read_seconds > LONG else 0.0
        self._ahead = max(0.0, self._ahead + long - decoded) if is_decoding else 0.0


class Want(NamedTuple):
    """Of one key: rows that it could bring to a step, and its weight."""

    rows: float
    weight: float = 1.0


def step_tokens(wants: Mapping[str, Want], base_tokens: float, most: float) -> dict[str, float]:
    """How many rows each key may bring to a step, of at most `most` together.

    No key has to wait for longer than it would alone on a machine of its share of the speed: a step of r rows takes
    base_tokens + r, so with n equal keys the others may make it n times as long as a key's own rows would. Within that
    the rows are shared out by max-min fairness.
    """
    total = sum(want.weight for want in wants.values())
    for want in wants.values():
        most = min(most, (base_tokens + want.rows) * total / want.weight - base_tokens)
    shares: dict[str, float] = {}
    for key, want in sorted(wants.items(), key=lambda each: each[1].rows / each[1].weight):
        shares[key] = min(want.rows, most * want.weight / total)
        most, total = most - shares[key], total - want.weight
    return shares


class StepShares:
    """Owns which keys ran lately, and with what: one that comes again in a moment finds no longer a step under way than
    if it had stayed. most: rows of a step."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lately: dict[str, tuple[float, Want]] = {}  # by key: when it ran last

    def tokens_of_keys(self, running: Iterable[Sequence], base_tokens: float, now: float) -> dict[str, int]:
        """How many tokens of each key may run in the step: of prompts, roots and nodes of trees. A key that has prompts
        can always run a block of them. base_tokens: see `step_tokens`; now: in seconds."""
        self._lately = {key: entry for key, entry in self._lately.items() if now - entry[0] < LATELY}
        wanted: Counter[str] = Counter()
        weights, with_prompt = {}, set()
        for sequence in running:
            key = sequence.turn.key
            wanted[key] += sequence.num_pending + sequence.drafter.nodes_wanted
            weights[key] = sequence.turn.weight
            if sequence.num_pending > 1:
                with_prompt.add(key)
        for key, rows in wanted.items():
            self._lately[key] = now, Want(min(rows, self._most), weights[key])
        if len(self._lately) < 2:
            return dict.fromkeys(wanted, self._most)
        shares = step_tokens({key: want for key, (_, want) in self._lately.items()}, base_tokens, self._most)
        return {key: max(round(shares[key]), 1 + BLOCK_LEN * (key in with_prompt)) for key in wanted}
