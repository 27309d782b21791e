"""The states that layers carry from token to token, of fixed size for each sequence, and checkpoints of them.

Owns who holds which state. Knows nothing of what is in a state. A state is shared as blocks are: by reference, until
somebody has to go on from it. Invariant: a state that more than one holds is never written.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

import torch

from decoding.core.tree import IntArray

# Shape suffixes: W inputs that a convolution looks back at, C channels, H heads, K key width, V value width.


class StateShape(NamedTuple):
    """windows: [W, C] of each convolution, in the model's dtype. matrices: [H, K, V] of each recurrence, in float32."""

    windows: tuple[tuple[int, int], ...]
    matrices: tuple[tuple[int, int, int], ...]

    def num_bytes(self, dtype: torch.dtype) -> int:
        """The bytes of one state."""
        return dtype.itemsize * sum(map(prod, self.windows)) + 4 * sum(map(prod, self.matrices))


class State:
    """What all layers carry after some token; zeros carry nothing, as before the first. Only its pool writes
    `num_holders`."""

    def __init__(self, shape: StateShape, dtype: torch.dtype, device: torch.device) -> None:
        self.num_holders = 1
        sizes = [prod(window) for window in shape.windows]
        numbers = torch.split(torch.zeros(sum(sizes), dtype=dtype, device=device), sizes)
        self.windows = [part.view(window) for part, window in zip(numbers, shape.windows, strict=True)]
        sizes = [prod(matrix) for matrix in shape.matrices]
        floats = torch.split(torch.zeros(sum(sizes), dtype=torch.float32, device=device), sizes)
        self.matrices = [part.view(matrix) for part, matrix in zip(floats, shape.matrices, strict=True)]


class Mark(NamedTuple):
    """A checkpoint in the making: `state` is what layers carry after the running step's first `num_rows` tokens, and
    `digest` names all tokens up to there. is_spare: it takes no place of others but spare ones, and goes before
    them."""

    num_rows: int
    digest: bytes
    state: State
    is_spare: bool


@dataclass(eq=False, slots=True)
class SequenceState:
    """One sequence's. front: after its committed tokens, which others may share. back: the running step writes it.
    Only the pool writes these. kept: what the running step leaves for its commit; whoever runs the step writes it."""

    pool: StatePool
    front: State
    back: State
    marks: list[Mark] = field(default_factory=list)
    kept: Any = None


class CarriedStates(Protocol):
    """The part of a model that runs its layers' states."""

    shape: StateShape

    def commit(self, state: SequenceState, path: IntArray) -> None:
        """Go on to the state after the running step's rows in `path`."""


class StatePool:
    """Gives out states. max_checkpoints: how many states may be kept that no sequence runs on.

    A sequence holds two at most that are its own, so `2 * sequences + max_checkpoints` states exist at most.
    """

    def __init__(self, shape: StateShape, dtype: torch.dtype, device: torch.device, max_checkpoints: int = 0) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.max_checkpoints = max_checkpoints
        self.num_made = 0  # states that exist
        self._free: list[State] = []
        self._blank = State(shape, dtype, device)  # never free
        self._checkpoints: OrderedDict[bytes, State] = OrderedDict()  # least recently used first
        self._spare: OrderedDict[bytes, State] = OrderedDict()  # further ones, the same way
        self._num_marks = 0
        self._sequences: set[SequenceState] = set()

    @property
    def num_bytes(self) -> int:
        """Of the states that exist."""
        return (self.num_made + 1) * self.shape.num_bytes(self.dtype)

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints) + len(self._spare)

    def open(self) -> SequenceState:
        """The state of a sequence without tokens."""
        return self._add(self._blank)

    def fork(self, state: SequenceState) -> SequenceState:
        """The state of a sequence that goes on from another's committed tokens."""
        return self._add(state.front)

    def adopt(self, state: SequenceState, digest: bytes) -> None:
        """Go on from a checkpoint, which is no spare one from here on."""
        self._drop(state.front)
        self._use(digest)
        state.front = self._hold(self._checkpoints[digest])

    def advance(self, state: SequenceState, num_rows: int) -> None:
        """Go on to what the running step wrote after its first `num_rows` tokens, and keep its checkpoints."""
        before, state.front = state.front, state.back
        for mark in state.marks:
            self._num_marks -= 1
            if mark.num_rows == num_rows:  # the step went no further, so nothing wrote `back`
                state.front, unused = self._hold(mark.state), state.front
                self._drop(unused)
            self._keep(mark)
        state.marks.clear()
        state.back = self._own(before)

    def release(self, state: SequenceState) -> None:
        """Give back what a sequence holds; it is dead afterwards."""
        self._sequences.remove(state)
        self._drop(state.front)
        self._drop(state.back)
        for mark in state.marks:
            self._num_marks -= 1
            self._drop(mark.state)
        state.marks.clear()
        state.kept = None

    def knows(self, digest: bytes) -> bool:
        """Whether there is a checkpoint after these tokens."""
        return digest in self._checkpoints or digest in self._spare

    def mark(self, state: SequenceState, num_rows: int, digest: bytes, is_spare: bool = False) -> None:
        """Have the running step keep a checkpoint after its first `num_rows` tokens, if there may be one more. Marks
        are made in the order of their rows. is_spare: as in Mark."""
        if self.knows(digest):
            if not is_spare:
                self._use(digest)
            return
        replaced = (self._spare,) if is_spare else (self._spare, self._checkpoints)
        while self.num_checkpoints + self._num_marks >= self.max_checkpoints and any(replaced):
            self._drop(next(filter(None, replaced)).popitem(last=False)[1])
        if self.num_checkpoints + self._num_marks < self.max_checkpoints:
            self._num_marks += 1
            state.marks.append(Mark(num_rows, digest, self._take(), is_spare))

    def forget(self) -> None:
        """Drop all checkpoints."""
        for checkpoints in (self._spare, self._checkpoints):
            while checkpoints:
                self._drop(checkpoints.popitem()[1])

    def check_integrity(self) -> None:
        """Raise AssertionError unless every state is free or held as often as it says."""
        held = [state for each in self._sequences for state in (each.front, each.back)]
        held += [mark.state for each in self._sequences for mark in each.marks]
        held += [*self._checkpoints.values(), *self._spare.values(), self._blank]
        counts = Counter(held)
        assert all(counts[state] == state.num_holders for state in held), "counts do not match the holders"
        assert all(counts[each.back] == 1 for each in self._sequences), "a state that is written is shared"
        assert all(state.num_holders == 0 and state not in held for state in self._free), "a free state is held"
        assert len(set(held)) - 1 + len(self._free) == self.num_made, "states lost"
        assert self.num_checkpoints + self._num_marks <= self.max_checkpoints, "too many checkpoints"
        assert self._num_marks == sum(len(each.marks) for each in self._sequences), "marks lost"

    def _add(self, front: State) -> SequenceState:
        state = SequenceState(self, self._hold(front), self._take())
        self._sequences.add(state)
        return state

    def _keep(self, mark: Mark) -> None:
        if self.knows(mark.digest):  # another sequence read the same tokens in this step
            self._drop(mark.state)
        else:
            (self._spare if mark.is_spare else self._checkpoints)[mark.digest] = mark.state

    def _use(self, digest: bytes) -> None:
        """Make a checkpoint the most recently used one."""
        checkpoints = self._spare if digest in self._spare else self._checkpoints
        self._checkpoints[digest] = checkpoints.pop(digest)

    def _take(self) -> State:
        if self._free:
            state = self._free.pop()
            state.num_holders = 1
            return state
        self.num_made += 1
        return State(self.shape, self.dtype, self.device)

    def _own(self, state: State) -> State:
        """A state to write, for who holds this one: the same where nobody else does."""
        if state.num_holders == 1 and state is not self._blank:
            return state
        self._drop(state)
        return self._take()

    def _hold(self, state: State) -> State:
        state.num_holders += 1
        return state

    def _drop(self, state: State) -> None:
        state.num_holders -= 1
        if state.num_holders == 0:
            self._free.append(state)
